"""The audit trail: one line of JSON on the logger ``gateway.audit`` for whatever somebody may have to answer for.

Failed authentication, refused origins, sharing, deletions. Names come from clients, so they are JSON: a line break in
one makes no second line. Send the logger where you keep such things; it is part of the ordinary log otherwise.
"""

from __future__ import annotations

import logging
from typing import Any, Literal, TypeAlias

import orjson

logger = logging.getLogger("gateway.audit")

Event: TypeAlias = Literal[
    "authentication-failed",
    "authentication-expired",
    "origin-refused",
    "access-denied",
    "session-shared",
    "session-unshared",
    "session-deleted",
]

_WARNINGS = frozenset({"authentication-failed", "origin-refused", "access-denied"})


def audit(event: Event, *, address: str | None = None, principal: str | None = None, **fields: Any) -> None:
    """Write a line: the event, who (None: nobody knows), from where, and ``fields``, which hold no secret."""
    entry = {"event": event, "principal": principal, "address": address, **fields}
    level = logging.WARNING if event in _WARNINGS else logging.INFO
    logger.log(level, "%s", orjson.dumps(entry, default=str).decode())
