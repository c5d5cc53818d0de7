"""Other people's agents as engines: ``gateway serve module:attr`` takes them as they are.

Each adapter is an extra of its own (``agent-gateway[pydantic-ai]``, ``[langgraph]``, ``[openai-agents]``,
``[zett]``) and is imported only when an agent of its framework is met, so none of them costs anybody else a byte.
Plain async generators need no adapter.

All are stateless towards the gateway: the session's log is the only truth, each run gets the whole history from it,
settled (interrupted calls answered, partial text kept), and a framework's own store is left out of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from gateway.engine.port import Engine

_ADAPTERS = {
    ("pydantic_ai", "AbstractAgent"): "pydantic_ai",
    ("agents", "Agent"): "openai_agents",
    ("langgraph", "Pregel"): "langgraph",
    ("zett_agent", "AgentClient"): "zett",
    ("zett_agent", "Agent"): "zett",
}
"""(top-level package, class) → our module for it. Subclasses count."""

EXTRAS = {
    "pydantic_ai": "pydantic-ai",
    "langgraph": "langgraph",
    "langchain_core": "langgraph",
    "agents": "openai-agents",
    "zett_agent": "zett",
}
"""Top-level package → the extra that brings it."""


def adapt(candidate: object) -> Engine | None:
    """Wrap an agent of a framework that we know; None for anything else.

    Goes by the names of the candidate's classes, so that nothing is imported to find out.
    """
    for base in type(candidate).__mro__:
        name = _ADAPTERS.get((base.__module__.partition(".")[0], base.__name__))
        if name is not None:
            return cast("Engine", import_module(f"gateway.adapters.{name}").engine(candidate))
    return None
