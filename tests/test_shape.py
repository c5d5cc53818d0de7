"""From anything an engine may yield to a valid sequence: what is supplied, renamed, dropped and cut."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, TypeAdapter

from gateway.seal import Ending, aborted, closing_events
from gateway.shape import Shaper
from gateway.values import MAX_ERROR_BYTES, MAX_VALUE_BYTES
from protocol.codec import MAX_MESSAGE_BYTES
from protocol.events import Event
from protocol.messages import ABORT_ERROR
from tests.e2e.support import check_log
from tests.support_log import held, make_log, say, start

_event: TypeAdapter[Any] = TypeAdapter(Annotated[Event, Field(discriminator="type")])


class Played:
    """A run that yields what it is given; ``types`` and ``events`` are what clients would see of it."""

    def __init__(self, *events: Any, seen: set[str] | None = None) -> None:
        self.shaper = Shaper("m", set() if seen is None else seen)
        self.events: list[dict[str, Any]] = []
        for event in events:
            self.feed(event)

    def feed(self, event: Any) -> list[dict[str, Any]]:
        new = self.shaper.feed(event)
        self.events += new
        return new

    def end(self, ending: Ending | None = None) -> Played:
        if ending is None:
            ending = self.shaper.ended()
        if ending.status == "aborted":
            ending = self.shaper.aborted(ending)
        self.events += closing_events(self.shaper.turn, ending)
        return self

    @property
    def types(self) -> list[str]:
        return [event["type"] for event in self.events]

    def of(self, kind: str) -> dict[str, Any]:
        (event,) = [event for event in self.events if event["type"] == kind]
        return event


def text(text: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "text-delta", "text": text, **fields}


def tool(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "call_id": "c", "tool": "t", **fields}


# -- supplied


def test_text_alone_gets_its_start_its_end_and_the_runs_end() -> None:
    run = Played(text("a"), text("b")).end()
    assert run.types == ["text-start", "text-delta", "text-delta", "text-end", "message-finish", "run-finish"]
    assert len({event["part_id"] for event in run.events if "part_id" in event}) == 1
    assert {event["message_id"] for event in run.events if "message_id" in event} == {"m"}
    assert run.of("run-finish")["status"] == "completed"


def test_an_engine_that_says_nothing_still_ends_its_message_and_run() -> None:
    assert Played().end().types == ["message-finish", "run-finish"]


def test_any_other_part_closes_the_one_that_deltas_without_id_continue() -> None:
    run = Played(text(), {"type": "reasoning-delta", "text": "r"}, text(), tool("tool-call"), text())
    assert run.types == [
        *("text-start", "text-delta", "text-end", "reasoning-start", "reasoning-delta", "reasoning-end"),
        *("text-start", "text-delta", "text-end", "tool-call", "text-start", "text-delta"),
    ]


def test_parts_with_ids_may_interleave() -> None:
    run = Played(text("a", part_id="1"), text("b", part_id="2"), text("c", part_id="1"))
    assert run.types == ["text-start", "text-delta", "text-start", "text-delta", "text-delta"]
    assert run.events[-1]["part_id"] == "1"


@pytest.mark.parametrize("name", [0, 7, "x" * 201, ""])
def test_deltas_of_one_part_stay_in_it_whatever_its_id(name: Any) -> None:
    run = Played(text("a", part_id=name), text("b", part_id=name), {"type": "text-end", "part_id": name})
    assert run.types == ["text-start", "text-delta", "text-delta", "text-end"]
    assert 0 < len(run.events[0]["part_id"]) <= 200


@pytest.mark.parametrize("name", [[], {}, 1.5, object()])
def test_what_cannot_be_an_id_counts_as_none(name: Any) -> None:
    run = Played(text("a", part_id=name), text("b"), {"type": "text-end", "part_id": name})
    assert run.types == ["text-start", "text-delta", "text-delta", "text-end"]
    calls = Played(tool("tool-call") | {"call_id": name}, tool("tool-result") | {"call_id": name})
    assert calls.types == ["tool-call", "tool-result"]
    answers = Played(tool("tool-call"), tool("approval-request", request_id=name))
    assert answers.types == ["tool-call", "approval-request"]
    assert answers.feed({"type": "approval-resolved", "request_id": name}) == []


def test_a_result_completes_the_arguments_that_the_engine_forgot_to_complete() -> None:
    run = Played(tool("tool-input-start"), tool("tool-input-delta", text='{"a":'), tool("tool-result", output=1))
    assert run.types == ["tool-input-start", "tool-input-delta", "tool-call", "tool-result"]
    assert run.of("tool-call")["input"] == {"raw": '{"a":'}


def test_tool_events_without_id_mean_the_one_call_that_is_open() -> None:
    steps = ("tool-input-start", "tool-input-delta", "tool-call", "tool-start", "tool-progress", "tool-result")
    run = Played(*({"type": kind, "tool": "t", "text": "1", "input": 1, "output": 2} for kind in steps))
    assert run.types == list(steps)
    assert len({event["call_id"] for event in run.events}) == 1


def test_calls_without_id_one_after_the_other_are_two() -> None:
    run = Played({"type": "tool-call", "tool": "a"}, {"type": "tool-call", "tool": "b"})
    assert run.types == ["tool-call", "tool-call"]
    assert len({event["call_id"] for event in run.events}) == 2


def test_a_step_that_only_ends_has_begun() -> None:
    assert Played({"type": "step-finish"}).types == ["step-start", "step-finish"]


def test_a_step_ends_its_tools_and_parts() -> None:
    run = Played({"type": "step-start"}, text(), tool("tool-call"), tool("tool-start"), {"type": "step-start"})
    assert run.types[-3:] == ["tool-error", "step-finish", "step-start"]
    assert run.of("tool-error")["outcome"] == "unknown"
    assert [event["step"] for event in run.events if event["type"] == "step-start"] == [1, 2]


def test_something_after_the_messages_end_opens_another_message() -> None:
    run = Played(text(), {"type": "message-finish", "finish_reason": "length"}, text()).end()
    assert run.types.count("message-start") == 1
    assert run.types.count("message-finish") == 2
    assert run.shaper.more_messages == 1
    assert [e["finish_reason"] for e in run.events if e["type"] == "message-finish"] == ["length", "stop"]


def test_the_engines_own_first_message_start_is_the_one_that_the_run_brought() -> None:
    run = Played({"type": "message-start", "message_id": "theirs"}, text()).end()
    assert run.types[0] == "text-start"
    assert run.of("message-finish")["message_id"] == "m"


def test_the_messages_usage_is_the_sum_of_its_measured_steps() -> None:
    step = {"type": "step-finish", "usage": {"input_tokens": 2, "output_tokens": 3}}
    run = Played({"type": "step-start"}, step, {"type": "step-start"}, step, {"type": "step-finish"}).end()
    assert run.of("message-finish")["usage"] == {"input_tokens": 4, "output_tokens": 6}
    assert run.events[-3]["usage"] is None


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"input_tokens": 1},
        {"input_tokens": 1.5, "output_tokens": 2},
        {"input_tokens": float("nan"), "output_tokens": 2},
        {"input_tokens": -1, "output_tokens": 2},
        {"input_tokens": True, "output_tokens": 2},
        "many",
    ],
)
def test_a_usage_that_is_none_is_not_measured(usage: Any) -> None:
    assert Played({"type": "step-finish", "usage": usage}).of("step-finish")["usage"] is None


# -- renamed


def test_ids_that_the_session_has_had_get_others_and_go_on_under_them() -> None:
    seen = {"p", "c", "q"}
    run = Played(text("a", part_id="p"), text("b", part_id="p"), {"type": "text-end", "part_id": "p"}, seen=seen)
    (part_id,) = {event["part_id"] for event in run.events}
    assert part_id != "p"
    assert len(run.events) == 4
    call = Played(tool("tool-call"), tool("approval-request", request_id="q"), tool("tool-result"), seen=seen)
    assert len({event["call_id"] for event in call.events if "call_id" in event}) == 1
    assert call.of("tool-result")["call_id"] != "c"
    assert call.shaper.engine_name(call.of("approval-request")["request_id"]) == "q"


def test_a_part_id_that_comes_again_after_its_end_is_another_part() -> None:
    run = Played(text("a", part_id="p"), {"type": "text-end", "part_id": "p"}, text("b", part_id="p")).end()
    first, second = [event["part_id"] for event in run.events if event["type"] == "text-start"]
    assert first != second


def test_a_tool_and_a_part_may_bear_the_same_id_at_the_engine() -> None:
    run = Played(text("a", part_id="x"), {"type": "tool-call", "call_id": "x", "tool": "t"}).end()
    assert run.of("text-start")["part_id"] != run.of("tool-call")["call_id"]


# -- dropped


@pytest.mark.parametrize("junk", [None, "text", 5, [], {}, {"type": None}, {"type": 5}])
def test_what_is_no_event_fails_the_run(junk: Any) -> None:
    with pytest.raises(TypeError, match="dicts with a type"):
        Played().feed(junk)


@pytest.mark.parametrize(
    "kind", ["run-start", "message-added", "abort-requested", "queued", "dequeued", "messages-removed", "no-such-type"]
)
def test_what_is_the_sessions_to_say_or_unknown_changes_nothing(kind: str) -> None:
    assert Played({"type": kind}).events == []


@pytest.mark.parametrize("kind", ["tool-start", "tool-progress", "tool-result", "tool-error", "approval-request"])
def test_what_belongs_to_no_open_call_is_dropped(kind: str) -> None:
    assert Played(tool(kind)).events == []
    assert Played(tool("tool-call"), tool("tool-result"), tool(kind)).types == ["tool-call", "tool-result"]


@pytest.mark.parametrize("value", [None, "", 5, ["a"], {}])
def test_a_delta_without_text_is_dropped(value: Any) -> None:
    assert Played(text(value), {"type": "tool-input-delta", "text": value}).events == []


def test_a_second_call_start_end_or_answer_is_dropped() -> None:
    run = Played(
        *(tool("tool-call"), tool("tool-call"), tool("tool-start"), tool("tool-start")),
        *(tool("approval-request", request_id="q"), tool("approval-request", request_id="r")),
        *({"type": "approval-resolved", "request_id": "q", "decision": "deny"},) * 2,
        *(tool("tool-result"), tool("tool-result"), {"type": "text-end", "part_id": "p"}),
    )
    assert run.types == ["tool-call", "tool-start", "approval-request", "approval-resolved", "tool-result"]


def test_arguments_after_the_call_is_complete_are_dropped() -> None:
    assert Played(tool("tool-call"), tool("tool-input-delta", text="x")).types == ["tool-call"]


# -- cut


def test_text_over_a_mebibyte_is_cut_and_marked() -> None:
    delta = Played(text("é" * MAX_MESSAGE_BYTES)).of("text-delta")
    assert delta["truncated"] is True
    assert len(delta["text"].encode()) <= MAX_VALUE_BYTES


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (tool("tool-call"), "input"),
        (tool("tool-progress"), "data"),
        (tool("tool-result"), "output"),
        (tool("approval-request"), "input"),
        ({"type": "custom", "name": "n"}, "data"),
    ],
)
@pytest.mark.parametrize("value", ["x" * 2_000_000, ["\u2028" * 1000] * 2000])
def test_values_over_a_mebibyte_are_cut_and_marked(event: dict[str, Any], name: str, value: Any) -> None:
    before = [] if event["type"] in ("tool-call", "custom") else [tool("tool-call")]
    shaped = Played(*before, event | {name: value}).events[-1]
    assert shaped["truncated"] is True
    assert len(json.dumps(shaped[name], ensure_ascii=False).encode()) <= MAX_VALUE_BYTES + 2


@pytest.mark.parametrize("kind", ["retry", "message-finish", "run-finish", "tool-error"])
def test_the_text_of_an_error_has_a_bound(kind: str) -> None:
    error: Any = {"reason": "APIError", "message": "x" * 2_000_000, "code": "c" * 2_000_000}
    run = Played(tool("tool-call"), tool(kind, error="x" * 2_000_000 if kind == "tool-error" else error)).end()
    assert max(len(json.dumps(event)) for event in run.events) <= 2 * MAX_ERROR_BYTES + 1000


def test_lone_surrogates_are_replaced() -> None:
    assert Played(text("a\ud800b")).of("text-delta")["text"] == "a\ufffdb"


# -- ends


def test_an_engines_error_fails_the_run_in_the_protocols_terms() -> None:
    error = {"reason": "Nonsense", "message": ["a"], "code": 5, "status_code": "x", "retryable": "yes"}
    run = Played({"type": "message-finish", "error": error}).end()
    expected = {"reason": "UnknownError", "message": '["a"]', "code": "5", "status_code": None, "retryable": None}
    assert run.of("message-finish")["error"] == run.of("run-finish")["error"] == expected
    assert run.of("run-finish")["status"] == "failed"


def test_an_engine_that_aborted_itself_ends_aborted_by_policy_and_with_exactly_that_error() -> None:
    run = Played({"type": "message-finish", "error": {"reason": "AbortError", "message": "mine", "code": 7}}).end()
    finish = run.of("run-finish")
    assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "policy", ABORT_ERROR)
    assert run.of("message-finish")["error"] == ABORT_ERROR


def test_after_an_abort_only_closing_counts_and_in_the_closing_order() -> None:
    run = Played({"type": "step-start"}, text(), tool("tool-call"), tool("tool-start"))
    run.shaper.begin_closing()
    usage = {"input_tokens": 1, "output_tokens": 1}
    late = [
        *(text("late"), {"type": "message-finish", "finish_reason": "stop"}, tool("tool-result", output="kept")),
        *(tool("tool-result", output="second"), {"type": "step-finish", "usage": usage}),
        {"type": "run-finish", "settled": False},
    ]
    assert [run.feed(event) for event in late] == [[]] * 6
    run.events.clear()
    run.end(aborted("user"))
    assert run.types == ["tool-result", "step-finish", "message-finish", "run-finish"]
    assert run.of("tool-result")["output"] == "kept"
    assert run.of("step-finish")["usage"] == usage
    assert (run.of("run-finish")["settled"], run.of("run-finish")["reason"]) == (False, "user")
    assert run.of("message-finish")["error"] == ABORT_ERROR


def test_a_message_finish_that_came_before_the_abort_does_not_count() -> None:
    run = Played({"type": "message-finish", "usage": {"input_tokens": 1, "output_tokens": 1}})
    run.shaper.begin_closing()
    assert run.end(aborted("user")).of("message-finish")["usage"] is None


# -- anything at all

_junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.floats()
    | st.sampled_from(["p", "q", "c", "m", "", "stop", "\ud800", "x" * 300])
    | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "reason", "input_tokens"]), inner)
    ),
    max_leaves=4,
)
_KINDS = [
    *("message-start", "message-finish", "step-start", "step-finish", "text-start", "text-delta", "text-end"),
    *("reasoning-start", "reasoning-delta", "reasoning-end", "tool-input-start", "tool-input-delta", "tool-call"),
    *("tool-start", "tool-progress", "tool-result", "tool-error", "approval-request", "approval-resolved", "retry"),
    *("custom", "run-finish", "run-start", "queued", "nonsense"),
]
_FIELDS = [
    *("message_id", "part_id", "call_id", "request_id", "tool", "text", "input", "output", "data", "error", "usage"),
    *("finish_reason", "outcome", "interrupted", "decision", "attempt", "delay_s", "name", "expires_at", "settled"),
]
_ids = st.sampled_from([None, "p", "q", "c", 0])
_good = {
    "text": st.text(max_size=3),
    "part_id": _ids,
    "call_id": _ids,
    "request_id": _ids,
    "usage": st.just({"input_tokens": 1, "output_tokens": 1, "cost": 0.5}),
    "error": st.just({"reason": "APIError", "message": "no"}),
}
_events = st.fixed_dictionaries(
    {"type": st.sampled_from(_KINDS)}, optional={name: _good.get(name, _junk) | _junk for name in _FIELDS}
)


_tokens = st.fixed_dictionaries(
    {"type": st.sampled_from(["text-delta", "reasoning-delta"]), "text": st.sampled_from(["a", "b", "é", "", None])},
    optional={"part_id": _ids},
)


def _types(events: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(event["type"], event.get("text")) for event in events]


@settings(max_examples=150, deadline=None)
@given(events=st.lists(_tokens | _tokens | _events, max_size=25), cut=st.integers(0, 30), steered=st.booleans())
def test_a_token_that_only_continues_is_what_feeding_it_would_give_and_changes_nothing_else(
    events: list[Any], cut: int, steered: bool
) -> None:
    whole, short = Shaper("m", set()), Shaper("m", set())
    last = None
    for number, event in enumerate(events):
        if number == cut:
            for shaper in (whole, short):
                shaper.steer() if steered else shaper.begin_closing()
        text = short.continued(event)
        fed = whole.feed(event)
        if text is not None:
            assert [(item["type"], item["part_id"], item["text"]) for item in fed] == [(*last, text)]  # type: ignore[misc]
        else:
            assert _types(short.feed(event)) == _types(fed)
        if fed:
            last = (fed[-1]["type"], fed[-1]["part_id"]) if "part_id" in fed[-1] else None


def test_the_next_token_of_an_open_part_continues_it() -> None:
    shaper = Shaper("m", set())
    token = {"type": "text-delta", "text": "a"}
    assert shaper.continued(token) is None
    shaper.feed(token)
    assert shaper.continued(token) == "a"
    for other in ({"type": "reasoning-delta", "text": "a"}, token | {"part_id": "p"}, token | {"text": "é"}, {}, "a"):
        assert shaper.continued(other) is None


@settings(max_examples=80, deadline=None)
@given(
    events=st.lists(_events, max_size=25), how=st.sampled_from(["ended", "aborted", "failed"]), cut=st.integers(0, 25)
)
def test_whatever_an_engine_yields_clients_get_a_valid_sequence(events: list[Any], how: str, cut: int) -> None:
    log = make_log()
    say(log, *start())
    shaper = Shaper("m", log.archive.seen)
    closing = how == "aborted"
    for n, event in enumerate(events):
        if closing and n == cut:
            shaper.begin_closing()
            log.append({"type": "abort-requested", "run_id": "r", "reason": "user"})
        for shaped in shaper.feed(event):
            log.append(shaped | {"run_id": "r"})
    if closing and len(events) <= cut:
        shaper.begin_closing()
        log.append({"type": "abort-requested", "run_id": "r", "reason": "user"})
    if closing:
        ending = shaper.aborted(aborted("user"))
    else:
        ending = shaper.ended() if how == "ended" else Ending("failed", "error", error=ABORT_ERROR)
    for event in closing_events(shaper.turn, ending):
        log.append(event | {"run_id": "r"})
    say(log)
    sent = [json.loads(line) for line in held(log).values()]
    check_log(sent)
    for event in sent:
        _event.validate_python(event)
    assert log.archive.fold.seq == log.head
    assert log.archive.fold.run_id is None
    messages = [m for m in log.archive.fold.messages if m["role"] == "assistant"]
    assert len(messages) == 1 + shaper.more_messages
    for message in messages:
        assert message["completed_at"] is not None
        for part in message["parts"]:
            assert part.get("state") in (None, "done", "output-available", "output-error")
