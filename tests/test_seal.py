"""One order in which everything that is open ends, for every mixture of open things and every ending."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.seal import LOST, Ending, OpenTurn, aborted, closing_events, open_turn
from protocol.messages import ABORT_ERROR, LOST_ERROR
from protocol.transcript import Transcript
from tests.e2e.support import CLOSING
from tests.support_log import delta, make_log, say, start, text_start

ENDINGS = {
    "completed": Ending("completed", "stop"),
    "failed": Ending("failed", "error", error=LOST_ERROR),
    "aborted": aborted("user"),
    "abandoned": aborted("user", settled=False),
    "lost": LOST,
}

_usage = st.none() | st.fixed_dictionaries({"input_tokens": st.integers(0, 9), "output_tokens": st.integers(0, 9)})
_turns = st.builds(
    OpenTurn,
    message_id=st.sampled_from(["m", "m", None]),
    step=st.none() | st.integers(1, 3),
    usage=_usage,
    parts=st.dictionaries(st.sampled_from(["p1", "p2", "p3"]), st.sampled_from(["text", "reasoning"])),
    tools=st.dictionaries(st.sampled_from(["c1", "c2", "c3"]), st.booleans()),
    approvals=st.lists(st.sampled_from(["r1", "r2"]), unique=True),
)


@given(turn=_turns, ending=st.sampled_from(sorted(ENDINGS)))
def test_everything_open_ends_once_in_the_closing_order(turn: OpenTurn, ending: str) -> None:
    events = closing_events(turn, ENDINGS[ending])
    ranks = [CLOSING[event["type"]] for event in events]
    assert ranks == sorted(ranks)
    assert [e["request_id"] for e in events if e["type"] == "approval-resolved"] == turn.approvals
    assert [e["call_id"] for e in events if "call_id" in e] == list(turn.tools)
    ends = {e["part_id"]: e["type"] for e in events if "part_id" in e}
    assert ends == {part_id: f"{kind}-end" for part_id, kind in turn.parts.items()}
    assert [e["step"] for e in events if e["type"] == "step-finish"] == ([] if turn.step is None else [turn.step])
    assert [e["type"] for e in events].count("message-finish") == (turn.message_id is not None)
    assert [e["type"] for e in events].count("run-finish") == 1
    assert events[-1]["type"] == "run-finish"


@pytest.mark.parametrize(
    ("ending", "started", "outcome", "interrupted"),
    [
        ("completed", False, "not_run", False),
        ("completed", True, "unknown", False),
        ("failed", True, "unknown", False),
        ("aborted", False, "not_run", True),
        ("aborted", True, "interrupted", True),
        ("abandoned", True, "unknown", True),
        ("lost", False, "not_run", True),
        ("lost", True, "unknown", True),
    ],
)
def test_a_tool_that_has_not_ended_says_what_became_of_it(
    ending: str, started: bool, outcome: str, interrupted: bool
) -> None:
    (event,) = [e for e in closing_events(OpenTurn("m", tools={"c": started}), ENDINGS[ending]) if "call_id" in e]
    assert (event["type"], event["outcome"], event["interrupted"]) == ("tool-error", outcome, interrupted)
    assert event["error"]


def test_what_the_engine_said_of_a_tool_while_it_closed_counts() -> None:
    own = {"type": "tool-result", "call_id": "c", "output": 7}
    ending = Ending("aborted", "aborted", tool_endings={"c": own, "closed long ago": own})
    assert closing_events(OpenTurn("m", tools={"c": True}), ending)[0] is own


@pytest.mark.parametrize(("name", "error"), [("aborted", ABORT_ERROR), ("lost", LOST_ERROR), ("completed", None)])
def test_message_and_run_end_with_the_same_error(name: str, error: Any) -> None:
    *_, message, run = closing_events(OpenTurn("m"), ENDINGS[name])
    assert message["error"] == run["error"] == error
    assert run["status"] == name


def test_a_messages_usage_is_its_steps_and_what_the_engine_says_of_the_whole_wins() -> None:
    one = {"input_tokens": 1, "output_tokens": 2}
    whole = {"input_tokens": 9, "output_tokens": 9}
    turn = OpenTurn("m", step=2, usage=one)  # type: ignore[arg-type]
    summed = closing_events(turn, Ending("aborted", "aborted", step_usage=one))[-2]  # type: ignore[arg-type]
    assert summed["usage"] == {"input_tokens": 2, "output_tokens": 4}
    said = Ending("aborted", "aborted", step_usage=one, message_usage=whole)  # type: ignore[arg-type]
    assert closing_events(turn, said)[-2]["usage"] == whole
    assert closing_events(OpenTurn("m"), aborted("user"))[-2]["usage"] is None, "not measured is not zero"


def test_what_a_dead_process_left_open_is_found_in_the_fold_and_closing_it_leaves_nothing_open() -> None:
    log = make_log()
    call = {"run_id": "r", "message_id": "m", "tool": "t"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    step = {"run_id": "r", "message_id": "m", "step": 1}
    say(log, *start(), step | {"type": "step-start"}, text_start(part_id="p0"), delta("a", part_id="p0"))
    say(log, step | {"type": "step-finish", "finish_reason": "stop", "usage": usage})
    say(log, step | {"type": "step-start", "step": 2}, text_start(part_id="p1"))
    say(log, call | {"type": "tool-input-start", "part_id": "t1", "call_id": "c1"})
    say(log, call | {"type": "tool-call", "part_id": "t2", "call_id": "c2", "input": {}})
    say(log, {"type": "approval-request", "run_id": "r", "request_id": "q", "call_id": "c2", "tool": "t", "input": {}})
    say(log, call | {"type": "tool-call", "part_id": "t3", "call_id": "c3", "input": {}})
    say(log, {"type": "tool-start", "run_id": "r", "call_id": "c3"})
    turn = open_turn(log.archive.fold)
    assert turn == OpenTurn(
        "m",
        step=2,
        usage=usage,  # type: ignore[arg-type]
        parts={"p0": "text", "p1": "text"},
        tools={"c1": False, "c2": False, "c3": True},
        approvals=["q"],
    )
    say(log, *({**event, "run_id": "r"} for event in closing_events(turn, LOST)))
    assert open_turn(log.archive.fold) == OpenTurn(None)
    assert log.archive.fold.messages[-1]["usage"] == usage


def test_an_idle_session_has_nothing_open() -> None:
    assert open_turn(Transcript()) == OpenTurn(None)
