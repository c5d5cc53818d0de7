"""Extensions: code that watches a run and prepares its requests.

Every hook may be left out. A hook that raises is logged and stops neither the run nor the other extensions. Whatever
happens, exactly one of ``on_success``, ``on_error`` or a :class:`RunCancelledEvent` reaches every extension at the end
of a run: state that belongs to a request is cleaned up in these three.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from gateway.engine.messages import AssistantMessage, ToolCall
    from gateway.engine.model import ModelRequest
    from gateway.engine.port import Mode
    from protocol.messages import Usage

log = logging.getLogger("gateway.engine")


@dataclass(eq=False, slots=True)
class AgentRunContext:
    """One run, as extensions see it. Compared by identity, so that it can key their state."""

    session_id: str
    run_id: str
    mode: Mode
    state: dict[str, Any] = field(default_factory=dict)
    emit: Callable[[str, Any], None] = field(default=lambda name, data: None)
    """``emit(name, data)`` shows a ``custom`` event to the person; never waits, ignored once the run is sealed."""


class ExtensionEvent:
    """Base of what ``on_event`` is given."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StepFinishedEvent(ExtensionEvent):
    """A step is over: the model has spoken and its tools have answered."""

    step: int
    finish_reason: str
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class RunCancelledEvent(ExtensionEvent):
    """The run was stopped: by its abort event, or because its stream was closed early. Arrives once."""

    reason: str


class AgentExtension:
    """Base with hooks that do nothing."""

    async def before_run(self, context: AgentRunContext) -> None:
        """Called once the history is loaded."""

    async def before_model(self, context: AgentRunContext, request: ModelRequest) -> ModelRequest | None:
        """Called before each model request; may return another one to send instead."""
        return None

    async def before_tool(self, context: AgentRunContext, call: ToolCall) -> None:
        """Called before a tool starts."""

    async def after_tool(self, context: AgentRunContext, call: ToolCall, output: Any) -> None:
        """Called after a tool returned."""

    async def on_event(self, context: AgentRunContext, event: ExtensionEvent) -> None:
        """Called with events of the run, :class:`RunCancelledEvent` among them."""

    async def on_success(self, context: AgentRunContext, result: AssistantMessage) -> None:
        """Called once when the run has completed."""

    async def on_error(self, context: AgentRunContext, error: Exception) -> None:
        """Called once when the run has failed."""


@contextmanager
def _logged(extension: AgentExtension, hook: str) -> Iterator[None]:
    """Log what a hook raises, also a CancelledError of its own making; a real cancellation of the run goes through."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        log.exception("extension %s raised in %s", type(extension).__name__, hook)
    except Exception:
        log.exception("extension %s raised in %s", type(extension).__name__, hook)


class Extensions:
    """All extensions of an agent, called in order; one that raises does not keep the next from its turn."""

    def __init__(self, extensions: Sequence[AgentExtension]) -> None:
        self._all = tuple(extensions)

    async def _each(self, name: str, call: Callable[[AgentExtension], Awaitable[object]]) -> None:
        for extension in self._all:
            with _logged(extension, name):
                await call(extension)

    async def before_run(self, context: AgentRunContext) -> None:
        """Pass on."""
        await self._each("before_run", lambda extension: extension.before_run(context))

    async def before_model(self, context: AgentRunContext, request: ModelRequest) -> ModelRequest:
        """Pass the request through every extension."""
        for extension in self._all:
            with _logged(extension, "before_model"):
                request = await extension.before_model(context, request) or request
        return request

    async def before_tool(self, context: AgentRunContext, call: ToolCall) -> None:
        """Pass on."""
        await self._each("before_tool", lambda extension: extension.before_tool(context, call))

    async def after_tool(self, context: AgentRunContext, call: ToolCall, output: Any) -> None:
        """Pass on."""
        await self._each("after_tool", lambda extension: extension.after_tool(context, call, output))

    async def on_event(self, context: AgentRunContext, event: ExtensionEvent) -> None:
        """Pass on."""
        await self._each("on_event", lambda extension: extension.on_event(context, event))

    async def on_success(self, context: AgentRunContext, result: AssistantMessage) -> None:
        """Pass on."""
        await self._each("on_success", lambda extension: extension.on_success(context, result))

    async def on_error(self, context: AgentRunContext, error: Exception) -> None:
        """Pass on."""
        await self._each("on_error", lambda extension: extension.on_error(context, error))
