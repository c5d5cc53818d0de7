"""The ring: whatever the pieces, a reader gets what it would get event by event."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.ring import PIECE_BYTES, SPAN_MS, Ring
from protocol.codec import BATCH_BYTES, EventEncoder, decode_message, message
from protocol.transcript import Transcript
from tests.protocol.streams import Frame, attached, logs, merge

if TYPE_CHECKING:
    from protocol.codec import Record


def records(log: list[Frame]) -> list[Record]:
    encoder = EventEncoder("s")
    return [encoder.encode(event) for event in log]


def ring_of(held: list[Record], *, now: int = 1000) -> Ring:
    ring = Ring()
    ring.add(held, now)
    return ring


def customs(*data: str) -> list[Frame]:
    return [
        {"type": "custom", "session_id": "s", "seq": seq, "run_id": "r", "name": "n", "data": text, "time": 1}
        for seq, text in enumerate(data, 1)
    ]


def deltas(*texts: str, start: int = 1, part_id: str = "p") -> list[Frame]:
    return [
        {"type": "text-delta", "session_id": "s", "seq": seq, "run_id": "r", "part_id": part_id, "text": text}
        for seq, text in enumerate(texts, start)
    ]


def one_by_one(
    held: list[Record], start: int, *, merging: bool, limit: int, force: bool
) -> tuple[list[bytes], int, int]:
    """Take frames from ``held[start:]`` the simple way: a record at a time."""
    out: list[bytes] = []
    size, index = 0, start
    while index < len(held) and size < limit:
        record, stop = held[index], index + 1
        data = record.data
        if merging and record.head is not None:
            texts = [record.text]
            room = limit - size - len(record.head) - 64 - len(record.text)
            while stop < len(held) and held[stop].head is record.head and len(held[stop].text) <= room:
                texts.append(held[stop].text)
                room -= len(held[stop].text)
                stop += 1
            if len(texts) > 1:
                last, text = held[stop - 1].seq, b"".join(texts)
                data = b'%b,"from":%d,"seq":%d,"text":"%b"}' % (record.head, record.seq, last, text)
        if (out or not force) and size + len(data) + 2 > limit:
            break
        out.append(data)
        size += len(data) + 1
        index = stop
    return out, index, size


@st.composite
def rings(draw: st.DrawFn) -> tuple[Ring, list[Record], list[Frame]]:
    """A log, cut into commits anywhere, at any times, in pieces of any size; and its records."""
    log = draw(logs())
    held = records(log)
    ring = Ring()
    most = draw(st.sampled_from([1, 200, 1000, PIECE_BYTES]))
    now = 1000
    start = 0
    while start < len(held):
        stop = draw(st.integers(start + 1, len(held)))
        ring.add(held[start:stop], now, most)
        now += draw(st.sampled_from([0, 10, SPAN_MS + 1, -50]))
        start = stop
    return ring, held, log


@given(
    rings(),
    st.integers(1, 3000) | st.just(BATCH_BYTES),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_any_pieces_give_the_bytes_that_single_events_give(
    drawn: tuple[Ring, list[Record], list[Frame]], limit: int, merging: bool, force: bool, data: st.DataObject
) -> None:
    ring, held, _ = drawn
    after = data.draw(st.integers(0, len(held)))
    while True:
        expected, stop, size = one_by_one(held, after, merging=merging, limit=limit, force=force)
        taken = ring.take(after, merge=merging, limit=limit, force=force)
        assert (taken.seq, taken.size) == (stop, size)
        if not expected:
            assert taken.parts == []
            return
        assert message(taken.parts, joined=taken.joined) == message(expected)
        assert taken.joined == (len(taken.parts) < len(expected))
        after = stop


@given(rings(), st.integers(1, 2000), st.booleans(), st.data())
def test_batches_of_any_size_carry_the_log_once(
    drawn: tuple[Ring, list[Record], list[Frame]], limit: int, merging: bool, data: st.DataObject
) -> None:
    ring, held, log = drawn
    start = data.draw(st.integers(0, len(held)))
    transcript = Transcript()
    for frame in [attached(), *log[:start]]:
        transcript.apply(json.loads(json.dumps(frame)))
    after = start
    while after < len(held):
        taken = ring.take(after, merge=merging, limit=limit)
        assert taken.seq > after
        text = message(taken.parts, joined=taken.joined)
        got = decode_message(text)
        assert len(text) <= limit or len(got) == 1
        assert text.startswith(b"[") == (len(got) > 1)
        for frame in got:
            assert frame.get("from", frame["seq"]) == transcript.seq + 1
            assert transcript.apply(frame) == "applied"
        assert transcript.seq == taken.seq
        after = taken.seq
    straight = Transcript()
    for frame in [attached(), *log]:
        straight.apply(json.loads(json.dumps(frame)))
    assert transcript.state() == straight.state()


@given(rings())
def test_merged_frames_are_the_deltas_of_one_part_joined(drawn: tuple[Ring, list[Record], list[Frame]]) -> None:
    ring, held, log = drawn
    taken = ring.take(0, merge=True, limit=BATCH_BYTES)
    assert taken.seq == len(held)
    if log:
        assert decode_message(message(taken.parts, joined=taken.joined)) == merge(log)


@given(rings())
def test_without_merge_every_event_is_its_own_frame(drawn: tuple[Ring, list[Record], list[Frame]]) -> None:
    ring, _, log = drawn
    taken = ring.take(0, merge=False, limit=BATCH_BYTES)
    if log:
        assert decode_message(message(taken.parts, joined=taken.joined)) == log


@given(rings(), st.integers(900, 6000), st.integers(0, 5000))
def test_what_is_dropped_is_the_oldest_and_the_rest_is_untouched(
    drawn: tuple[Ring, list[Record], list[Frame]], before: int, most: int
) -> None:
    ring, held, log = drawn
    assert ring.size == sum(len(record.data) for record in held)
    floor = ring.drop(before, most) or 0
    assert ring.size == sum(len(record.data) for record in held[floor:]) <= most
    assert ring.drop(before, most) is None
    taken = ring.take(floor, merge=False, limit=BATCH_BYTES)
    rest = decode_message(message(taken.parts, joined=taken.joined)) if taken.parts else []
    assert rest == log[floor:]


def test_a_frame_larger_than_a_batch_goes_alone() -> None:
    ring = ring_of(records(customs("a", "b" * BATCH_BYTES, "c")))
    seqs = [0]
    while seqs[-1] < 3:
        taken = ring.take(seqs[-1], merge=True, limit=BATCH_BYTES)
        seqs.append(taken.seq)
    assert seqs == [0, 1, 2, 3]


def test_without_force_a_frame_that_does_not_fit_waits() -> None:
    ring = ring_of(records([*customs("a" * 100), *deltas("b" * 100, start=2)]))
    for after in (0, 1):
        taken = ring.take(after, merge=True, limit=100, force=False)
        assert (taken.parts, taken.seq, taken.size) == ([], after, 0)


def test_a_merge_is_cut_at_the_limit() -> None:
    ring = ring_of(records(deltas(*["x" * 100] * 20)))
    taken = ring.take(0, merge=True, limit=1000)
    (frame,) = taken.parts
    assert taken.size <= 1000
    assert json.loads(frame)["seq"] == taken.seq < 20


def test_a_merge_reaches_over_pieces_but_not_over_what_stands_between() -> None:
    held = records([*deltas("a", "b"), *deltas("c", "d", start=3), *deltas("e", start=5, part_id="q")])
    ring = Ring()
    for number, record in enumerate(held):
        ring.add([record], number * (SPAN_MS + 1))
    frames = [json.loads(part) for part in ring.take(1, merge=True, limit=BATCH_BYTES).parts]
    assert [(frame.get("from"), frame["seq"], frame["text"]) for frame in frames] == [(2, 4, "bcd"), (None, 5, "e")]


def test_what_was_committed_later_than_a_piece_spans_outlives_it() -> None:
    held = records(deltas(*"abcd"))
    ring = Ring()
    for record, now in zip(held, (0, SPAN_MS, SPAN_MS + 1, SPAN_MS + 2), strict=True):
        ring.add([record], now)
    assert ring.drop(SPAN_MS, 10**9) is None, "a piece is kept as long as the newest of it"
    assert ring.drop(SPAN_MS + 1, 10**9) == 2
    assert ring.drop(SPAN_MS + 3, 10**9) == 4
    assert ring.take(4, merge=True, limit=BATCH_BYTES).parts == []


@pytest.mark.parametrize("merging", [True, False])
def test_what_was_taken_does_not_change_when_more_is_added(merging: bool) -> None:
    held = records([*deltas("a", "b"), *customs("x", "y", "z", "w")[2:]])
    ring = ring_of(held[:1])
    first = ring.take(0, merge=merging, limit=BATCH_BYTES)
    ring.add(held[1:3], 1000)
    second = ring.take(2, merge=merging, limit=BATCH_BYTES)
    ring.add(held[3:], 1000)
    assert first.parts == [held[0].data]
    assert second.parts == [held[2].data]
