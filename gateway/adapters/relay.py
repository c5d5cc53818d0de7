"""What all adapters share: one task that runs the framework, and a thin generator that hands its events on.

The framework is entered and left by that one task, so none of its cancel scopes, connections or context managers is
ever held across a ``yield``. An abort, and a reader that leaves early, cancel the task: that closes the provider's
connection and lets tools clean up, and the session closes whatever the framework left open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.engine.errors import ContentFilterError, OutputLengthError
from gateway.engine.history import model_messages
from gateway.engine.messages import UserMessage
from gateway.engine.outbox import Outbox
from gateway.engine.port import current_run

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from gateway.engine.messages import ModelMessage
    from gateway.engine.port import EngineEvent, Mode
    from protocol.messages import Message

log = logging.getLogger("gateway.adapters")

LIMIT = 64
"""Events that wait for the reader before the framework has to."""

_LEFT_BEHIND: set[asyncio.Task[None]] = set()
"""Tasks whose framework has not let go of its cancellation; kept until it does, as the loop holds tasks weakly."""


class Emit:
    """How a running framework hands out events: ``await emit(type, …)`` gives the reader time to keep up."""

    __slots__ = ("_outbox",)

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    async def __call__(self, kind: str, **fields: Any) -> None:
        """Hand out an event and wait while too many are unread."""
        self.now(kind, **fields)
        await self._outbox.room()

    def now(self, kind: str, **fields: Any) -> None:
        """Hand out an event from where nothing can wait."""
        self._outbox.put({"type": kind, **fields})


Work: TypeAlias = Callable[[Emit], Awaitable[None]]


async def relay(
    work: Work, abort: asyncio.Event, translate: Callable[[Exception], Exception]
) -> AsyncGenerator[EngineEvent, None]:
    """Run ``work`` and yield what it emits until it ends, fails (``translate`` types the error), or is aborted."""
    if abort.is_set():
        return
    outbox = Outbox(LIMIT)
    task = asyncio.create_task(_run(work, Emit(outbox)))
    # Not at the end of the task's own code: cancelled before its first step, that would never be reached.
    task.add_done_callback(lambda _: outbox.close())
    watcher = asyncio.create_task(_cancel_on(abort, task))
    try:
        while (event := await outbox.get()) is not None:
            yield event
        if not abort.is_set():
            _raise_failure(task, translate)
    finally:
        outbox.close()  # nobody reads any more: nobody waits for room
        watcher.cancel()
        task.cancel()
        _LEFT_BEHIND.add(task)
        task.add_done_callback(_let_go)
        await asyncio.wait({task, watcher})


async def _run(work: Work, emit: Emit) -> None:
    await work(emit)


async def _cancel_on(abort: asyncio.Event, task: asyncio.Task[None]) -> None:
    await abort.wait()
    task.cancel()


def _raise_failure(task: asyncio.Task[None], translate: Callable[[Exception], Exception]) -> None:
    if task.cancelled():
        raise RuntimeError("the agent cancelled itself")
    error = task.exception()
    if isinstance(error, Exception):
        raise translate(error) from error
    if error is not None:
        raise error


def _let_go(task: asyncio.Task[None]) -> None:
    _LEFT_BEHIND.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.info("the agent ended with %r", error)


def turns_of(messages: Sequence[Message], mode: Mode) -> tuple[list[ModelMessage], UserMessage]:
    """Lay out the history as turns that every model accepts: what was, and what is to be answered now."""
    before = model_messages(messages, resume=mode == "resume")
    last = before.pop() if before else None
    if not isinstance(last, UserMessage):
        raise ValueError("there is nothing to answer: the history does not end with a user message")
    return before, last


def scoped(session_id: str) -> str:
    """Name a session towards a framework that keeps sessions of its own: ours belong to a principal each."""
    run = current_run()
    return session_id if run is None else f"{run.principal}:{session_id}"


def check_finish(reason: str) -> None:
    """Fail the run if its last step did not end well: what was said stays, and the turn can be resumed."""
    if reason == "length":
        raise OutputLengthError("The model reached its output limit")
    if reason == "content-filter":
        raise ContentFilterError("The provider withheld the answer")
