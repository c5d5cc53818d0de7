"""The abort signal: the latch inside a run, and the registry through which others reach a run's event."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

T = TypeVar("T")


class LatchState(Enum):
    """Where the verdict on a run stands."""

    RUNNING = "running"
    ABORTING = "aborting"
    SEALED = "sealed"


class Latch:
    """Decides once how a run ends: whoever comes first wins, and a set event comes before everything not yet sealed.

    An error is *recorded* at the moment it happens, so that an abort a tick later does not hide a provider's failure,
    and a failure caused by the abort (a connection closed under its reader) never hides the abort.
    """

    __slots__ = ("_event", "error", "reason", "state")

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self.state = LatchState.RUNNING
        self.reason: str | None = None
        self.error: Exception | None = None

    @property
    def stopping(self) -> bool:
        """True as soon as the run has to stop, also in the tick before its watcher wakes."""
        return self.state is not LatchState.RUNNING or (self.error is None and self._event.is_set())

    @property
    def aborted(self) -> bool:
        """True once the run's end is an abort."""
        return self.reason is not None

    def abort(self, reason: str) -> bool:
        """Ask for an abort; False where the run's end is already decided."""
        if self.state is not LatchState.RUNNING or self.error is not None:
            return False
        self.state = LatchState.ABORTING
        self.reason = reason
        return True

    def fail(self, error: Exception) -> bool:
        """Record that the run failed; False where an abort came first."""
        if self.stopping:
            return False
        self.error = error
        return True

    def seal(self) -> None:
        """Make the verdict final: from here on an abort is too late."""
        if self.error is None and self._event.is_set():
            self.abort("user")
        self.state = LatchState.SEALED


async def outlast(task: asyncio.Future[T]) -> T:
    """Await ``task`` to its end, however often the caller is cancelled meanwhile; only then let the cancellation out.

    ``shield`` is not enough: a second cancel gets through it, and the caller goes on before the write is done.
    """
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # retrieved: the cancellation is what the caller hears of
        raise cancelled
    return task.result()


@dataclass(frozen=True, slots=True)
class _Entry:
    event: asyncio.Event
    loop: asyncio.AbstractEventLoop | None


class AbortEventManager:
    """The abort events of the live runs of this process, by session.

    Within one process only, never persisted. ``get`` gives None for an idle session: check before you ``set()``.
    """

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def register(self, session_id: str, event: asyncio.Event) -> None:
        """Name ``event`` as the one that stops the session's current run."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        self._entries[session_id] = _Entry(event, loop)

    def unregister(self, session_id: str, event: asyncio.Event | None = None) -> None:
        """Remove the entry; with ``event`` only if it is still that one: an old run never removes a newer one's."""
        entry = self._entries.get(session_id)
        if entry is not None and (event is None or entry.event is event):
            del self._entries[session_id]

    def get(self, session_id: str) -> asyncio.Event | None:
        """Give the event of the session's live run, or None where nothing runs."""
        entry = self._entries.get(session_id)
        return entry.event if entry else None

    def reset(self) -> None:
        """Forget every entry."""
        self._entries.clear()

    def abort_from_thread(self, session_id: str) -> bool:
        """Stop a session's run from any thread; False where nothing runs.

        ``Event.set()`` from another thread sets the flag but does not wake a sleeping loop; this does.
        """
        entry = self._entries.get(session_id)
        if entry is None:
            return False
        if entry.loop is None:
            entry.event.set()
            return True
        try:
            entry.loop.call_soon_threadsafe(entry.event.set)
        except RuntimeError:  # the loop is closed, and its run with it
            return False
        return True

    def __len__(self) -> int:
        return len(self._entries)


class RunnerObserver(Protocol):
    """Is told when a session's run starts and when the session is idle again."""

    def started(self, session_id: str, event: asyncio.Event) -> None:
        """A run of this session starts; ``event`` aborts it."""
        ...

    def idle(self, session_id: str, event: asyncio.Event) -> None:
        """The run that ``event`` aborts is over, however it ended."""
        ...


class AbortEventRunnerObserver:
    """Keeps an :class:`AbortEventManager` in step with the runs: registered on started, unregistered on idle."""

    def __init__(self, manager: AbortEventManager) -> None:
        self.manager = manager

    def started(self, session_id: str, event: asyncio.Event) -> None:
        """Register the run's event."""
        self.manager.register(session_id, event)

    def idle(self, session_id: str, event: asyncio.Event) -> None:
        """Unregister it, unless a newer run has taken the place."""
        self.manager.unregister(session_id, event)
