"""Codes and verdicts."""

from __future__ import annotations

import pytest

from protocol import errors, frames
from protocol.errors import CloseCode, CommandError, closed_on_purpose, should_reconnect


@pytest.mark.parametrize("code", [1001, 1005, 1006, 1011, 1012, 1013, 4100, 4101, 4102, 4103, 4104, 4105, 4150, 4199])
def test_comes_back_after(code: int) -> None:
    assert should_reconnect(code)


@pytest.mark.parametrize("code", [1000, 1002, 1003, 1007, 1009, 4400, 4401, 4403, 4408, 4409, 4450, 4499])
def test_stays_away_after(code: int) -> None:
    assert not should_reconnect(code)


def test_every_close_code_has_its_verdict_in_its_range() -> None:
    for code in CloseCode:
        if code >= 4000:
            assert should_reconnect(code) == (4100 <= code < 4200)


@pytest.mark.parametrize(("code", "purpose"), [(1000, True), (1005, True), (1001, False), (1006, False), (4101, False)])
def test_only_1000_and_1005_are_a_client_that_left_on_purpose(code: int, purpose: bool) -> None:
    assert closed_on_purpose(code) is purpose


def test_no_close_code_is_no_purpose() -> None:
    assert not closed_on_purpose(None)


def test_every_error_code_has_an_http_status() -> None:
    assert set(errors.HTTP_STATUS) == set(errors.ERROR_CODES)
    assert set(errors.ERROR_CODES) >= errors.RETRYABLE
    assert all(400 <= status < 600 for status in errors.HTTP_STATUS.values())


@pytest.mark.parametrize("code", errors.ERROR_CODES)
def test_an_error_frame_says_whether_the_same_command_may_succeed_later(code: errors.ErrorCode) -> None:
    frame = frames.error(CommandError(code, "why"), "i", "s")
    assert frame == {
        "type": "error",
        "id": "i",
        "session_id": "s",
        "code": code,
        "message": "why",
        "retryable": code in errors.RETRYABLE,
    }


def test_an_error_frame_says_when_and_leaves_out_what_it_does_not_know() -> None:
    frame = frames.error(CommandError("rate_limited", "slow", retry_after_s=0.5))
    assert frame["retry_after_s"] == 0.5
    assert "id" not in frame
    assert "session_id" not in frame


def test_the_exceptions_say_what_happened() -> None:
    closing = errors.CloseConnection(CloseCode.DRAIN, "drain")
    assert (str(closing), closing.code, closing.reason) == ("4100 drain", 4100, "drain")
    assert issubclass(CommandError, errors.GatewayError)
    assert issubclass(errors.CloseConnection, errors.GatewayError)


def test_frames_are_built_without_fields_that_say_nothing() -> None:
    assert frames.ack("prompt", "i", run_id="r", queued=None) == {
        "type": "ack",
        "id": "i",
        "command": "prompt",
        "run_id": "r",
    }
    assert frames.pong() == {"type": "pong"}
    assert frames.pong("i") == {"type": "pong", "id": "i"}
