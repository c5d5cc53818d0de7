"""The bounded way from the run's task to whoever reads the stream."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.engine.port import EngineEvent


class Outbox:
    """A queue of events that accepts at once and lets the producer wait afterwards.

    An event is appended in the same breath as the message changes, so the two never disagree; the producer then waits
    for ``room``. Closing events take no wait: a reader that stalls or has gone never delays the seal.
    """

    __slots__ = ("_closed", "_drained", "_events", "_limit", "_progress", "_reader", "_writers")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[EngineEvent] = deque()
        self._progress: dict[str, EngineEvent] = {}
        self._reader: asyncio.Future[None] | None = None
        self._writers: deque[asyncio.Future[None]] = deque()
        self._drained: deque[asyncio.Future[None]] = deque()
        self._closed = False

    def put(self, event: EngineEvent) -> None:
        """Append ``event``; never waits."""
        if self._closed:
            return
        if event["type"] == "tool-progress":
            # Only the last progress counts: an unread one is replaced, so a chatty tool cannot fill the memory.
            unread = self._progress.get(event["call_id"])
            if unread is not None:
                unread["data"] = event["data"]
                return
            self._progress[event["call_id"]] = event
        self._events.append(event)
        _wake(self._reader)

    async def room(self) -> None:
        """Wait until the reader has caught up."""
        while len(self._events) >= self._limit and not self._closed:
            writer = asyncio.get_running_loop().create_future()
            self._writers.append(writer)
            await writer

    async def drained(self) -> None:
        """Wait until the reader has taken everything and come back for more."""
        while not self._closed and (self._events or self._reader is None):
            waiter = asyncio.get_running_loop().create_future()
            self._drained.append(waiter)
            await waiter

    async def get(self) -> EngineEvent | None:
        """Give the next event; None after the last one."""
        while not self._events:
            if self._closed:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            while self._drained:
                _wake(self._drained.popleft())
            try:
                await self._reader
            finally:
                self._reader = None
        event = self._events.popleft()
        if event["type"] == "tool-progress":
            del self._progress[event["call_id"]]
        while self._writers and len(self._events) < self._limit:
            _wake(self._writers.popleft())
        return event

    def close(self) -> None:
        """Say that nothing follows."""
        self._closed = True
        for waiter in (self._reader, *self._drained, *self._writers):
            _wake(waiter)
        self._writers.clear()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
