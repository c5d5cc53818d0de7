"""Error codes, close codes and the exception tree.

Every way in which a command or a connection can go wrong has one exception here:

* :exc:`GatewayError`
    * :exc:`CommandError` - answered by an ``error`` frame; the connection stays.
    * :exc:`CloseConnection` - ends the connection with a close code.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, TypeAlias, get_args

ErrorCode: TypeAlias = Literal[
    "bad_frame",
    "unknown_type",
    "invalid",
    "unauthorized",
    "forbidden",
    "session_not_found",
    "session_busy",
    "not_resumable",
    "not_attached",
    "id_reuse",
    "queue_full",
    "rate_limited",
    "too_large",
    "unsupported",
    "request_not_found",
    "message_not_found",
    "draining",
    "store_unavailable",
    "internal",
]

ERROR_CODES: tuple[str, ...] = get_args(ErrorCode)

RETRYABLE: frozenset[str] = frozenset({"session_busy", "queue_full", "rate_limited", "draining", "store_unavailable"})
"""Codes that may succeed later with the same command; ``retryable`` in the frame says so."""

HTTP_STATUS: dict[str, int] = {
    "bad_frame": 400,
    "unknown_type": 400,
    "invalid": 422,
    "unauthorized": 401,
    "forbidden": 403,
    "session_not_found": 404,
    "session_busy": 409,
    "not_resumable": 409,
    "not_attached": 409,
    "id_reuse": 409,
    "queue_full": 429,
    "rate_limited": 429,
    "too_large": 413,
    "unsupported": 501,
    "request_not_found": 404,
    "message_not_found": 404,
    "draining": 503,
    "store_unavailable": 503,
    "internal": 500,
}
"""The HTTP status under which the REST routes answer each code."""


class CloseCode(IntEnum):
    """WebSocket close codes; the range is the verdict (see :func:`should_reconnect`)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    NO_STATUS = 1005
    ABNORMAL = 1006
    TOO_BIG = 1009
    DRAIN = 4100
    AUTH_EXPIRED = 4101
    TOO_SLOW = 4102
    HEARTBEAT_LOST = 4103
    INTERNAL = 4104
    RATE_LIMITED = 4105
    BAD_FRAMES = 4400
    UNAUTHENTICATED = 4401
    FORBIDDEN = 4403
    NO_HELLO = 4408
    REPLACED = 4409


_FINAL = frozenset({1000, 1002, 1003, 1007, 1009})


def should_reconnect(code: int) -> bool:
    """Say whether a client may come back by itself after ``code`` (with jitter), or something must be fixed first."""
    return code not in _FINAL and not 4400 <= code <= 4499


def closed_on_purpose(code: int | None) -> bool:
    """Say whether the *client* closed deliberately: only then is a disconnect an abort at once, without grace."""
    return code in (CloseCode.NORMAL, CloseCode.NO_STATUS)


class GatewayError(Exception):
    """Base of everything the gateway raises on purpose."""


class CommandError(GatewayError):
    """A wrong or impossible command: becomes an ``error`` frame, stores nothing, leaves the connection open."""

    def __init__(self, code: ErrorCode, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code: ErrorCode = code
        self.message = message
        self.retry_after_s = retry_after_s

    @property
    def retryable(self) -> bool:
        """True where the same command may succeed later: by its code, or because somebody said when."""
        return self.code in RETRYABLE or self.retry_after_s is not None


class CloseConnection(GatewayError):
    """The connection has to end with ``code``."""

    def __init__(self, code: CloseCode, reason: str) -> None:
        super().__init__(f"{int(code)} {reason}")
        self.code = code
        self.reason = reason
