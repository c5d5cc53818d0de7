"""A session as the gateway runs it, hub, store and shaper included, and what a client makes of its log."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gateway.config import Settings
from gateway.cursor import Cursor
from gateway.hub import Hub
from gateway.stores.sql import SqliteStore
from protocol import commands as c
from protocol.codec import decode_message, message
from protocol.transcript import Transcript
from tests.adapters.script import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from gateway.engine.port import Engine
    from gateway.outbox import Outbox
    from gateway.parking import Parked
    from gateway.session import Session

PRINCIPAL = "local"
SESSION = "ses_contract"
Event = dict[str, Any]


class Desk:
    """Gives commands and reads the log as it is committed."""

    principal = PRINCIPAL
    outbox: Outbox | None = None

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.owned: set[Session | Parked] = set()
        self.events: list[Event] = []
        self.fold = Transcript()
        self._news = asyncio.Event()
        self._cursor: Cursor | None = None

    # -- the gateway calls these

    def reply(self, frame: Event) -> None:
        pass

    def ready(self, cursor: Cursor) -> None:
        read = cursor.log.read(cursor, merge=False, limit=2**30, force=True)
        assert read is not None
        for event in decode_message(message(read.parts, joined=read.joined)) if read.parts else []:
            self.events.append(event)
            assert self.fold.apply(event) == "applied"
        self._news.set()

    def reset(self, cursor: Cursor) -> None:
        raise AssertionError("a new epoch")

    def end(self, cursor: Cursor, reason: str) -> None:
        raise AssertionError(reason)

    # -- the test calls these

    async def prompt(self, text: str = "Go") -> None:
        await self.hub.handle(self, c.Prompt(session_id=SESSION, text=text))
        if self._cursor is None:
            log = self.hub.sessions[PRINCIPAL, SESSION].log
            self._cursor = Cursor(log, self, "observer")
            log.cursors.add(self._cursor)
            self.ready(self._cursor)

    async def resume(self) -> None:
        await self.hub.handle(self, c.Resume(session_id=SESSION))

    async def abort(self) -> None:
        await self.hub.handle(self, c.Abort(session_id=SESSION))

    async def until(self, reached: Callable[[], object]) -> None:
        """Wait until the committed log shows something."""
        async with asyncio.timeout(PATIENCE_S):
            while not reached():
                self._news.clear()
                await self._news.wait()

    async def ended(self, runs: int = 1) -> Event:
        """Wait for the end of run number ``runs`` and give its last message."""
        await self.until(lambda: len(self.of("run-finish")) >= runs)
        return self.last

    @property
    def last(self) -> Event:
        return self.fold.messages[-1]

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    def text(self, kind: str = "text") -> str:
        return text_of(self.last, kind)


def text_of(message: Event, kind: str = "text") -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == kind)


def tools_of(message: Event) -> list[Event]:
    return [part for part in message["parts"] if part["type"] == "tool"]


@asynccontextmanager
async def desk(engine: Engine, folder: Path) -> AsyncIterator[Desk]:
    """A gateway of its own around ``engine``; on leaving, no task of anybody's is left.

    An adapter reacts to the abort event itself: with a grace beyond the test's patience, a session that has to cancel
    it fails the test. A bare generator that never looks at the event is cancelled, which is its contract.
    """
    before = asyncio.all_tasks()
    bare = type(engine).__name__ == "_FunctionEngine"
    hub = Hub(engine, SqliteStore(str(folder / "gateway.db")), Settings(abort_grace=0.0 if bare else 2 * PATIENCE_S))
    await hub.start()
    try:
        yield Desk(hub)
    finally:
        await hub.stop()
    await nothing_left(before)


async def nothing_left(before: set[asyncio.Task[Any]]) -> None:
    """Hold that every task that was started since has ended, or is about to end by itself."""
    started = asyncio.all_tasks() - before
    if started:
        _, running = await asyncio.wait(started, timeout=PATIENCE_S)
        assert not running, running
