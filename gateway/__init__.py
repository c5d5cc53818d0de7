"""A realtime gateway between AI agents and the people in front of them: stream, stop, reconnect, resume.

``Gateway(engine).asgi`` mounts in any Starlette or FastAPI application; ``create_agent`` and ``Agent`` build an engine
from a model and tools; any object with a ``stream`` method, or a bare async generator function, is an engine too.

The names are loaded when they are first used, so that ``import gateway.client`` does not pay for a server.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.app import Gateway
    from gateway.auth import Anonymous, Authenticator, Principal, StaticTokens
    from gateway.client import connect
    from gateway.config import BadSetting, Settings
    from gateway.engine import (
        AbortEventManager,
        AbortEventRunnerObserver,
        Agent,
        AgentExtension,
        Engine,
        MessageErrorBuilder,
        RunContext,
        ScriptedModel,
        ToolContext,
        create_agent,
        current_run,
        tool,
        user_message,
    )
    from protocol.errors import CommandError, GatewayError

_HOMES = {
    "Gateway": "gateway.app",
    "Anonymous": "gateway.auth",
    "Authenticator": "gateway.auth",
    "Principal": "gateway.auth",
    "StaticTokens": "gateway.auth",
    "connect": "gateway.client",
    "BadSetting": "gateway.config",
    "Settings": "gateway.config",
    "CommandError": "protocol.errors",
    "GatewayError": "protocol.errors",
}

__all__ = [
    "AbortEventManager",
    "AbortEventRunnerObserver",
    "Agent",
    "AgentExtension",
    "Anonymous",
    "Authenticator",
    "BadSetting",
    "CommandError",
    "Engine",
    "Gateway",
    "GatewayError",
    "MessageErrorBuilder",
    "Principal",
    "RunContext",
    "ScriptedModel",
    "Settings",
    "StaticTokens",
    "ToolContext",
    "connect",
    "create_agent",
    "current_run",
    "tool",
    "user_message",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gateway' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, "gateway.engine")), name)
