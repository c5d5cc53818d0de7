"""A replica between what its owner sends and what the store says, which may be older."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import orjson

from gateway.cluster.replicas import Replicas
from gateway.log import Log
from gateway.stores.base import ChunkRow, SessionRow, StoredSession
from gateway.writer import Writer
from tests.support_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.cluster.calls import Calls
    from gateway.cluster.errors import Key
    from gateway.cluster.replicas import Replica
    from gateway.services import Caller

KEY = ("p", "s")


def chunk(seq: int, type_: str = "retry") -> ChunkRow:
    event = {"type": type_, "session_id": "s", "seq": seq, "run_id": "r", "time": 1}
    return ChunkRow(seq, seq, 1, orjson.dumps(event))


def stored(*chunks: ChunkRow) -> StoredSession:
    return StoredSession(SessionRow(1, *KEY, "ep", None, "idle", 1, 1, 0, active=False), 0, None, chunks, 0)


class Home:
    """A node whose reads a test answers; its store has a chunk at 2 that can only be read as a whole."""

    node_id = "n"

    def __init__(self) -> None:
        self.reads: asyncio.Queue[asyncio.Future[StoredSession]] = asyncio.Queue(2)
        self.tasks: set[asyncio.Task[Any]] = set()

    async def read(self, key: Key) -> StoredSession:
        answer: asyncio.Future[StoredSession] = asyncio.get_running_loop().create_future()
        self.reads.put_nowait(answer)
        return await answer

    async def heads(self, sids: Sequence[int]) -> dict[int, tuple[str, int]]:
        return {1: ("ep", 2)}

    async def tail(self, sid: int, after_seq: int) -> list[ChunkRow]:
        return [chunk(2, "messages-removed")]

    def follower(self, key: Key, found: StoredSession) -> Log:
        log = Log(Writer(MemoryStore()), 1, "s", "ep")
        log.stand_down()
        return log

    def connection_id(self, caller: Caller) -> str:
        return "c"

    def ownerless(self, replica: Replica) -> None:
        """Nobody is looked for."""

    def keep(self, task: asyncio.Task[Any]) -> None:
        self.tasks.add(task)


async def test_what_was_read_before_newer_events_came_does_not_take_them_back() -> None:
    home = Home()
    replicas = Replicas(home, cast("Any", home), cast("Calls", None))
    fetched = asyncio.create_task(replicas.fetch(KEY, None, lambda: True))
    (await home.reads.get()).set_result(stored(chunk(1)))
    replica = await fetched
    assert replica is not None
    again = asyncio.create_task(replicas.fetch(KEY, None, lambda: True))
    slow = await home.reads.get()
    for seq in (2, 3):
        sent = chunk(seq)
        entry = {"sid": 1, "epoch": "ep", "first": seq, "last": seq, "at": 1, "size": len(sent.data)}
        assert replicas.received(entry, sent.data)
    slow.set_result(stored(chunk(1), chunk(2)))
    assert await again is replica
    assert (replica.log.head, replica.log.archive.fold.seq) == (3, 3)
    await asyncio.wait(home.tasks)
