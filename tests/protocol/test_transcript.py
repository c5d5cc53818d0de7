"""The fold: vectors, and what must hold for every stream."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import events
from protocol.transcript import _HANDLERS, Transcript
from tests.protocol.streams import VECTORS, Frame, attached, load_vector, logs, merge

if TYPE_CHECKING:
    from pathlib import Path


def fold(frames: list[Frame]) -> Transcript:
    transcript = Transcript()
    for frame in copy.deepcopy(frames):
        transcript.apply(frame)
    return transcript


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector(path: Path) -> None:
    vector = load_vector(path)
    assert vector["name"] == path.stem
    assert fold(vector["frames"]).state() == vector["state"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_vector_looked_at_after_every_frame(path: Path) -> None:
    vector = load_vector(path)
    transcript = Transcript()
    for frame in vector["frames"]:
        transcript.apply(frame)
        json.dumps(transcript.state())
    assert transcript.state() == vector["state"]


def test_vectors_are_all_there() -> None:
    assert len(VECTORS) >= 32


@given(logs(), st.data())
def test_merged_is_unmerged(log: list[Frame], data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(log))))
    merged = merge(log, cuts)
    assert fold([attached(), *merged]).dump() == fold([attached(), *log]).dump()


@given(logs(), st.data())
def test_reconnects_duplicates_and_gaps_end_in_the_same_state(log: list[Frame], data: st.DataObject) -> None:
    transcript = Transcript()
    straight = fold([attached(), *log])
    transcript.apply(attached())
    for _ in range(data.draw(st.integers(0, 4))):
        # A socket that brings some of what follows, some of it twice, perhaps with a hole; then it breaks.
        start = data.draw(st.integers(0, transcript.seq))
        stop = data.draw(st.integers(start, len(log)))
        for event in copy.deepcopy(log[start:stop]):
            if data.draw(st.integers(0, 9)) > 0:
                transcript.apply(event)
        transcript.apply(attached(len(log), recovery="replay", status="running"))
    cut = transcript.seq
    for event in merge(copy.deepcopy(log[cut:])):
        assert transcript.apply(event) == "applied"
    assert transcript.state() == straight.state()


@given(logs(), st.data())
def test_load_of_a_dump_continues_the_fold(log: list[Frame], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(log)))
    before = fold([attached(), *log[:cut]])
    transcript = Transcript()
    transcript.load(json.loads(json.dumps(before.dump())))
    for event in copy.deepcopy(log[cut:]):
        transcript.apply(event)
    expected = fold([attached(), *log])
    assert json.loads(json.dumps(transcript.dump())) == json.loads(json.dumps(expected.dump()))


@given(logs(), st.data())
def test_looking_does_not_change_the_fold(log: list[Frame], data: st.DataObject) -> None:
    looks = data.draw(st.sets(st.integers(0, len(log))))
    transcript = Transcript()
    transcript.apply(attached())
    for event in copy.deepcopy(log):
        transcript.apply(event)
        if event["seq"] in looks:
            transcript.state()
    assert transcript.state() == fold([attached(), *log]).state()


_types = sorted([*_HANDLERS, "attached", "snapshot", "run-unknown"])
_junk_value = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["msg_2", "prt_3", "call_3", "run_1", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "role", "parts", "type", "completed_at", "part_id"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)
_fields = [
    "message_id",
    "part_id",
    "call_id",
    "text",
    "message",
    "usage",
    "error",
    "status",
    "recovery",
    "epoch",
    "messages",
    "pending",
    "queue",
    "run_id",
    "request_id",
    "decision",
    "input",
    "time",
    "step",
    "from_message_id",
    "finish_reason",
    "from",
    "truncated",
    "data",
    "name",
    "tool",
]
_junk = st.builds(
    lambda base, extra: base | extra,
    st.fixed_dictionaries({"type": st.sampled_from(_types), "seq": _junk_value}),
    st.dictionaries(st.sampled_from(_fields), _junk_value, max_size=8),
) | st.dictionaries(st.sampled_from(["type", "seq", *_fields]), _junk_value, max_size=5)


@given(logs(), st.lists(st.tuples(_junk, st.booleans()), max_size=12))
def test_junk_never_raises(log: list[Frame], junk: list[tuple[dict[str, Any], bool]]) -> None:
    transcript = fold([attached(), *log])
    for frame, in_order in junk:
        if in_order:
            frame["seq"] = transcript.seq + 1
        assert transcript.apply(frame) in ("applied", "dropped", "gap")
        transcript.state()
        transcript.dump()


def test_a_malformed_event_takes_its_seq_and_changes_nothing() -> None:
    for path in VECTORS:
        vector = load_vector(path)
        for kind in sorted(_HANDLERS):
            transcript = fold(vector["frames"])
            before = copy.deepcopy(transcript.dump())
            assert transcript.apply({"type": kind, "seq": transcript.seq + 1}) == "applied"
            if kind in ("abort-requested",):
                continue  # has no field that the fold needs
            assert transcript.dump() == before | {"seq": before["seq"] + 1}, kind


def test_a_malformed_snapshot_replaces_nothing() -> None:
    transcript = fold(load_vector(VECTORS[0])["frames"])
    before = copy.deepcopy(transcript.dump())
    assert transcript.apply({"type": "snapshot", "seq": 99, "messages": [1]}) == "dropped"
    assert transcript.apply({"type": "attached", "seq": 99}) == "dropped"
    assert transcript.dump() == before


def test_a_later_event_is_a_gap_and_an_old_one_is_dropped() -> None:
    transcript = fold([attached(5)])
    assert transcript.apply({"type": "retry", "seq": 5}) == "dropped"
    assert transcript.apply({"type": "retry", "seq": 7}) == "gap"
    assert transcript.seq == 5
    assert transcript.apply({"type": "retry", "from": 6, "seq": 8}) == "applied"
    assert transcript.seq == 8


def test_a_frame_without_seq_is_not_for_the_fold() -> None:
    transcript = Transcript()
    assert transcript.apply({"type": "pong"}) == "dropped"
    assert transcript.apply({"type": "run-start", "seq": True}) == "dropped"
    assert transcript.apply({"seq": 1}) == "dropped"


def test_a_delta_of_an_unknown_part_does_not_wait_for_that_part() -> None:
    transcript = fold(load_vector(VECTORS[0])["frames"])
    run: Frame = {"run_id": "r", "message_id": "m", "part_id": "later"}
    seq = transcript.seq
    log: list[Frame] = [
        {"type": "message-start", "role": "assistant", "time": 1},
        {"type": "text-delta", "text": "early"},
        {"type": "text-start", "time": 1},
        {"type": "text-delta", "text": "late"},
    ]
    for offset, event in enumerate(log, 1):
        transcript.apply(run | event | {"seq": seq + offset})
    assert transcript.messages[-1]["parts"][0]["text"] == "late"


def test_role_and_resumable_are_kept_beside_the_state() -> None:
    transcript = fold([attached(role="observer")])
    assert transcript.role == "observer"
    aborted = fold(load_vector(next(path for path in VECTORS if path.stem.startswith("04")))["frames"])
    assert aborted.resumable
    assert not fold(load_vector(VECTORS[0])["frames"]).resumable


def test_the_open_step_and_its_usage_are_what_a_server_needs_to_close_it() -> None:
    vector = load_vector(next(path for path in VECTORS if path.stem.startswith("03")))
    frames = vector["frames"]
    second = next(i for i, frame in enumerate(frames) if frame["type"] == "step-start" and frame["step"] == 2)
    transcript = fold(frames[: second + 1])
    assert transcript.open_step == ("msg_a1", 2)
    assert transcript.usage == {"input_tokens": 12, "output_tokens": 4}


def test_every_event_type_is_known_to_the_fold_or_says_nothing_to_it() -> None:
    kinds: set[str] = set()
    for model in get_args(events.Event):
        kinds.update(get_args(get_type_hints(model)["type"]))
    assert kinds - set(_HANDLERS) == {"retry"}
    assert set(_HANDLERS) <= kinds
