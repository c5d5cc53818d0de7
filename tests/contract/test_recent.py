"""SQLite's chunks on their way: whatever is held, moved, dropped or left by a dead process, a session is whole."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gateway.stores import recent, sql
from gateway.stores.base import ChunkRow, Commit, Compaction, StoreUnavailable
from gateway.stores.recent import MOVE_AFTER_MS, Recent, merged
from gateway.stores.sql import SqliteStore
from tests.support_log import session_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ROUNDS = 40
STEPS = 60


class Clock:
    """The time by which chunks are old enough to be moved."""

    def __init__(self) -> None:
        self.now = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Chunks move when a test says so, and at no other time."""
    clock = Clock()
    monkeypatch.setattr(sql, "now_ms", lambda: clock.now)
    monkeypatch.setattr(sql, "MOVE_EVERY_S", 3600.0)
    return clock


@contextlib.asynccontextmanager
async def opened(path: Path, *, full_sync: bool = False) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), full_sync=full_sync)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def lines(first: int, last: int, size: int = 0) -> bytes:
    return b"\n".join(b'{"seq":%d,"x":"%b"}' % (seq, b"x" * size) for seq in range(first, last + 1))


async def seqs(store: SqliteStore, sid: int) -> list[int]:
    """The seqs that a session's chunks hold, which have to follow on each other."""
    found = await store.load("p", f"s{sid}")
    assert found is not None
    held: list[int] = []
    for chunk in found.chunks:
        events = [int(line.split(b",")[0].removeprefix(b'{"seq":')) for line in chunk.data.split(b"\n")]
        assert events == list(range(chunk.first_seq, chunk.last_seq + 1))
        held += events
    return held


def row(sid: int) -> Commit:
    return Commit(sid, replace(session_row(), sid=sid, principal="p", session_id=f"s{sid}"))


async def say(store: SqliteStore, sid: int, first: int, last: int, at: int, size: int = 0) -> None:
    await store.commit([Commit(sid, chunk=ChunkRow(first, last, at, lines(first, last, size)))])


async def count(store: SqliteStore, table: str) -> int:
    assert store._reader is not None
    found: int = store._reader.exec_driver_sql(f"select count(*) from {table}").scalar_one()
    store._reader.rollback()
    return found


async def test_what_a_session_says_within_a_moment_becomes_one_chunk(tmp_path: Path, clock: Clock) -> None:
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1)])
        for seq in range(1, 26):
            await say(store, 1, seq, seq, clock.now + 40 * seq)
        assert (await count(store, "recent"), await count(store, "chunks")) == (25, 0)
        assert await seqs(store, 1) == list(range(1, 26))
        store._move_due()
        assert await count(store, "chunks") == 0, "too young"
        clock.now += MOVE_AFTER_MS + 100
        store._move_due()
        assert (await count(store, "recent"), await count(store, "chunks")) == (0, 1)
        assert await seqs(store, 1) == list(range(1, 26))


async def test_what_was_not_moved_before_a_death_is_put_into_its_place_by_the_next_process(
    tmp_path: Path, clock: Clock
) -> None:
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1), row(2)])
        await say(store, 1, 1, 3, clock.now)
        await say(store, 2, 1, 2, clock.now)
        await store.commit([Commit(2, row(2).session, delete=True)])
        died = copy_of(tmp_path, "dead")
    async with opened(died) as store:
        assert (await count(store, "recent"), await count(store, "chunks")) == (0, 1)
        assert await seqs(store, 1) == [1, 2, 3]


async def test_a_clean_end_leaves_nothing_on_its_way(tmp_path: Path, clock: Clock) -> None:
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1)])
        await say(store, 1, 1, 3, clock.now)
    async with opened(tmp_path / "g.db") as store:
        assert await count(store, "recent") == 0
        assert await seqs(store, 1) == [1, 2, 3]


async def test_they_move_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOVE_AFTER_MS", 0)
    for full_sync in (False, True):
        async with opened(tmp_path / f"{full_sync}.db", full_sync=full_sync) as store:
            await store.commit([row(1)])
            await say(store, 1, 1, 3, 0)
            async with asyncio.timeout(20):
                while not store._recent.empty:  # noqa: ASYNC110  # nothing tells
                    await asyncio.sleep(0.01)
            assert (await count(store, "recent"), await count(store, "chunks")) == (0, 1)
            assert store._move_timer is None, "at rest nothing ticks"


def copy_of(folder: Path, name: str) -> Path:
    """The files as a process that dies now leaves them."""
    (folder / name).mkdir()
    for suffix in ("", "-wal"):
        if (folder / f"g.db{suffix}").exists():
            shutil.copy(folder / f"g.db{suffix}", folder / name / f"g.db{suffix}")
    return folder / name / "g.db"


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_a_session_is_whole_whatever_moves_when(tmp_path: Path, clock: Clock, seed: int) -> None:
    """Commits, compactions that drop, deletions, moves and deaths in any order."""
    chance = random.Random(seed)
    path = tmp_path / "g.db"
    sids = [1, 2, 3, 4]
    heads: dict[int, int] = {}
    dropped: dict[int, int] = {}
    gone: dict[int, int] = {}  # up to where all there was has been dropped
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened(path))
        for step in range(STEPS):
            clock.now += chance.choice((1, 40, 700, 3000))
            slot = chance.randrange(len(sids))
            sid = sids[slot]
            head = heads.get(sid)
            match chance.choice(("say", "say", "say", "large", "compact", "delete", "move", "die")):
                case _ if head is None:
                    await store.commit([row(sid)])
                    heads[sid], dropped[sid] = 0, 0
                case "say" | "large" as how:
                    assert head is not None
                    heads[sid] = head + chance.randint(1, 3)
                    await say(store, sid, head + 1, heads[sid], clock.now, 20_000 if how == "large" else 0)
                case "compact" if head:
                    dropped[sid] = chance.choice((head, chance.randint(dropped[sid], head)))
                    gone[sid] = head if dropped[sid] == head else gone.get(sid, 0)
                    compaction = Compaction(head, b"{}", [], dropped[sid])
                    chunk = None
                    if chance.random() < 0.5:
                        heads[sid] = head + 1
                        chunk = ChunkRow(head + 1, head + 1, clock.now, lines(head + 1, head + 1))
                    await store.commit([Commit(sid, chunk=chunk, compaction=compaction)])
                case "delete":
                    await store.commit([Commit(sid, row(sid).session, delete=True)])
                    del heads[sid], dropped[sid]
                    sids[slot] = max(sids) + 1  # never given again
                case "move":
                    store._move_due()
                case "die" if step % 5 == 0:
                    died = copy_of(tmp_path, f"dead-{step}")
                    await stack.aclose()
                    tmp_path = died.parent
                    store = await stack.enter_async_context(opened(died))
            for one, last in heads.items():
                held = await seqs(store, one)
                assert held == list(range(last - len(held) + 1, last + 1)), "nothing is missing, nothing twice"
                assert len(held) >= last - dropped[one], "what was not dropped is there"
                assert len(held) <= last - gone.get(one, 0), "what was dropped does not come back"


async def test_a_commit_that_fails_in_the_middle_leaves_nothing_of_it(tmp_path: Path, clock: Clock) -> None:
    """Also where it is not the database that fails: what had been put into its place is not, and is not forgotten."""
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1)])
        await say(store, 1, 1, 3, clock.now)
        unwritable = replace(session_row(title="\ud800"), sid=1, principal="p", session_id="s1")
        with pytest.raises(UnicodeEncodeError):
            await store.commit([Commit(1, compaction=Compaction(3, b"{}", [], 0)), Commit(1, unwritable)])
        await say(store, 1, 4, 6, clock.now)
        clock.now += MOVE_AFTER_MS + 1
        store._move_due()
        assert await seqs(store, 1) == [1, 2, 3, 4, 5, 6]


async def test_a_reader_in_the_middle_of_a_move_or_a_commit_sees_every_chunk(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its moment is the one between two statements of its own."""
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1), row(2)])
        await say(store, 1, 1, 3, clock.now)
        query = store._queries.newest
        values = type(query).values

        def moving(self: object, **given: object) -> object:
            if self is query:  # the chunks have been read, where they are not yet
                clock.now += MOVE_AFTER_MS + 1
                store._move_due()
            return values(query, **given) if self is query else values(self, **given)  # type: ignore[arg-type]

        monkeypatch.setattr(type(query), "values", moving)
        assert await seqs(store, 1) == [1, 2, 3]
        monkeypatch.undo()
        monkeypatch.setattr(Recent, "added", lambda *_: None)  # durable, and not noted yet
        await say(store, 2, 1, 3, clock.now)
        assert await seqs(store, 2) == [1, 2, 3]
        monkeypatch.undo()


async def test_a_move_that_fails_is_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recent, "MOVE_AFTER_MS", 0)
    monkeypatch.setattr(sql, "MOVE_AGAIN_S", 0.01)
    fails = [True, True, True]
    move = SqliteStore._move

    def failing(self: SqliteStore, sids: list[int]) -> None:
        if fails:
            fails.pop()
            raise RuntimeError("a fault of ours")
        move(self, sids)

    for full_sync in (False, True):
        fails[:] = [True, True, True]
        async with opened(tmp_path / f"{full_sync}.db", full_sync=full_sync) as store:
            monkeypatch.setattr(SqliteStore, "_move", failing)
            await store.commit([row(1)])
            await say(store, 1, 1, 3, 0)
            async with asyncio.timeout(20):
                while not store._recent.empty:  # noqa: ASYNC110  # nothing tells
                    await asyncio.sleep(0.01)
            monkeypatch.setattr(SqliteStore, "_move", move)
            assert await seqs(store, 1) == [1, 2, 3]
    assert caplog.text.count("chunks stay where they are for now: a fault of ours") == 2


async def test_what_is_never_taken_in_is_refused_before_it_fills_the_memory(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "REFUSED_BYTES", 100_000)
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1)])
        for seq in range(1, 11):
            await say(store, 1, seq, seq, clock.now, 10_000)
        with pytest.raises(StoreUnavailable, match="does not take in"):
            await say(store, 1, 11, 11, clock.now)
        clock.now += MOVE_AFTER_MS + 1
        store._move_due()
        await store.commit([row(2)])


def test_too_much_is_moved_at_once_and_without_waiting_for_its_age() -> None:
    held = Recent()
    held.added(held.rows(Commit(sid, chunk=ChunkRow(1, 1, 1000, b"x" * 16_000)) for sid in range(1000)))
    assert held.size > recent.MOST_BYTES
    due = held.due(1000)
    held.done(due, 1000, low=held.low(due))
    assert recent.MOST_BYTES - 16_000 < held.size <= recent.MOST_BYTES
    assert not held.due(1000), "the rest is young"


def test_what_came_together_is_moved_a_share_at_a_time() -> None:
    held = Recent()
    held.added(held.rows(Commit(sid, chunk=ChunkRow(1, 1, 1000, b"x")) for sid in range(50 * recent.MOVE_SHARE * 2)))
    moved = []
    while due := held.due(1000 + MOVE_AFTER_MS):
        held.done(due, 1000 + MOVE_AFTER_MS, low=held.low(due))
        moved.append(len(due))
    assert sum(moved) == 50 * recent.MOVE_SHARE * 2
    assert moved[0] == 100, "a share of all, above the least"
    assert moved[-2] == recent.MOVE_ROWS
    while not held.empty:
        held.done([], 1000 + MOVE_AFTER_MS, low=held.low([]))
        moved.append(0)
    assert len(moved) < 400


def test_the_collector_has_nothing_to_look_at_for_each_chunk() -> None:
    """Ten thousand chunks, and nothing new that it knows of."""
    held = Recent()
    held.added(held.rows([Commit(1, chunk=ChunkRow(1, 1, 1000, b"x"))]))
    gc.collect()
    before = len(gc.get_objects())
    for seq in range(2, 10_002):
        held.added(held.rows([Commit(1, chunk=ChunkRow(seq, seq, 1000, b"x"))]))
    assert len(gc.get_objects()) - before < 100
    assert [row[1] for row in next(held.move([1]))[1]] == [1], "they are joined when they are moved"


def test_a_chunk_that_is_in_both_places_counts_once() -> None:
    old = [ChunkRow(1, 4, 0, b"")]
    late = [ChunkRow(seq, seq, 0, b"") for seq in range(1, 7)]
    assert [chunk.first_seq for chunk in merged(old, late, 0)] == [1, 5, 6]
    assert [chunk.first_seq for chunk in merged([], late, 4)] == [5, 6], "in their place, and dropped from there"


async def test_what_a_long_lived_process_left_is_cleared_away_at_the_next_start(tmp_path: Path, clock: Clock) -> None:
    """Ids go on for as long as the table is not empty: the next process begins where they are, not at one."""
    path = tmp_path / "g.db"
    async with opened(path) as store:
        await store.commit([row(1)])
        store._recent.next_id = store._recent._cut = 10**9
        for seq in range(1, 2 * recent.CUT_ROWS):
            await say(store, 1, seq, seq, clock.now)
        died = copy_of(tmp_path, "dead")
    async with opened(path) as store:
        assert await count(store, "recent") == 0, "a clean end leaves nothing"
    async with opened(died) as store:
        assert await count(store, "recent") == 0
        assert store._recent.empty
        assert await seqs(store, 1) == list(range(1, 2 * recent.CUT_ROWS))
        await say(store, 1, 2 * recent.CUT_ROWS, 2 * recent.CUT_ROWS, clock.now)
        clock.now += MOVE_AFTER_MS
        store._move_due()
        assert await count(store, "recent") == 0


async def test_what_is_in_its_place_is_cleared_away_a_little_at_a_time(tmp_path: Path, clock: Clock) -> None:
    async with opened(tmp_path / "g.db") as store:
        await store.commit([row(1)])
        for seq in range(1, 3 * recent.CUT_ROWS):
            await say(store, 1, seq, seq, clock.now)
        clock.now += MOVE_AFTER_MS
        left = []
        while not store._recent.empty:
            store._move_due()
            left.append(await count(store, "recent"))
        assert left == [2 * recent.CUT_ROWS - 1, recent.CUT_ROWS - 1, 0]
        assert await seqs(store, 1) == list(range(1, 3 * recent.CUT_ROWS))
