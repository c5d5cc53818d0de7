"""Identifiers and the wall clock."""

from __future__ import annotations

import secrets
import time


def now_ms() -> int:
    """Milliseconds since 1970, the unit of every ``time`` on the wire."""
    return time.time_ns() // 1_000_000


def new_id(prefix: str) -> str:
    """Make an id that sorts by time and is unique: 44 bits of milliseconds, 48 random bits."""
    return f"{prefix}_{now_ms():011x}{secrets.token_hex(6)}"


def new_row_id() -> int:
    """Make a 63-bit row id that sorts by time, so that every node can make its own."""
    return now_ms() << 21 | secrets.randbits(21)
