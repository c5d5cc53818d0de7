"""One log: stamping, joining, committing, reading, retention, coming back from the store; and the writer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cursor import Cursor
from gateway.ids import now_ms
from gateway.log import JOIN_BYTES, UNCOMMITTED_BYTES, Log
from gateway.stores.base import ChunkRow, StoreUnavailable
from gateway.writer import Writer
from protocol.codec import MAX_MESSAGE_BYTES, decode_message, message
from protocol.transcript import Transcript
from tests.support_log import (
    Recorder,
    commit,
    delta,
    finish,
    held,
    make_log,
    say,
    session_row,
    start,
    stored,
    text_start,
    turn,
)
from tests.support_store import FaultyStore, Ledger, MemoryStore


class Noted:
    """An effect that notes what became of it, and how much of the log was published then."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.seen: list[Any] = []

    def committed(self) -> None:
        self.seen.append(("committed", self.log.head))

    def failed(self) -> None:
        self.seen.append(("failed", self.log.head))


def events_in(chunk: ChunkRow | None) -> list[dict[str, Any]]:
    assert chunk is not None
    return [json.loads(line) for line in chunk.data.split(b"\n")]


def everything(log: Log, *, after: int = 0) -> list[dict[str, Any]]:
    cursor = Cursor(log, Recorder(), "owner")
    cursor.seq = after
    taken = log.read(cursor, merge=False, limit=10**9, force=True)
    assert taken is not None
    return decode_message(message(taken.parts, joined=taken.joined)) if taken.parts else []


# -- appending and stamping


def test_seq_starts_at_one_and_has_no_gaps_over_commits() -> None:
    log = make_log()
    turn(log, 1)
    turn(log, 2)
    assert [event["seq"] for event in everything(log)] == list(range(1, log.head + 1))


def test_an_event_gets_its_envelope_and_deltas_and_progress_no_time() -> None:
    log = make_log()
    say(log, *start(), text_start(), delta("a"), {"type": "tool-progress", "run_id": "r", "call_id": "c", "data": 1})
    for event in everything(log):
        assert {"type", "session_id", "seq", "run_id"} <= set(event)
        assert ("time" in event) == (event["type"] not in ("text-delta", "tool-progress"))
    assert abs(everything(log)[0]["time"] - now_ms()) < 60_000


def test_what_one_commit_adds_is_one_chunk_of_lines() -> None:
    log = make_log()
    chunk = say(log, *start(), now=77).chunk
    assert chunk is not None
    assert (chunk.first_seq, chunk.last_seq, chunk.committed_at) == (1, 3, 77)
    assert [event["seq"] for event in events_in(chunk)] == [1, 2, 3]


def test_nothing_is_readable_or_folded_before_its_commit_is_published() -> None:
    log = make_log()
    for event in start():
        log.append(event)
    batch = log.take(1)
    assert (log.head, held(log), log.archive.fold.seq) == (0, {}, 0)
    log.publish(batch, 1)
    assert (log.head, len(held(log)), log.archive.fold.seq) == (3, 3, 3)


def test_the_sessions_row_goes_with_the_events_that_change_it_and_only_with_those() -> None:
    log = make_log()
    assert say(log, *start()).session is not None
    assert say(log, text_start(), delta("a")).session is None
    assert say(log, *finish()).session is not None
    log.redescribe()
    assert commit(log).session is not None


# -- joining


def test_deltas_of_one_part_are_joined_until_the_next_commit() -> None:
    log = make_log()
    say(log, *start(), text_start())
    chunk = say(log, delta("a"), delta("b"), delta("c")).chunk
    assert [event["text"] for event in events_in(chunk)] == ["abc"]
    assert [event["text"] for event in events_in(say(log, delta("d")).chunk)] == ["d"]


def test_deltas_of_different_parts_kinds_or_with_something_between_stay_apart() -> None:
    log = make_log()
    say(log, *start(), text_start(), text_start(part_id="q"))
    between = {"type": "retry", "run_id": "r", "attempt": 1, "delay_s": 0, "error": None}
    reasoning = delta("x") | {"type": "reasoning-delta"}
    chunk = say(log, delta("a"), delta("b", part_id="q"), delta("c"), between, delta("d"), reasoning).chunk
    assert [event.get("text") for event in events_in(chunk)] == ["a", "b", "c", None, "d", "x"]


def test_text_extends_the_delta_appended_last_and_nothing_else() -> None:
    log = make_log()
    say(log, *start(), text_start())
    assert not log.extend("lost")
    log.append(delta("a"))
    assert log.extend("b")
    assert not log.extend("x" * JOIN_BYTES)
    log.append({"type": "retry", "run_id": "r", "attempt": 1, "delay_s": 0, "error": None})
    assert not log.extend("lost")
    log.append(delta("c"))
    assert log.extend("d")
    chunk = say(log).chunk
    assert [event.get("text") for event in events_in(chunk)] == ["ab", None, "cd"]
    assert not log.extend("lost")  # what has been committed is not changed


def test_a_truncated_delta_is_never_joined() -> None:
    log = make_log()
    say(log, *start(), text_start())
    chunk = say(log, delta("a"), delta("b") | {"truncated": True}, delta("c")).chunk
    assert [event["text"] for event in events_in(chunk)] == ["a", "b", "c"]


@pytest.mark.parametrize("sizes", [(60_000, 1_030_000), (1, JOIN_BYTES), (JOIN_BYTES - 200, 300), (40_000,) * 40])
def test_however_deltas_are_joined_an_event_stays_within_a_message(sizes: tuple[int, ...]) -> None:
    log = make_log()
    say(log, *start(), text_start())
    chunk = say(log, *(delta("x" * size) for size in sizes)).chunk
    assert chunk is not None
    assert max(len(line) for line in chunk.data.split(b"\n")) <= MAX_MESSAGE_BYTES
    assert sum(len(event["text"]) for event in events_in(chunk)) == sum(sizes)


def test_joined_control_characters_stay_within_a_message_although_json_makes_six_of_each() -> None:
    log = make_log()
    say(log, *start(), text_start())
    chunk = say(log, *(delta("\x01" * 8000) for _ in range(40))).chunk
    assert chunk is not None
    assert max(len(line) for line in chunk.data.split(b"\n")) <= MAX_MESSAGE_BYTES


@given(
    texts=st.lists(st.tuples(st.sampled_from("pq"), st.text(max_size=5), st.booleans()), max_size=30),
)
def test_joining_loses_no_text(texts: list[tuple[str, str, bool]]) -> None:
    log = make_log()
    say(log, *start(), text_start(), text_start(part_id="q"))
    for part, text, committed in texts:
        log.append(delta(text, part_id=part))
        if committed:
            commit(log)
    commit(log)
    (message,) = [m for m in log.archive.fold.messages if m["role"] == "assistant"]
    for part in message["parts"]:
        assert part["text"] == "".join(text for name, text, _ in texts if name == part["part_id"])


# -- bounds and waiting


async def test_a_log_is_crowded_past_its_bound_and_has_room_after_the_commit() -> None:
    log = make_log()
    say(log, *start(), text_start())
    while not log.crowded:
        log.append(delta("x" * 10_000))
    assert log._pending_bytes < UNCOMMITTED_BYTES + 20_000
    waiting = asyncio.ensure_future(log.room())
    await asyncio.sleep(0)
    assert not waiting.done()
    commit(log)
    await waiting
    assert not log.crowded


async def test_large_values_count_towards_the_bound() -> None:
    log = make_log()
    log.append({"type": "tool-progress", "run_id": "r", "call_id": "c", "data": "x", "_size": UNCOMMITTED_BYTES})
    assert log.crowded
    assert "_size" not in events_in(commit(log).chunk)[0]


async def test_who_waits_for_room_is_also_woken_by_a_failed_commit() -> None:
    log = make_log()
    waiting = asyncio.ensure_future(log.room())
    await asyncio.sleep(0)
    log.append(delta("x"))
    log.drop_pending()
    await waiting


# -- effects


def test_an_effect_comes_after_its_commit_and_before_its_events_are_seen() -> None:
    log = make_log()
    sink = Recorder()
    cursor = Cursor(log, sink, "owner")
    log.cursors.add(cursor)
    noted = Noted(log)
    for event in start():
        log.append(event)
    log.after(noted)
    batch = log.take(1)
    assert noted.seen == []
    log.publish(batch, 1)
    assert noted.seen == [("committed", 0)]
    assert sink.told == [("ready", cursor)]


def test_an_effect_that_raises_stops_neither_the_others_nor_the_events() -> None:
    class Broken(Noted):
        def committed(self) -> None:
            raise RuntimeError("a caller is gone")

    log = make_log()
    noted = Noted(log)
    log.after(Broken(log))
    log.after(noted)
    say(log, *start())
    assert noted.seen == [("committed", 0)]
    assert log.head == 3


def test_what_is_dropped_uses_no_seq_and_is_told_to_its_effects() -> None:
    log = make_log()
    say(log, *start())
    noted = Noted(log)
    log.append(text_start())
    log.after(noted)
    log.take(1)
    log.append(delta("x"))
    log.drop_pending()
    say(log, text_start())
    assert [event["seq"] for event in everything(log)] == [1, 2, 3, 4]
    assert log.archive.fold.seq == 4


# -- reading and retention


def test_expiry_drops_whole_commits_oldest_first_by_age() -> None:
    log = make_log()
    say(log, *start(), now=10_000)
    say(log, text_start(), now=20_000)
    say(log, delta("a"), now=30_000)
    assert not log.expire(before=10_000, max_bytes=10**9)
    assert log.expire(before=20_001, max_bytes=10**9)
    assert (log.floor, [event["seq"] for event in everything(log, after=4)]) == (4, [5])


def test_expiry_holds_a_session_to_its_bytes() -> None:
    log = make_log()
    say(log, *start())
    for _ in range(10):
        say(log, text_start(part_id="p"), delta("x" * 1000))
    assert log.expire(before=0, max_bytes=5000)
    assert sum(map(len, held(log).values())) <= 5000
    assert min(held(log)) == log.floor + 1
    assert not log.expire(before=0, max_bytes=5000)


def test_reading_below_the_floor_is_refused_and_moves_nothing() -> None:
    log = make_log()
    say(log, *start(), now=10)
    log.expire(before=11, max_bytes=10**9)
    cursor = Cursor(log, Recorder(), "owner")
    cursor.seq = 2
    assert log.read(cursor, merge=True, limit=1000, force=True) is None
    assert cursor.seq == 2


def test_a_set_back_clock_keeps_what_is_younger_than_something_younger() -> None:
    log = make_log()
    say(log, *start(), now=100)
    say(log, text_start(), now=50)
    assert not log.expire(before=60, max_bytes=10**9)
    assert log.floor == 0


# -- epochs


def test_a_new_epoch_counts_from_its_commit_and_every_cursor_is_told() -> None:
    log = make_log()
    say(log, *start())
    sink = Recorder()
    cursor = Cursor(log, sink, "owner")
    log.cursors.add(cursor)
    log.renew_epoch()
    assert log.epoch == "ep"
    row = commit(log).session
    assert row is not None
    assert row.epoch == log.epoch == log.archive.fold.epoch != "ep"
    assert sink.told == [("reset", cursor)]


def test_an_epoch_that_could_not_be_stored_never_was() -> None:
    log = make_log()
    say(log, *start())
    log.renew_epoch()
    log.drop_pending()
    assert log.row_epoch == log.epoch == "ep"


# -- from the store


def reload(log: Log, commits: list[Any]) -> Log:
    again = make_log(log.session_id, log.epoch)
    again.restore(stored(log, commits))
    return again


def test_a_log_comes_back_from_its_chunks_as_it_was() -> None:
    log = make_log()
    commits = [say(log, *start(), now=1), say(log, text_start(), delta("a"), now=2)]
    again = reload(log, commits)
    assert (again.head, again.floor) == (5, 0)
    assert again.archive.fold.dump() == log.archive.fold.dump()
    assert everything(again) == everything(log)


def test_a_log_comes_back_from_checkpoint_and_chunks_at_any_moment() -> None:
    log = make_log()
    commits = []
    at = 0

    def note(*events: dict[str, Any]) -> None:
        nonlocal at
        at += 1
        commits.append(say(log, *events, now=at))
        again = reload(log, commits)
        assert again.head == log.head
        assert again.archive.fold.dump() == log.archive.fold.dump()
        assert again.archive.count == log.archive.count
        assert everything(again, after=again.floor) == everything(log, after=again.floor)

    for n in range(3):
        run, message, part = f"r{n}", f"m{n}", f"p{n}"
        note(*start(run, message))
        note(text_start(run, message, part), delta("one", run, message, part))
        log.expire(before=at - 1, max_bytes=10**9)
        log.compact()
        note(delta("two", run, message, part))
        note({"type": "text-end", "run_id": run, "message_id": message, "part_id": part}, *finish(run, message))
        log.compact()
        note()


def test_a_log_whose_chunks_are_all_gone_begins_at_its_checkpoint() -> None:
    log = make_log()
    turn(log, 1, now=1)
    log.expire(before=2, max_bytes=10**9)
    log.compact()
    again = reload(log, [commit(log)])
    assert (again.head, again.floor, held(again)) == (log.head, log.head, {})
    assert again.archive.fold.seq == log.head


def test_a_hole_in_the_stored_chunks_is_a_floor_and_not_a_gap() -> None:
    """A clock that was set back lets a sweep take a chunk from the middle."""
    log = make_log()
    turn(log, 1)
    log.compact()
    commits = [commit(log)]
    whole = [
        say(log, *start("r2", "m2")),
        say(log, text_start("r2", "m2", "p2")),
        say(log, delta("x", "r2", "m2", "p2")),
    ]
    log.compact()
    commits += [whole[0], whole[2], commit(log)]
    again = reload(log, commits)
    assert again.head == log.head
    assert again.floor == log.head - 1
    assert list(held(again)) == [log.head]
    assert again.archive.fold.dump() == log.archive.fold.dump()


def test_after_a_failure_of_unknown_fate_the_log_takes_over_what_was_committed_after_all() -> None:
    log = make_log()
    commits = [say(log, *start())]
    sink = Recorder()
    log.cursors.add(Cursor(log, sink, "owner"))
    log.append(text_start())
    commits.append(log.take(1).commit)
    log.drop_pending()
    found = stored(log, commits)
    log.catch_up(found)
    log.catch_up(found)
    assert (log.head, log.archive.fold.seq) == (4, 4)
    assert [event["seq"] for event in everything(log)] == [1, 2, 3, 4]
    assert sink.told[0][0] == "ready"


def test_taking_over_a_removal_of_messages_that_only_the_store_has_counts_right() -> None:
    log = make_log()
    commits = []
    for n in range(40):
        turn(log, n)
    log.compact()
    commits.append(commit(log))
    log.remove_from(10)
    log.append({"type": "messages-removed", "run_id": "r99", "from_message_id": "u-r5"})
    for event in start("r99", "m99"):
        log.append(event)
    unsure = log.take(1).commit
    log.drop_pending()
    assert unsure.remove_from == 10
    found = stored(log, [*commits, unsure])
    kept = type(found)(found.row, found.seq, found.checkpoint, found.chunks, 10)  # the store has carried it out
    log.catch_up(kept)
    assert (log.archive.window, log.archive.stored, log.archive.count) == (10, 10, 12)


# -- the writer


async def writer_of() -> tuple[Writer, FaultyStore]:
    store = FaultyStore(MemoryStore(), Ledger())
    await store.open()
    writer = Writer(store)
    writer.start()
    return writer, store


def written(writer: Writer, sid: int) -> Log:
    log = Log(writer, sid, f"s{sid}", "ep")
    log.describe = lambda: session_row(sid=sid, session_id=f"s{sid}")
    return log


async def test_the_writer_commits_all_sessions_in_one_transaction_and_tells_when_it_rests() -> None:
    writer, store = await writer_of()
    logs = [written(writer, sid) for sid in (1, 2, 3)]
    store.hold()
    for log in logs:
        for event in start():
            log.append(event)
    await asyncio.sleep(0)
    assert [log.head for log in logs] == [0, 0, 0]
    store.release()
    await writer.settled()
    assert [log.head for log in logs] == [3, 3, 3]
    await writer.stop()


async def test_what_comes_during_a_commit_goes_with_the_next_one() -> None:
    writer, store = await writer_of()
    log = written(writer, 1)
    store.hold()
    for event in [*start(), text_start()]:
        log.append(event)
    await asyncio.sleep(0)
    for text in "abc":
        log.append(delta(text))
    store.release()
    await writer.settled()
    assert [event["text"] for event in everything(log, after=4)] == ["abc"]
    await writer.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("full"), RuntimeError("a bug")])
async def test_a_failed_commit_drops_what_was_pending_tells_everybody_and_the_writer_goes_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, store = await writer_of()
    log = written(writer, 1)
    lost: list[int] = []
    log.lost = lambda: lost.append(log.head)
    noted = Noted(log)
    commits = store.inner.commit

    async def refuse(_: Any) -> None:
        raise error

    monkeypatch.setattr(store.inner, "commit", refuse)
    for event in start():
        log.append(event)
    log.after(noted)
    await writer.settled()
    assert (lost, noted.seen, log.head) == ([0], [("failed", 0)], 0)
    monkeypatch.setattr(store.inner, "commit", commits)
    for event in start():
        log.append(event)
    await writer.settled()
    assert log.head == 3
    await writer.stop()


async def test_stopping_commits_what_is_pending() -> None:
    writer, store = await writer_of()
    log = written(writer, 1)
    for event in start():
        log.append(event)
    await writer.stop()
    assert log.head == 3
    assert len(store.ledger.events["s1"]) == 3


def test_the_fold_of_a_log_is_the_fold_of_its_events() -> None:
    log = make_log()
    for n in range(3):
        turn(log, n)
    fold = Transcript()
    fold.epoch = "ep"
    for event in everything(log):
        assert fold.apply(event) == "applied"
    assert fold.state() == log.archive.fold.state()


def test_the_ring_is_cut_before_the_housekeeper_comes_where_events_flood_it() -> None:
    log = make_log("s")
    log.retain_bytes = 10_000
    say(log, *start())
    for n in range(100):
        say(log, text_start(part_id=f"p{n}"), delta("x" * 500, part_id=f"p{n}"))
        assert sum(map(len, held(log).values())) <= 10_000 * 9 // 8 + 1000
    assert log.cut
    assert log.floor + len(held(log)) == log.head
