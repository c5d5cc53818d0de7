"""The providers' errors as ours, told apart by what all their libraries agree on: a status and a code."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from gateway.engine.errors import (
    APIError,
    AuthError,
    ContentFilterError,
    ContextOverflowError,
    EngineError,
    RateLimitError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

log = logging.getLogger("gateway.adapters")

_OVERFLOW = frozenset({"context_length_exceeded", "request_too_large", "string_above_max_length"})
_UNREACHABLE = frozenset(
    {"APIConnectionError", "APITimeoutError", "ConnectError", "TransportError", "TimeoutException"}
)


def provider_error(error: Exception) -> Exception:
    """Translate what an agent raised; an error that is no provider's is given back as it is.

    The text stays in the log, since a provider's may repeat what was sent.
    """
    if isinstance(error, EngineError):
        return error
    found = [ours for cause in _causes(error) if (ours := _translate(cause)) is not None]
    if not found:
        return error
    log.warning("provider error: %r", error)
    # A framework's wrapper may have kept the status only, while what it wraps knows the code.
    return next((ours for ours in found if type(ours) is not APIError), found[0])


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Give the error and what it was raised from, which is not what merely was being handled at the time."""
    for _ in range(8):
        if error is None:
            return
        yield error
        error = error.__cause__


def _translate(error: BaseException) -> EngineError | None:
    if isinstance(error, EngineError):
        return error
    status = getattr(error, "status_code", None)
    code = getattr(error, "code", None)
    if status is None and isinstance(code, int):
        status, code = code, None
    code = code if isinstance(code, str) else None
    if not isinstance(status, int):
        names = {base.__name__ for base in type(error).__mro__}
        return APIError("The provider could not be reached", code=code) if names & _UNREACHABLE else None
    if code == "content_filter":
        return ContentFilterError("The provider withheld the answer", code=code, status_code=status)
    if status == 413 or code in _OVERFLOW:
        return ContextOverflowError("The conversation is too long for the model", code=code, status_code=status)
    if status in (401, 403):
        return AuthError("The provider refused the credentials", code=code, status_code=status)
    if status == 429:
        wait = _retry_after(error)
        said = "The provider asks to slow down"
        if code == "insufficient_quota":
            return RateLimitError("The provider's quota is used up", code=code, status_code=status, retryable=False)
        return RateLimitError(said, code=code, status_code=status, retry_after=wait)
    retryable = status >= 500 or status in (408, 409)
    return APIError(f"The provider answered with status {status}", code=code, status_code=status, retryable=retryable)


def _retry_after(error: BaseException) -> float | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None) or {}
    try:
        return float(headers.get("retry-after"))
    except (TypeError, ValueError):
        return None
