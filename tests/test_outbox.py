"""What one connection is sent, and in which order; no loop, no socket."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.outbox import ATTACH_COST, QUANTUM, REPLY_BYTES, Outbox
from protocol.codec import BATCH_BYTES, MAX_MESSAGE_BYTES
from tests.support_log import (
    commit,
    delta,
    finish,
    frames_in,
    frames_of,
    make_log,
    messages_of,
    say,
    start,
    text_start,
    turn,
)

if TYPE_CHECKING:
    from gateway.log import Log


class Bell:
    def __init__(self) -> None:
        self.rung = 0

    def __call__(self) -> None:
        self.rung += 1


def outbox(*, batch: bool = False) -> Outbox:
    return Outbox(Bell(), batch=batch)


def pong(n: int, size: int = 0) -> dict[str, Any]:
    return {"type": "pong", "id": f"{n}", **({"pad": "x" * size} if size else {})}


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["type"] for frame in frames]


def streaming(session_id: str, count: int, size: int) -> Log:
    """A log with `count` deltas of `size` characters that do not merge (each part its own)."""
    log = make_log(session_id)
    say(log, *start())
    for n in range(count):
        say(log, text_start(part_id=f"p{n}"), delta("x" * size, part_id=f"p{n}"))
    return log


# -- order


def test_replies_go_in_their_order_and_wake_the_pump() -> None:
    bell = Bell()
    out = Outbox(bell)
    out.reply(pong(1))
    out.reply(pong(2))
    assert bell.rung == 2
    assert [frame["id"] for frame in frames_of(out)] == ["1", "2"]
    assert out.next_message() is None


def test_one_frame_a_message_unless_a_batch_was_asked_for() -> None:
    single, batch = outbox(), outbox(batch=True)
    for out in (single, batch):
        out.reply(pong(1))
        out.reply(pong(2))
    assert len(messages_of(single)) == 2
    assert [len(frames_in(message)) for message in messages_of(batch)] == [2]


@pytest.mark.parametrize("batch", [False, True])
def test_replies_overtake_events_and_list_changes(batch: bool) -> None:
    log = make_log()
    say(log, *start())
    out = outbox(batch=batch)
    out.attach(log, "owner", epoch="ep", seq=0)
    assert kinds(frames_in(out.next_message() or b""))[0] == "attached"
    say(log, text_start())
    out.change({"type": "session-changed", "session_id": "s", "title": None})
    out.reply(pong(1))
    order = kinds(frames_of(out))
    assert order[0] == "pong"
    assert order[1] == "session-changed"
    assert order[-1] == "text-start"


def test_without_events_only_replies_are_given() -> None:
    log = make_log()
    say(log, *start())
    out = outbox()
    out.attach(log, "owner", epoch="ep", seq=0)
    out.reply(pong(1))
    out.change({"type": "session-changed", "session_id": "s"})
    got = []
    while (message := out.next_message(events=False)) is not None:
        got += frames_in(message)
    assert kinds(got) == ["attached", "pong"]


def test_of_a_sessions_changes_only_the_newest_waits() -> None:
    out = outbox()
    for title in ("a", "b"):
        out.change({"type": "session-changed", "session_id": "one", "title": title})
    out.change({"type": "session-changed", "session_id": "two", "title": "c"})
    assert [frame["title"] for frame in frames_of(out)] == ["b", "c"]


# -- attaching


def test_attached_comes_before_every_event_of_its_cursor() -> None:
    log = make_log()
    out = outbox()
    out.attach(log, "owner", epoch="ep", seq=0)
    say(log, *start())
    assert kinds(frames_of(out)) == ["attached", "message-added", "run-start", "message-start"]


@pytest.mark.parametrize(
    ("epoch", "seq", "recovery"),
    [
        ("ep", 3, "live"),
        ("ep", 1, "replay"),
        ("ep", 0, "replay"),
        (None, 0, "replay"),
        ("other", 0, "replay"),
        ("other", 3, "snapshot"),
        (None, 3, "snapshot"),
        ("ep", None, "snapshot"),
        ("ep", 4, "snapshot"),
    ],
)
def test_recovery_is_decided_by_epoch_and_seq(epoch: str | None, seq: int | None, recovery: str) -> None:
    log = make_log()
    say(log, *start())
    out = outbox()
    out.attach(log, "observer", id_="a", epoch=epoch, seq=seq)
    attached, *rest = frames_of(out)
    assert (attached["recovery"], attached["seq"], attached["role"], attached["id"]) == (recovery, 3, "observer", "a")
    if recovery == "snapshot":
        assert kinds(rest) == ["snapshot"]
        assert rest[0]["seq"] == 3
    else:
        assert [frame["seq"] for frame in rest] == list(range((seq or 0) + 1, 4))


def test_below_the_floor_there_is_a_snapshot_also_from_zero() -> None:
    log = make_log()
    say(log, *start(), now=1)
    say(log, text_start(), now=2000)
    log.expire(before=2000, max_bytes=10**9)
    for seq in (0, 2):
        out = outbox()
        out.attach(log, "owner", epoch="ep", seq=seq)
        assert kinds(frames_of(out)) == ["attached", "snapshot"]
    out = outbox()
    out.attach(log, "owner", epoch="ep", seq=3)
    assert kinds(frames_of(out)) == ["attached", "text-start"], "the floor itself is held"


@pytest.mark.parametrize("batch", [False, True])
def test_a_live_cursor_that_falls_below_the_floor_gets_a_snapshot_and_goes_on(batch: bool) -> None:
    log = make_log()
    out = outbox(batch=batch)
    out.attach(log, "owner", epoch="ep", seq=0)
    assert kinds(frames_of(out)) == ["attached"]
    say(log, *start(), now=1)
    log.expire(before=2, max_bytes=10**9)
    got = frames_of(out)
    assert kinds(got) == ["attached", "snapshot"]
    assert got[1]["seq"] == 3
    say(log, text_start())
    assert [frame["seq"] for frame in frames_of(out)] == [4]


def test_attaching_again_replaces_the_cursor() -> None:
    log = make_log()
    say(log, *start())
    out = outbox()
    out.attach(log, "owner", epoch="ep", seq=3)
    frames_of(out)
    out.attach(log, "observer", epoch="ep", seq=1)
    assert len(log.cursors) == 1
    assert [frame.get("recovery", frame["seq"]) for frame in frames_of(out)] == ["replay", 2, 3]


def test_a_prompts_own_attachment_shows_the_log_of_its_moment() -> None:
    log = make_log()
    say(log, *start("a", "ma"), *finish("a", "ma"))
    out = outbox()
    out.attach(log, "owner", epoch="ep", now=True)
    say(log, *start("b", "mb"))
    attached, snapshot, *events = frames_of(out)
    assert (attached["seq"], snapshot["seq"]) == (5, 5)
    assert [event["seq"] for event in events] == [6, 7, 8]


def test_a_prompts_own_attachment_waits_where_its_snapshot_would_cost_too_much() -> None:
    log = make_log()
    turn(log, 1, "x" * (REPLY_BYTES + 1))
    out = outbox()
    out.reply(pong(1))
    out.attach(log, "owner", epoch="ep", now=True)
    assert not out.overflowed
    assert kinds(frames_of(out)) == ["pong", "attached", "snapshot"]


def test_after_detaching_nothing_of_the_session_comes() -> None:
    log = make_log()
    say(log, *start())
    out = outbox()
    out.attach(log, "owner", epoch="ep", seq=0)
    assert out.next_message() is not None
    assert out.detach("s")
    assert not out.detach("s")
    say(log, text_start())
    assert out.next_message() is None
    assert log.cursors == set()


def test_a_subscription_that_ends_says_why_and_only_once() -> None:
    log = make_log()
    out = outbox()
    out.attach(log, "owner")
    frames_of(out)
    (cursor,) = log.cursors
    out.end(cursor, "deleted")
    out.end(cursor, "deleted")
    assert frames_of(out) == [{"type": "detached", "session_id": "s", "reason": "deleted"}]


def test_a_new_epoch_is_told_to_every_cursor_as_attached_and_snapshot() -> None:
    log = make_log()
    say(log, *start())
    first, second = outbox(), outbox(batch=True)
    for out in (first, second):
        out.attach(log, "owner", epoch="ep", seq=3)
        frames_of(out)
    log.renew_epoch()
    commit(log)
    for out in (first, second):
        attached, snapshot = frames_of(out)
        assert attached["epoch"] == snapshot["epoch"] == log.epoch != "ep"


def test_a_cleared_outbox_holds_nothing_and_no_log_holds_it() -> None:
    log = make_log()
    out = outbox()
    out.attach(log, "owner")
    out.reply(pong(1))
    out.change({"type": "session-changed", "session_id": "s"})
    out.clear()
    assert out.next_message() is None
    assert log.cursors == set()


# -- bounds


def test_replies_that_nobody_reads_overflow() -> None:
    out = outbox()
    out.reply(pong(0, 10))
    while not out.overflowed:
        out.reply(pong(1, 10_000))
    assert out._front_bytes <= REPLY_BYTES + 11_000


def test_a_single_reply_of_any_size_does_not_overflow() -> None:
    out = outbox()
    out.reply(pong(1, REPLY_BYTES * 3))
    assert not out.overflowed
    assert not out.crowded


def test_replies_that_are_read_never_add_up() -> None:
    out = outbox()
    for n in range(100):
        out.reply(pong(n, 10_000))
        out.reply(pong(n, 10_000))
        frames_of(out)
    assert not out.overflowed
    assert out._front_bytes == 0


def test_it_is_crowded_before_it_overflows() -> None:
    out = outbox()
    while not out.crowded:
        out.reply(pong(1, 1000))
    assert not out.overflowed


def test_a_thousand_attachments_fit_and_are_answered_in_order() -> None:
    out = outbox(batch=True)
    for n in range(1000):
        log = make_log(f"s{n}")
        turn(log, 1, "x" * 1000)
        out.attach(log, "owner")
    assert not out.overflowed
    assert out._front_bytes == 1000 * ATTACH_COST
    got = [frame for frame in frames_of(out) if frame["type"] == "attached"]
    assert [frame["session_id"] for frame in got] == [f"s{n}" for n in range(1000)]
    assert out._front_bytes == 0


@given(sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=12), changes=st.integers(0, 3))
def test_no_batch_is_larger_than_64_kib_but_a_frame_that_is_alone(sizes: list[int], changes: int) -> None:
    out = outbox(batch=True)
    for n, size in enumerate(sizes):
        out.reply(pong(n, size))
    for n in range(changes):
        out.change({"type": "session-changed", "session_id": f"{n}", "title": "x" * 20_000})
    got = messages_of(out)
    for message in got:
        assert len(message) <= BATCH_BYTES or len(frames_in(message)) == 1
    assert sum(len(frames_in(message)) for message in got) == len(sizes) + changes


@pytest.mark.parametrize("spare", range(-3, 4))
@pytest.mark.parametrize("kind", ["replies", "changes", "events"])
def test_a_batch_is_filled_to_the_byte_and_not_past_it(spare: int, kind: str) -> None:
    """Two frames of which the second just fits, or just does not."""
    out = outbox(batch=True)
    pad = BATCH_BYTES - 2 - 1 - 2 * len(json.dumps(pong(1, 1), separators=(",", ":"))) + 2 - spare
    if kind == "replies":
        out.reply(pong(1, pad // 2))
        out.reply(pong(2, pad - pad // 2))
    elif kind == "changes":
        out.reply(pong(1, pad // 2))
        out.change({"type": "session-changed", "session_id": "s", "title": "x" * (pad - pad // 2 - 29)})
    else:
        log = make_log()
        say(log, {"type": "tool-progress", "run_id": "r", "call_id": "c", "data": "x" * (pad - pad // 2 - 60)})
        out.reply(pong(1, pad // 2))
        out.attach(log, "owner", seq=0)
    got = messages_of(out)
    assert max(len(message) for message in got) <= BATCH_BYTES


def test_a_large_event_goes_alone_and_within_1_mib() -> None:
    log = make_log()
    say(log, *start(), text_start())
    out = outbox(batch=True)
    out.attach(log, "owner", epoch="ep", seq=4)
    frames_of(out)
    say(log, delta("x" * 500_000))
    say(log, {"type": "text-end", "run_id": "r", "message_id": "m", "part_id": "p"})
    first, second = messages_of(out)
    assert kinds(frames_in(first)) == ["text-delta"]
    assert len(first) < MAX_MESSAGE_BYTES
    assert kinds(frames_in(second)) == ["text-end"]


def test_deltas_merge_in_a_batch_from_the_cursor_on() -> None:
    log = make_log()
    say(log, *start(), text_start())
    for text in "abcd":
        say(log, delta(text))
    out = outbox(batch=True)
    out.attach(log, "owner", epoch="ep", seq=5)
    merged = frames_of(out)[-1]
    assert (merged["from"], merged["seq"], merged["text"]) == (6, 8, "bcd")
    single = outbox()
    single.attach(log, "owner", epoch="ep", seq=5)
    assert [frame["text"] for frame in frames_of(single)[1:]] == ["b", "c", "d"]


# -- fairness


@pytest.mark.parametrize("batch", [False, True])
def test_sessions_take_turns(batch: bool) -> None:
    logs = [streaming(f"s{n}", 40, 2000) for n in range(3)]
    out = outbox(batch=batch)
    for log in logs:
        out.attach(log, "owner", epoch="ep", seq=0)
    counts = dict.fromkeys(("s0", "s1", "s2"), 0)
    while (message := out.next_message()) is not None:
        for frame in frames_in(message):
            if frame["type"] != "attached":
                counts[frame["session_id"]] += len(json.dumps(frame))
        behind = [counts[log.session_id] for log in logs if out.cursors[log.session_id].seq < log.head]
        if len(behind) > 1:
            assert max(behind) - min(behind) <= 2 * QUANTUM
    assert all(out.cursors[log.session_id].seq == log.head for log in logs)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("size", [QUANTUM + 1000, 60_000, 200_000])
def test_a_session_with_large_events_is_not_starved_by_busy_ones(batch: bool, size: int) -> None:
    busy = [streaming(f"busy{n}", 5, 3000) for n in range(2)]
    large = make_log("large")
    say(large, *start(), text_start())
    out = outbox(batch=batch)
    for log in (*busy, large):
        out.attach(log, "owner", epoch="ep", seq=log.head)
    frames_of(out)
    for n in range(30):  # two sessions that always have something more
        for log in busy:
            for k in range(10):
                say(log, text_start(part_id=f"q{n}-{k}"), delta("y" * 3000, part_id=f"q{n}-{k}"))
        if n == 0:
            say(large, delta("x" * size))
        message = out.next_message()
        assert message is not None
        if any(frame["session_id"] == "large" for frame in frames_in(message)):
            break
    assert out.cursors["large"].seq == large.head, "it got its turn among thirty messages"


@pytest.mark.parametrize("batch", [False, True])
def test_a_session_that_is_told_of_nothing_new_holds_nobody_up(batch: bool) -> None:
    """As after a failed store: every cursor is told to look, and some have seen all there is."""
    box = outbox(batch=batch)
    quiet, busy = streaming("quiet", 1, 10), streaming("busy", 3, 10)
    for log in (quiet, busy):
        box.attach(log, "owner", epoch=log.epoch, seq=log.head)
    messages_of(box)
    (cursor,) = quiet.cursors
    box.ready(cursor)
    say(busy, text_start(part_id="last"), delta("more", part_id="last"))
    assert kinds(frames_of(box)) == ["text-start", "text-delta"]
