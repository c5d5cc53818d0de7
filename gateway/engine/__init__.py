"""The agent engine behind the gateway and its port."""

from gateway.engine.abort import AbortEventManager, AbortEventRunnerObserver, RunnerObserver
from gateway.engine.agent import Agent
from gateway.engine.default import default_agent
from gateway.engine.errors import (
    AbortError,
    APIError,
    AssistantMessageError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    EngineError,
    MessageErrorBuilder,
    NotResumable,
    OutputLengthError,
    RateLimitError,
    RunRefused,
    SessionBusy,
    ToolError,
    UnknownError,
)
from gateway.engine.extensions import (
    AgentExtension,
    AgentRunContext,
    ExtensionEvent,
    RunCancelledEvent,
    StepFinishedEvent,
)
from gateway.engine.facade import AgentClient, AgentEvent, AgentEventType, create_agent
from gateway.engine.halt import halt_abort
from gateway.engine.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage, user_message
from gateway.engine.model import Model, ModelEvent, ModelRequest, ModelResponse, RetryOptions, ToolSpec
from gateway.engine.models.scripted import ScriptedModel
from gateway.engine.phases import AgentPhase, AgentState, IllegalTransition
from gateway.engine.port import (
    Engine,
    EngineEvent,
    Mode,
    Responds,
    RunContext,
    Steers,
    WantsHistory,
    as_engine,
    current_run,
    run_context,
)
from gateway.engine.store import MemoryStore, SessionStore
from gateway.engine.tools import Tool, ToolContext, tool

__all__ = [
    "APIError",
    "AbortError",
    "AbortEventManager",
    "AbortEventRunnerObserver",
    "Agent",
    "AgentClient",
    "AgentEvent",
    "AgentEventType",
    "AgentExtension",
    "AgentPhase",
    "AgentRunContext",
    "AgentState",
    "AssistantMessage",
    "AssistantMessageError",
    "AuthError",
    "ContentFilterError",
    "ContextOverflowError",
    "Engine",
    "EngineError",
    "EngineEvent",
    "ExtensionEvent",
    "IllegalTransition",
    "MemoryStore",
    "MessageErrorBuilder",
    "Mode",
    "Model",
    "ModelEvent",
    "ModelRequest",
    "ModelResponse",
    "NotResumable",
    "OutputLengthError",
    "RateLimitError",
    "Responds",
    "RetryOptions",
    "RunCancelledEvent",
    "RunContext",
    "RunRefused",
    "RunnerObserver",
    "ScriptedModel",
    "SessionBusy",
    "SessionStore",
    "Steers",
    "StepFinishedEvent",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolError",
    "ToolMessage",
    "ToolSpec",
    "UnknownError",
    "UserMessage",
    "WantsHistory",
    "as_engine",
    "create_agent",
    "current_run",
    "default_agent",
    "halt_abort",
    "run_context",
    "tool",
    "user_message",
]
