"""Telling providers' errors apart by status and code, whichever library raised them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.adapters.errors import provider_error
from gateway.engine.errors import EngineError, RateLimitError, ToolError


class Answered(Exception):
    """What an SDK raises for an HTTP error."""

    def __init__(self, status: int, code: object = None, headers: dict[str, str] | None = None) -> None:
        super().__init__("sk-secret")
        self.status_code = status
        self.code = code
        self.response = type("Response", (), {"headers": headers or {}})()


class APIConnectionError(Exception):
    """The name that OpenAI's and Anthropic's libraries give to a connection that failed."""


@pytest.mark.parametrize(
    ("status", "code", "reason", "retryable"),
    [
        (401, None, "AuthError", False),
        (403, None, "AuthError", False),
        (429, None, "RateLimitError", True),
        (429, "insufficient_quota", "RateLimitError", False),
        (400, "context_length_exceeded", "ContextOverflowError", False),
        (413, None, "ContextOverflowError", False),
        (400, "content_filter", "ContentFilterError", False),
        (500, None, "APIError", True),
        (408, None, "APIError", True),
        (404, None, "APIError", False),
    ],
)
def test_a_status_has_a_reason(status: int, code: str | None, reason: str, retryable: bool) -> None:
    ours = provider_error(Answered(status, code))
    assert isinstance(ours, EngineError)
    assert (ours.reason, ours.retryable, ours.status_code, ours.code) == (reason, retryable, status, code)
    assert "secret" not in ours.message


def test_a_number_may_be_called_code() -> None:
    """Google's library has its status in ``code``."""
    error: Any = Exception("x")
    error.code = 503
    ours = provider_error(error)
    assert isinstance(ours, EngineError)
    assert (ours.reason, ours.status_code, ours.retryable) == ("APIError", 503, True)


def test_the_pause_that_a_provider_asks_for_is_kept() -> None:
    ours = provider_error(Answered(429, headers={"retry-after": "7"}))
    assert isinstance(ours, RateLimitError)
    assert ours.retry_after == 7.0
    odd = provider_error(Answered(429, headers={"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}))
    assert isinstance(odd, RateLimitError)
    assert odd.retry_after is None


def test_a_connection_that_failed_may_come_back() -> None:
    ours = provider_error(APIConnectionError())
    assert isinstance(ours, EngineError)
    assert (ours.reason, ours.retryable) == ("APIError", True)


def test_the_cause_counts_where_it_knows_more() -> None:
    """A wrapper with the status alone hides an overflow; what was only being handled meanwhile explains nothing."""
    wrapper = Answered(400)
    wrapper.__cause__ = Answered(400, "context_length_exceeded")
    ours = provider_error(wrapper)
    assert isinstance(ours, EngineError)
    assert ours.reason == "ContextOverflowError"
    bug = KeyError("x")
    bug.__context__ = Answered(429)
    assert provider_error(bug) is bug


def test_what_is_no_providers_stays_what_it_is() -> None:
    bug, ours = ValueError("x"), ToolError("said by a tool")
    assert provider_error(bug) is bug
    assert provider_error(ours) is ours
