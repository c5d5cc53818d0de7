"""The port: what the gateway asks of an agent, whoever wrote it."""

from __future__ import annotations

import inspect
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from protocol.messages import Decision, Message

Mode: TypeAlias = Literal["prompt", "resume"]

EngineEvent: TypeAlias = dict[str, Any]
"""A protocol event without its envelope (``session_id``, ``seq``, ``run_id``, ``time``), which the session adds."""


class Engine(Protocol):
    """Anything that streams a run.

    The smallest engine yields ``{"type": "text-delta", "text": "…"}`` and nothing else; the session supplies the rest.
    Once ``abort`` is set it should yield its closing events and return; if it does not, it is cancelled after the
    grace. ``messages`` is the whole history in mode ``resume`` and for an engine that :class:`WantsHistory`, else
    only the new messages.
    """

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        """Run one turn and yield its events."""
        ...


@runtime_checkable
class WantsHistory(Protocol):
    """An engine that keeps nothing itself and is given the whole history in both modes where this is True."""

    wants_history: bool


@runtime_checkable
class Responds(Protocol):
    """An engine that asks for approvals; without it ``respond`` is ``unsupported``."""

    async def respond(
        self, *, session_id: str, run_id: str, request_id: str, decision: Decision, value: Any = None
    ) -> bool | None:
        """Deliver a person's answer to an ``approval-request``; False where nobody waits for it any more."""
        ...


@runtime_checkable
class Steers(Protocol):
    """An engine that takes new messages while it runs; without it ``steer`` is ``unsupported``."""

    async def steer(self, *, session_id: str, run_id: str, messages: Sequence[Message]) -> bool:
        """Take ``messages`` at the next safe point; False when the run is past its last one.

        The session ends the message under way and places ``messages`` when this returns True, or, where the engine says
        ``announces_steering = True``, where it yields ``message-added`` with the first of them.
        """
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """For whom and in which run the code at hand works."""

    principal: str
    session_id: str
    run_id: str
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    abort_grace_s: float | None = None
    """Seconds after an abort at which the session cancels the engine; ours is done a little before. None: no limit."""


run_context: ContextVar[RunContext | None] = ContextVar("gateway_run_context", default=None)
"""Set by the session before it calls ``stream``; tasks and our tool threads inherit it."""


def current_run() -> RunContext | None:
    """Give the run in which this code is executed, so that a tool can act for its user; None outside the gateway."""
    return run_context.get()


_PARAMETERS = frozenset({"abort", "mode", "session_id", "messages"})


class _FunctionEngine:
    """A bare async generator function, seen as an engine."""

    def __init__(self, function: Callable[..., AsyncIterator[EngineEvent]]) -> None:
        self._function = function
        self.wants_history = bool(getattr(function, "wants_history", False))

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        return self._function(abort=abort, mode=mode, session_id=session_id, messages=messages)

    def __repr__(self) -> str:
        return f"<engine {getattr(self._function, '__qualname__', self._function)}>"


def as_engine(candidate: object) -> Engine:
    """Take an engine as it is, or wrap a bare async generator function.

    Raises TypeError, with one line that a person can act on, for anything else.
    """
    if isinstance(candidate, type):
        raise TypeError(f"{candidate.__qualname__} is a class: give an instance, such as {candidate.__qualname__}()")
    stream = getattr(candidate, "stream", None)
    if callable(stream):
        _check_parameters(stream, f"{type(candidate).__qualname__}.stream")
        return cast("Engine", candidate)
    if inspect.isasyncgenfunction(candidate):
        _check_parameters(candidate, getattr(candidate, "__qualname__", repr(candidate)))
        return _FunctionEngine(candidate)
    if inspect.iscoroutine(candidate):
        candidate.close()
        raise TypeError("a coroutine is no engine: await it first, and give what it returns")
    if inspect.isfunction(candidate):
        raise TypeError(
            f"{candidate.__qualname__} is no engine: it has to be an async generator (`async def`, `yield`)"
        )
    raise TypeError(
        f"{type(candidate).__qualname__} is no engine: give an object with a `stream` method or an async generator"
        " function, with the keyword parameters abort, mode, session_id, messages"
    )


def _check_parameters(function: Callable[..., object], name: str) -> None:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature: the call will tell
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    keywords = {parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY}
    if missing := sorted(_PARAMETERS - keywords):
        raise TypeError(f"{name} lacks the keyword parameters {', '.join(missing)}")
