"""The client without a socket: cursors, answers, what is said again after a reconnect."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.client.backoff import Backoff
from gateway.client.errors import TooManyCommands
from gateway.client.state import MAX_BUFFER, MAX_COMMANDS, Again, Answered, ClientState, Leave, Send, Updated, Welcomed
from protocol.transcript import Transcript
from tests.protocol.streams import Frame, attached, logs, merge

WELCOME = {"type": "welcome", "heartbeat_s": 15}


def retry(seq: int, **fields: Any) -> Frame:
    return {"type": "retry", "session_id": "s", "seq": seq, "run_id": "r", "time": 1, **fields}


def live(seq: int = 0) -> ClientState:
    state = ClientState()
    state.session("s")
    state.hello(None)
    state.receive(WELCOME)
    state.receive(attached(seq))
    return state


def test_the_first_hello_attaches_nothing() -> None:
    assert ClientState(client="x").hello("t") == {
        "type": "hello",
        "batch": True,
        "attach": [],
        "client": "x",
        "token": "t",
    }


def test_a_hello_after_a_reconnect_attaches_where_the_cursor_stands() -> None:
    state = live(3)
    state.receive(retry(4))
    assert state.hello(None)["attach"] == [{"session_id": "s", "role": "owner", "epoch": "e", "seq": 4}]


def test_events_before_the_attached_are_ignored() -> None:
    state = live()
    state.hello(None)
    assert state.receive(retry(1)) == []
    state.receive(attached(0, recovery="replay"))
    assert state.receive(retry(1)) == [Updated("s")]


def test_a_gap_attaches_again_and_ignores_events_until_attached() -> None:
    state = live()
    actions = state.receive(retry(2))
    assert len(actions) == 1
    assert isinstance(actions[0], Send)
    attach = actions[0].frame
    assert attach["type"] == "attach"
    assert (attach["session_id"], attach["epoch"], attach["seq"]) == ("s", "e", 0)
    assert state.receive(retry(1)) == []
    assert state.receive(attached(3, recovery="replay")) == []  # of another attach
    assert state.receive(retry(1)) == []
    state.receive(attached(3, recovery="replay", id=attach["id"]))
    assert state.receive(retry(1)) == [Updated("s")]


def test_a_duplicate_is_not_read_twice() -> None:
    state = live()
    state.receive(retry(1))
    assert state.receive(retry(1)) == []
    assert len(state.session("s").buffer) == 1


def test_a_reply_answers_its_command_once() -> None:
    state = live()
    state.command({"type": "history", "id": "h", "session_id": "s"})
    assert [frame["id"] for frame in state.unsent()] == ["h"]
    reply = {"type": "history", "id": "h", "session_id": "s", "messages": [], "has_more": False}
    assert state.receive(reply) == [Answered("h", reply)]
    assert state.receive(reply) == []


def test_unanswered_commands_go_out_again_after_the_next_hello_in_their_order() -> None:
    state = live()
    for name in ("one", "two", "three"):
        state.command({"type": "prompt", "id": name, "session_id": "s", "text": "x"})
    assert [frame["id"] for frame in state.unsent()] == ["one", "two", "three"]
    assert list(state.unsent()) == []
    state.receive({"type": "ack", "id": "two", "command": "prompt"})
    state.hello(None)
    assert [frame["id"] for frame in state.unsent()] == ["one", "three"]


def test_a_forgotten_command_does_not_go_out() -> None:
    state = live()
    state.command({"type": "watch", "id": "w", "on": True})
    state.forget("w")
    assert list(state.unsent()) == []


def test_an_attach_that_goes_out_again_says_where_the_cursor_is_by_then() -> None:
    state = live(5)
    state.command({"type": "attach", "id": "a", "session_id": "s", "role": "observer"})
    assert next(state.unsent()) == {
        "type": "attach",
        "id": "a",
        "session_id": "s",
        "role": "observer",
        "epoch": "e",
        "seq": 5,
    }


def test_commands_without_answer_are_bounded() -> None:
    state = ClientState()
    for number in range(MAX_COMMANDS):
        state.command({"type": "watch", "id": str(number), "on": True})
    with pytest.raises(TooManyCommands):
        state.command({"type": "watch", "id": "more", "on": True})


def test_a_slow_reader_gets_one_snapshot_instead_of_what_was_too_much() -> None:
    state = live()
    for seq in range(1, MAX_BUFFER + 3):
        state.receive(retry(seq))
    buffer = state.session("s").buffer
    assert [frame["type"] for frame in buffer] == ["snapshot", "retry"]
    assert buffer[0]["seq"] + 1 == buffer[1]["seq"] == MAX_BUFFER + 2


def test_the_snapshot_that_is_read_does_not_grow_with_the_transcript() -> None:
    state = live()
    open_part = {"type": "text", "part_id": "p", "text": "a", "state": "streaming"}
    message = {"id": "m", "role": "assistant", "run_id": "r", "parts": [open_part], "completed_at": None}
    snapshot = {
        "type": "snapshot",
        "session_id": "s",
        "epoch": "e",
        "seq": 7,
        "status": "running",
        "run_id": "r",
        "resumable": False,
        "messages": [message],
        "has_more": False,
        "pending": [],
        "queue": [],
    }
    state.receive(attached(7, recovery="snapshot"))
    state.receive(copy.deepcopy(snapshot))
    state.receive({"type": "text-delta", "session_id": "s", "seq": 8, "run_id": "r", "part_id": "p", "text": "b"})
    assert state.session("s").transcript.messages[0]["parts"][0]["text"] == "ab"
    assert state.session("s").buffer[0] == snapshot


def test_detached_ends_the_subscription_and_a_prompt_takes_it_up_again() -> None:
    state = live()
    detached = {"type": "detached", "session_id": "s", "reason": "deleted"}
    assert state.receive(detached) == [Updated("s")]
    assert state.session("s").ended == detached
    assert state.hello(None)["attach"] == []
    state.command({"type": "prompt", "id": "p", "session_id": "s", "text": "x"})
    assert state.session("s").ended is None


def test_a_session_that_is_gone_at_the_reconnect_ends() -> None:
    state = live()
    state.hello(None)
    error = {"type": "error", "session_id": "s", "code": "session_not_found", "message": "", "retryable": False}
    assert state.receive(error) == [Updated("s")]
    assert state.session("s").ended == error


def test_a_session_that_a_prompt_is_about_to_make_does_not() -> None:
    state = live()
    state.command({"type": "prompt", "id": "p", "session_id": "s", "text": "x"})
    state.hello(None)
    state.receive({"type": "error", "session_id": "s", "code": "session_not_found", "message": "", "retryable": False})
    assert state.session("s").ended is None
    state.receive(attached(0))
    assert state.session("s").attached


@pytest.mark.parametrize("after", [{}, {"retry_after_s": 2.5}])
def test_a_subscription_that_is_refused_for_now_is_tried_again(after: Frame) -> None:
    state = live(3)
    state.hello(None)
    refusal = {
        "type": "error",
        "session_id": "s",
        "code": "store_unavailable",
        "message": "",
        "retryable": True,
    } | after
    [first] = state.receive(refusal)
    assert isinstance(first, Again)
    assert (first.attempt, first.retry_after_s) == (1, after.get("retry_after_s", 0))
    attach = state.attach_again("s", first.id)
    assert attach == {"type": "attach", "id": first.id, "session_id": "s", "role": "owner", "epoch": "e", "seq": 3}
    assert state.attach_again("s", first.id) is None
    [second] = state.receive(refusal | {"id": first.id})
    assert isinstance(second, Again)
    assert second.attempt == 2
    assert state.session("s").ended is None
    state.receive(attached(3))  # by a prompt, say
    assert state.attach_again("s", second.id) is None
    assert state.session("s").refused == 0


@pytest.mark.parametrize("event", ["hello", "detached", "attach"])
def test_what_is_to_be_tried_again_gives_way_to_what_comes_meanwhile(event: str) -> None:
    state = live(3)
    state.hello(None)
    refusal = {"type": "error", "session_id": "s", "code": "store_unavailable", "message": "", "retryable": True}
    [again] = state.receive(refusal)
    assert isinstance(again, Again)
    if event == "hello":
        assert state.hello(None)["attach"] == [{"session_id": "s", "role": "owner", "epoch": "e", "seq": 3}]
    elif event == "detached":
        state.receive({"type": "detached", "session_id": "s", "reason": "deleted"})
    else:
        state.command({"type": "attach", "id": "a", "session_id": "s"})
    assert state.attach_again("s", again.id) is None


def test_a_first_attach_that_is_refused_for_now_is_its_callers_to_repeat() -> None:
    state = ClientState()
    state.hello(None)
    state.receive(WELCOME)
    state.command({"type": "attach", "id": "a", "session_id": "s"})
    refusal = {"type": "error", "id": "a", "session_id": "s", "code": "store_unavailable", "retryable": True}
    assert state.receive(refusal) == [Answered("a", refusal), Updated("s")]
    assert state.session("s").ended == refusal


def test_another_commands_error_does_not_end_a_session_that_is_coming_back() -> None:
    state = live()
    state.command({"type": "history", "id": "h", "session_id": "s", "before": "gone"})
    state.hello(None)
    error = {"type": "error", "id": "h", "session_id": "s", "code": "message_not_found", "message": ""}
    assert state.receive(error) == [Answered("h", error)]
    assert state.session("s").ended is None
    state.receive(attached(0))
    assert state.session("s").attached


def test_an_error_of_the_session_is_for_its_reader() -> None:
    state = live()
    error = {"type": "error", "session_id": "s", "code": "store_unavailable", "message": "", "retryable": True}
    assert state.receive(error) == [Updated("s")]
    assert list(state.session("s").buffer) == [error]


def test_an_error_before_the_welcome_is_the_refusal() -> None:
    state = ClientState()
    state.hello(None)
    error = {"type": "error", "code": "unauthorized", "message": "no", "retryable": False}
    state.receive(error)
    assert state.refusal == error
    state.hello(None)
    state.receive(WELCOME)
    state.receive(error)
    assert state.refusal is None


def test_from_a_socket_that_is_being_left_only_replies_count() -> None:
    state = live()
    state.command({"type": "prompt", "id": "p", "session_id": "s", "text": "x"})
    ack = {"type": "ack", "id": "p", "command": "prompt"}
    assert state.receive(ack, current=False) == [Answered("p", ack)]
    assert state.receive(retry(1), current=False) == []
    assert state.session("s").transcript.seq == 0


def test_welcome_and_goaway_are_handed_on() -> None:
    state = ClientState()
    assert state.receive(WELCOME) == [Welcomed(15.0)]
    assert state.receive({"type": "goaway", "reason": "drain", "retry_after_s": 2}) == [Leave(2.0)]


def test_frames_of_strangers_are_ignored() -> None:
    state = live()
    assert state.receive(attached(0) | {"session_id": "other"}) == []
    assert state.receive({"type": "from-the-future"}) == []
    assert state.receive({"type": "pong"}) == []


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(logs(), st.data())
def test_any_number_of_broken_sockets_ends_in_the_servers_transcript(log: list[Frame], data: st.DataObject) -> None:
    state = ClientState()
    state.session("s").wanted = True
    for last in [*data.draw(st.lists(st.booleans(), max_size=4)), True]:
        (target,) = state.hello(None)["attach"]
        at = target.get("seq", 0)
        known = "epoch" in target and data.draw(st.integers(0, 4)) > 0
        if known or at == 0:
            state.receive(attached(len(log), recovery="replay", status="running"))
            start = at
        else:
            start = data.draw(st.integers(at, len(log)))
            server = Transcript()
            for frame in [attached(), *copy.deepcopy(log[:start])]:
                server.apply(frame)
            state.receive(attached(start, recovery="snapshot"))
            dump = server.dump() | {"epoch": "e"}
            state.receive({"type": "snapshot", "session_id": "s", **copy.deepcopy(dump)})
        stop = len(log) if last is True else data.draw(st.integers(start, len(log)))
        for frame in merge(copy.deepcopy(log[start:stop])):
            state.receive(frame)
    expected = Transcript()
    for frame in [attached(), *copy.deepcopy(log)]:
        expected.apply(frame)
    assert state.session("s").transcript.state() == expected.state()


def test_delays_grow_are_jittered_and_capped_and_start_over() -> None:
    backoff = Backoff(base=1, cap=8, rand=lambda: 1.0)
    assert [backoff.next() for _ in range(5)] == [1, 2, 4, 8, 8]
    backoff.reset()
    assert backoff.next() == 1
    assert Backoff(rand=lambda: 0.0).next(3) == 3
    assert 0 <= Backoff(base=1).next() <= 1
