"""Where a session's messages are: in the fold, in the store, in a snapshot that has to stay small."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.archive import SNAPSHOT_BYTES, SNAPSHOT_MESSAGES, Archive, cut_text, fit
from protocol.codec import MAX_MESSAGE_BYTES, encode
from tests.support_log import delta, finish, make_log, say, start, stored, text_start, turn

Message = dict[str, Any]


def snapshot(archive: Archive) -> dict[str, Any]:
    data = archive.snapshot("s")
    assert len(data) <= MAX_MESSAGE_BYTES
    found: dict[str, Any] = json.loads(data)
    return found


def part(text: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "text", "part_id": "p", "text": text, "state": "done", **fields}


def assistant(*parts: dict[str, Any]) -> Message:
    end: Message = {"finish_reason": "stop", "usage": None, "error": None, "created_at": 1, "completed_at": 2}
    return {"id": "m", "role": "assistant", "run_id": "r", "parts": list(parts), **end}


# -- snapshots


def test_a_snapshot_has_the_newest_fifty_messages_and_says_that_there_are_more() -> None:
    log = make_log()
    for n in range(30):
        turn(log, n)
    found = snapshot(log.archive)
    assert len(found["messages"]) == SNAPSHOT_MESSAGES
    assert found["messages"] == log.archive.fold.messages[-50:]
    assert found["has_more"] is True
    assert (found["seq"], found["epoch"], found["status"], found["run_id"]) == (log.head, "ep", "idle", None)


def test_a_small_session_is_whole_in_its_snapshot() -> None:
    log = make_log()
    turn(log, 1)
    assert snapshot(log.archive)["has_more"] is False


def test_a_snapshot_stays_within_1_mib_by_leaving_older_messages_out() -> None:
    log = make_log()
    for n in range(4):
        turn(log, n, "x" * 400_000)
    found = snapshot(log.archive)
    assert found["messages"] == log.archive.fold.messages[-len(found["messages"]) :]
    assert 1 <= len(found["messages"]) < 8
    assert found["has_more"] is True


def test_a_message_that_alone_is_too_large_is_cut_and_marked_but_there() -> None:
    log = make_log()
    say(log, *start(), text_start())
    for _ in range(3):
        say(log, delta("é" * 300_000))
    (message,) = snapshot(log.archive)["messages"]
    assert message["parts"][0]["truncated"] is True
    assert len(message["parts"][0]["text"]) > 400_000
    assert len(log.archive.fold.messages[-1]["parts"][0]["text"]) == 900_000, "the fold itself is not touched"


def test_queued_prompts_leave_room_for_the_messages_in_a_snapshot() -> None:
    log = make_log()
    say(log, *start(), text_start(), delta("the answer"))
    for n in range(16):
        message = start(text="q" * 900_000)[0]["message"] | {"id": f"q{n}"}
        say(log, {"type": "queued", "run_id": f"q{n}", "message": message})
    found = snapshot(log.archive)
    assert [entry["run_id"] for entry in found["queue"]] == [f"q{n}" for n in range(16)]
    assert found["queue"][0]["message"]["parts"][0]["truncated"] is True
    assert found["messages"][-1]["parts"][0]["text"] == "the answer"


def test_open_approvals_leave_room_for_the_messages_in_a_snapshot() -> None:
    log = make_log()
    say(log, *start())
    for n in range(3):
        call = {"run_id": "r", "call_id": f"c{n}", "tool": "t", "input": {"text": "y" * 400_000}}
        say(log, {"type": "tool-call", "message_id": "m", "part_id": f"p{n}", **call})
        say(log, {"type": "approval-request", "request_id": f"q{n}", **call})
    found = snapshot(log.archive)
    assert [entry["request_id"] for entry in found["pending"]] == ["q0", "q1", "q2"]
    assert [p["call_id"] for p in found["messages"][-1]["parts"]] == ["c0", "c1", "c2"]


# -- cutting


@pytest.mark.parametrize("name", ["output", "input", "progress", "data"])
def test_values_are_cut_as_their_json(name: str) -> None:
    message = assistant({"type": "tool", "part_id": "p", name: {"rows": ['é\n"' * 100] * 100}})
    small = fit(message, 2000)
    assert len(encode(small)) <= 2000
    assert small["parts"][0][name].startswith('{"rows"')
    assert small["parts"][0]["truncated"] is True


def test_open_parts_are_cut_last() -> None:
    message = assistant(part("o" * 6000, state="streaming"), part("d" * 6000))
    small = fit(message, 12_100)
    assert len(small["parts"][0]["text"]) == 6000
    assert len(small["parts"][1]["text"]) < 6000


def test_a_message_of_very_many_parts_is_cut_in_linear_time() -> None:
    """Thousands of small tool results: measuring the whole message for each took minutes of the loop's time."""
    tool = {"type": "tool", "tool": "t", "state": "output-available", "output": "x" * 300}
    message = assistant(*({**tool, "part_id": f"p{n}", "call_id": f"c{n}"} for n in range(8000)))
    size = len(encode(message))
    calls = 0

    def count(value: Any) -> bytes:
        nonlocal calls
        calls += len(encode(value))
        return encode(value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.archive.encode", count)
        small = fit(message, SNAPSHOT_BYTES)
    assert len(encode(small)) <= SNAPSHOT_BYTES
    assert calls < 30 * size


def test_of_parts_that_cannot_be_cut_the_oldest_closed_ones_go() -> None:
    parts = [{"type": "custom", "name": f"n{n}", "data": None} for n in range(100)]
    message = assistant(part("still growing", state="streaming"), *parts)
    small = fit(message, 2000)
    assert len(encode(small)) <= 2000
    assert small["parts"][0]["state"] == "streaming"
    assert small["parts"][-1]["name"] == "n99"


def test_metadata_that_leaves_no_room_goes() -> None:
    message = {"id": "u", "role": "user", "parts": [part("hi")], "created_at": 1, "metadata": {"a": "x" * 5000}}
    small = fit(message, 1000)
    assert len(encode(small)) <= 1000
    assert "metadata" not in small


_values = st.none() | st.text(max_size=300) | st.lists(st.text(max_size=40), max_size=8)


@given(
    parts=st.lists(
        st.fixed_dictionaries(
            {"type": st.just("tool"), "state": st.sampled_from(["running", "output-available"])},
            optional=dict.fromkeys(("text", "output", "input", "raw_input", "error", "data"), _values),
        ),
        max_size=8,
    ),
    limit=st.integers(300, 3000),
)
def test_whatever_a_message_holds_it_fits_afterwards_and_is_itself_unchanged(parts: list[Any], limit: int) -> None:
    message = assistant(*parts)
    before = encode(message)
    assert len(encode(fit(message, limit))) <= limit
    assert encode(message) == before


@given(text=st.text(), limit=st.integers(0, 60))
def test_text_is_cut_by_what_it_takes_as_json(text: str, limit: int) -> None:
    cut = cut_text(text, limit)
    assert len(encode(cut)) - 2 <= limit
    assert text.startswith(cut)
    if cut != text and limit >= 64:  # of a few characters, one escape is half
        following = text[: len(cut) + 1]
        assert len(encode(following)) - 2 > limit // 2, "not more than needed, by and large"


# -- compaction


def test_compaction_stores_finished_messages_once_and_keeps_open_ones_in_the_checkpoint() -> None:
    log = make_log()
    turn(log, 1)
    say(log, *start("r2", "m2"), text_start("r2", "m2", "p2"), delta("half", "r2", "m2", "p2"))
    log.compact()
    first = say(log).compaction
    assert first is not None
    assert [row.position for row in first.messages] == [0, 1, 2]
    checkpoint = json.loads(first.checkpoint)
    assert [message["id"] for message in checkpoint["messages"]] == ["m2"]
    assert checkpoint["messages"][0]["parts"][0]["text"] == "half"
    say(log, *finish("r2", "m2"))
    log.compact()
    second = say(log).compaction
    assert second is not None
    assert [row.message_id for row in second.messages] == ["m2"]


def test_after_compaction_only_fifty_messages_stay_in_memory_and_the_count_is_right() -> None:
    log = make_log()
    for n in range(40):
        turn(log, n)
    log.compact()
    say(log)
    assert len(log.archive.fold.messages) == SNAPSHOT_MESSAGES
    assert (log.archive.window, log.archive.stored, log.archive.count) == (30, 80, 80)
    assert log.archive.position("m39") == 79
    assert log.archive.position("m1") is None
    assert [m["id"] for m in log.archive.slice(29, 32)] == ["u-r15", "m15"]
    assert snapshot(log.archive)["has_more"] is True


def test_a_message_that_is_removed_from_memory_is_also_no_longer_counted_as_stored() -> None:
    log = make_log()
    for n in range(3):
        turn(log, n)
    log.compact()
    say(log)
    log.remove_from(2)
    say(log, {"type": "messages-removed", "run_id": "r9", "from_message_id": "u-r1"}, *start("r9", "m9"))
    assert (log.archive.stored, log.archive.count) == (2, 4)


def test_a_message_that_is_removed_from_the_store_empties_the_memory() -> None:
    log = make_log()
    for n in range(40):
        turn(log, n)
    log.compact()
    say(log)
    log.remove_from(10)
    say(log, {"type": "messages-removed", "run_id": "r9", "from_message_id": "u-r5"}, *start("r99", "m99"))
    assert (log.archive.window, log.archive.stored, log.archive.count) == (10, 10, 12)


def test_restoring_puts_the_newest_stored_messages_before_the_fold() -> None:
    log = make_log()
    commits = []
    for n in range(40):
        turn(log, n)
    log.compact()
    commits.append(say(log))
    archive = Archive()
    found = stored(log, commits)
    archive.restore(found)
    archive.finish_restore(found.tail)
    assert archive.fold.messages == log.archive.fold.messages
    assert (archive.window, archive.stored, archive.count) == (30, 80, 80)
    assert archive.seen == log.archive.seen


def test_ids_of_user_messages_are_remembered_when_events_are_read_back() -> None:
    archive = Archive()
    archive.note_ids({"type": "message-added", "message": {"id": "theirs"}})
    archive.note_ids({"type": "tool-call", "message_id": "m", "part_id": "p", "call_id": "c"})
    archive.note_ids({"type": "approval-request", "call_id": "c", "request_id": "q"})
    assert archive.seen == {"theirs", "m", "p", "c", "q"}
