"""One connection with a fake clock: every rule of protocol/connection.py as a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.commands import Abort, Hello, Ping, Watch
from protocol.connection import (
    HEARTBEAT_SHARE,
    MAX_BAD_FRAMES,
    MAX_RATE_ERRORS,
    Close,
    Connection,
    ConnectionLimits,
    Handle,
    Reply,
)
from protocol.errors import CloseCode

PING = '{"type":"ping"}'
HELLO = '{"type":"hello"}'


def connection(**limits: Any) -> Connection:
    return Connection(ConnectionLimits(**limits), now=0.0)


def greeted(**limits: Any) -> Connection:
    fresh = connection(**limits)
    fresh.receive(HELLO, 0.0)
    fresh.welcome(None, 0.0)
    fresh.sent(0.0)
    return fresh


def code(actions: list[Any]) -> str:
    reply = actions[0]
    assert isinstance(reply, Reply)
    value: str = reply.frame["code"]
    return value


# -- hello


def test_hands_a_hello_on() -> None:
    assert connection().receive(HELLO, 0) == [Handle(Hello())]


def test_without_authentication_any_other_first_command_implies_a_hello() -> None:
    assert connection().receive('{"type":"watch","on":true}', 0) == [Handle(Hello()), Handle(Watch(on=True))]


def test_implies_a_hello_only_once() -> None:
    fresh = connection()
    fresh.receive(PING, 0)
    assert fresh.receive(PING, 0) == [Handle(Ping())]


def test_with_authentication_any_other_first_command_is_unauthorized_and_the_end() -> None:
    fresh = connection(auth_required=True)
    actions = fresh.receive('{"type":"ping","id":"p"}', 0)
    assert code(actions) == "unauthorized"
    assert actions[0].frame["id"] == "p"  # type: ignore[union-attr]
    assert actions[1:] == [Close(CloseCode.UNAUTHENTICATED, "no hello")]


def test_with_authentication_a_bad_first_frame_is_only_an_error() -> None:
    fresh = connection(auth_required=True)
    assert code(fresh.receive("nonsense", 0)) == "bad_frame"
    assert fresh.receive(HELLO, 1) == [Handle(Hello())]


def test_hands_a_second_hello_on() -> None:
    assert greeted().receive('{"type":"hello","token":"t"}', 1) == [Handle(Hello(token="t"))]


def test_closes_4408_when_no_hello_came_in_time() -> None:
    fresh = connection(auth_required=True, hello_timeout=10)
    assert fresh.tick(9.9) == []
    assert fresh.tick(10) == [Close(CloseCode.NO_HELLO, "no hello in time")]


def test_waits_for_ever_for_a_hello_without_authentication() -> None:
    assert connection(hello_timeout=10).tick(1000) == []


def test_bad_frames_do_not_put_the_hello_off() -> None:
    fresh = connection(auth_required=True, hello_timeout=10)
    fresh.receive("nonsense", 9)
    assert fresh.tick(10) == [Close(CloseCode.NO_HELLO, "no hello in time")]


# -- wrong frames


def test_a_binary_message_is_a_bad_frame() -> None:
    assert code(greeted().receive(PING.encode(), 1)) == "bad_frame"


def test_twenty_bad_frames_in_a_row_are_the_end() -> None:
    fresh = greeted()
    for _ in range(MAX_BAD_FRAMES - 1):
        actions = fresh.receive("nonsense", 1)
        assert [code(actions)] == ["bad_frame"] * len(actions)
    actions = fresh.receive("nonsense", 1)
    assert code(actions) == "bad_frame"
    assert actions[1:] == [Close(CloseCode.BAD_FRAMES, "bad frames")]
    assert MAX_BAD_FRAMES == 20


@pytest.mark.parametrize("between", [PING, '{"type":"dance"}', '{"type":"watch"}', '{"type":"abort"}'])
def test_any_json_object_between_starts_the_count_again(between: str) -> None:
    fresh = greeted()
    for _ in range(3):
        for _ in range(MAX_BAD_FRAMES - 1):
            assert not any(isinstance(action, Close) for action in fresh.receive("nonsense", 1))
        fresh.receive(between, 1)


def test_only_bad_frames_count_towards_the_end() -> None:
    fresh = greeted()
    for _ in range(5 * MAX_BAD_FRAMES):
        assert code(fresh.receive('{"type":"dance"}', 1)) == "unknown_type"
        assert len(fresh.receive('{"type":"watch"}', 1)) == 1


def test_a_wrong_command_is_answered_with_its_id() -> None:
    actions = greeted().receive('{"type":"watch","id":"w"}', 1)
    assert actions[0].frame["id"] == "w"  # type: ignore[union-attr]


def test_a_frame_above_the_limit_is_too_large() -> None:
    fresh = greeted(max_frame_bytes=len(HELLO))
    assert fresh.receive(PING, 1) == [Handle(Ping())]
    assert fresh.receive(HELLO, 1) == [Handle(Hello())]
    assert code(fresh.receive(HELLO + " ", 1)) == "too_large"


def test_the_limit_counts_bytes_not_characters() -> None:
    text = '{"type":"prompt","text":"ééé"}'
    assert len(greeted(max_frame_bytes=len(text.encode())).receive(text, 1)) == 1
    assert code(greeted(max_frame_bytes=len(text)).receive(text, 1)) == "too_large"


def test_a_lone_surrogate_from_the_socket_library_is_a_bad_frame() -> None:
    assert code(greeted().receive('{"type":"prompt","text":"\ud800"}', 1)) == "bad_frame"


# -- rate


def test_allows_a_burst_of_one_second_and_then_the_rate() -> None:
    fresh = connection(commands_per_s=2)
    assert isinstance(fresh.receive(PING, 0)[-1], Handle)
    assert isinstance(fresh.receive(PING, 0)[-1], Handle)
    actions = fresh.receive('{"type":"ping","id":"third"}', 0)
    assert code(actions) == "rate_limited"
    assert actions[0].frame["id"] == "third"  # type: ignore[union-attr]
    assert actions[0].frame["retryable"]  # type: ignore[union-attr]
    wait = actions[0].frame["retry_after_s"]  # type: ignore[union-attr]
    assert isinstance(fresh.receive(PING, wait)[-1], Handle)
    assert code(fresh.receive(PING, wait)) == "rate_limited"


def test_a_rate_below_one_a_second_still_lets_one_through() -> None:
    fresh = greeted(commands_per_s=0.5)
    assert code(fresh.receive(PING, 1)) == "rate_limited"
    assert isinstance(fresh.receive(PING, 2)[-1], Handle)


def test_never_limits_an_abort() -> None:
    fresh = greeted(commands_per_s=1)
    for _ in range(100):
        assert fresh.receive('{"type":"abort"}', 0) == [Handle(Abort())]


def test_an_abort_costs_nothing_of_the_rate() -> None:
    fresh = greeted(commands_per_s=2)
    fresh.receive('{"type":"abort"}', 0)
    assert isinstance(fresh.receive(PING, 0)[-1], Handle)


def test_a_client_that_does_not_heed_the_rate_is_cut_off() -> None:
    fresh = greeted(commands_per_s=1)
    for _ in range(MAX_RATE_ERRORS - 1):
        assert len(fresh.receive(PING, 0)) == 1
    assert fresh.receive(PING, 0)[1:] == [Close(CloseCode.RATE_LIMITED, "rate limited")]


def test_a_flood_is_cut_off_although_one_in_a_while_gets_through() -> None:
    fresh = greeted(commands_per_s=100)
    actions = [action for n in range(2000) for action in fresh.receive(PING, n / 1000)]
    assert actions[-1] == Close(CloseCode.RATE_LIMITED, "rate limited")
    assert sum(isinstance(action, Handle) for action in actions) > 150


def test_knows_a_flood_until_it_pauses() -> None:
    fresh = greeted(commands_per_s=2)
    known = []
    for now in (0, 0, 0, 1):
        fresh.receive(PING, now)
        known.append(fresh.flooding)
    assert known == [False, True, True, False], "the hello took one of the two"


def test_a_pause_starts_that_count_again() -> None:
    fresh = greeted(commands_per_s=1)
    for _ in range(MAX_RATE_ERRORS - 1):
        fresh.receive(PING, 0)
    assert isinstance(fresh.receive(PING, 1)[-1], Handle)
    assert len(fresh.receive(PING, 1)) == 1


# -- the clock


def test_sends_a_pong_where_nothing_else_went_out() -> None:
    fresh = greeted(heartbeat_s=10)
    due = 10 * HEARTBEAT_SHARE
    assert fresh.tick(due - 0.1) == []
    assert fresh.tick(due) == [Reply({"type": "pong"})]
    fresh.sent(due)
    assert fresh.tick(due + 0.1) == []


def test_speaks_well_before_a_heartbeat_is_over() -> None:
    assert 0.3 <= HEARTBEAT_SHARE < 0.95


def test_sends_no_heartbeat_before_the_welcome() -> None:
    assert connection(heartbeat_s=10).tick(100) == []


def test_a_client_that_pinged_and_then_fell_silent_is_gone() -> None:
    fresh = greeted(heartbeat_s=10)
    fresh.receive(PING, 5)
    fresh.sent(34)
    assert fresh.tick(34.9) == []
    assert fresh.tick(35) == [Close(CloseCode.HEARTBEAT_LOST, "heartbeat lost")]


def test_anything_heard_counts_as_life() -> None:
    fresh = greeted(heartbeat_s=10)
    fresh.receive(PING, 0)
    fresh.receive("nonsense", 20)
    fresh.sent(49)
    assert fresh.tick(49) == []


def test_a_client_that_never_pinged_may_be_silent() -> None:
    fresh = greeted(heartbeat_s=10)
    fresh.sent(1000)
    assert fresh.tick(1000) == []


def test_ends_when_the_authentication_expires() -> None:
    fresh = connection(auth_required=True)
    fresh.receive(HELLO, 0)
    fresh.welcome(30, 0)
    fresh.sent(29)
    assert fresh.tick(29.9) == []
    assert fresh.tick(30) == [Close(CloseCode.AUTH_EXPIRED, "authentication expired")]


def test_a_new_token_moves_the_end() -> None:
    fresh = connection(auth_required=True)
    fresh.receive(HELLO, 0)
    fresh.welcome(30, 0)
    fresh.welcome(60, 20)
    fresh.sent(79)
    assert fresh.tick(79) == []
    assert fresh.tick(80) == [Close(CloseCode.AUTH_EXPIRED, "authentication expired")]


def test_takes_nothing_more_once_it_is_closing() -> None:
    fresh = greeted()
    assert fresh.close(CloseCode.DRAIN, "drain") == Close(CloseCode.DRAIN, "drain")
    assert fresh.receive(PING, 1) == []
    assert fresh.tick(10_000) == []


@given(st.lists(st.binary(max_size=30) | st.text(max_size=30) | st.sampled_from([PING, HELLO]), max_size=30))
def test_no_input_raises(messages: list[bytes | str]) -> None:
    fresh = connection()
    for now, data in enumerate(messages):
        for action in fresh.receive(data, float(now)):
            assert isinstance(action, Reply | Handle | Close)
            if isinstance(action, Reply):
                json.dumps(action.frame)
        fresh.tick(float(now))
