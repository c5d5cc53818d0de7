"""What an engine may have meant by a value: numbers, ids, errors and usage read from anything, and nothing raised."""

from __future__ import annotations

import math
from typing import Any, get_args

import orjson

from gateway.archive import cut_text
from protocol.codec import MAX_MESSAGE_BYTES, clean_text, encode
from protocol.commands import MAX_SEQ
from protocol.messages import ABORT_ERROR, ErrorReason, MessageError, Usage

Event = dict[str, Any]

MAX_VALUE_BYTES = MAX_MESSAGE_BYTES - 16 * 1024
"""What one text, input or output may take, encoded: a frame around it stays within 1 MiB."""

MAX_ERROR_BYTES = 64 * 1024
"""What the message of an error may take, encoded."""

MAX_WORD_CHARS = 200
_TOKENS = ("input_tokens", "output_tokens", "reasoning_tokens", "cached_tokens")
_REASONS = frozenset(get_args(ErrorReason))


def bound(event: Event, name: str, value: Any) -> None:
    """Put a value into an event as JSON has it, cut and marked if it is too large to be sent.

    It is a copy: what the engine does with its own object afterwards changes nothing that was said.
    """
    if _is_plain(value):
        event[name] = value
        return
    data = encode(value)
    if len(data) > 8192:
        event["_size"] = len(data)
    if len(data) > MAX_VALUE_BYTES:
        text = value if isinstance(value, str) else data.decode()
        value = cut_text(clean_text(text), MAX_VALUE_BYTES)
        event["truncated"] = True
    else:
        value = orjson.loads(data)
    event[name] = value


def _is_plain(value: Any) -> bool:
    """Say whether JSON has a value just as it is, and it is short: most progress is a number or a line."""
    kind = type(value)
    if kind is int:
        return bool(-MAX_SEQ <= value <= MAX_SEQ)
    return (kind is str and len(value) <= 1024 and value.isascii()) or kind is bool or value is None


def bound_text(event: Event) -> None:
    """Clean and cut the text of a delta."""
    text = clean_text(event["text"])
    cut = cut_text(text, MAX_VALUE_BYTES)
    event["text"] = cut
    event["_size"] = len(cut)
    if len(cut) < len(text):
        event["truncated"] = True


def name_of(value: Any) -> str | None:
    """Read an engine's id: a string, or a number that is meant as one."""
    if type(value) is str:
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value) if abs(value) <= MAX_SEQ else None
    return value if isinstance(value, str) and value else None


def text_of(value: Any) -> str:
    """Read an error's text, of which nobody needs a mebibyte, from anything."""
    text = value if isinstance(value, str) else encode(value).decode()
    return cut_text(clean_text(text), MAX_ERROR_BYTES)


def number(value: Any) -> int | float | None:
    """Read a number that is finite, not negative, and exact in JavaScript."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) and 0 <= value <= MAX_SEQ else None


def whole(value: Any) -> int | None:
    """Read a whole number."""
    found = number(value)
    return int(found) if found is not None and found == int(found) else None


def word(value: Any, default: str) -> str:
    """Read a short string."""
    return clean_text(value[:MAX_WORD_CHARS]) if isinstance(value, str) and value else default


def usage_of(value: Any) -> Usage | None:
    """Read a usage; without both counts it was not measured."""
    if not isinstance(value, dict):
        return None
    measured: dict[str, int | float | None] = {name: whole(value.get(name)) for name in _TOKENS}
    measured["cost"] = number(value.get("cost"))
    usage = {name: found for name, found in measured.items() if found is not None}
    if "input_tokens" not in usage or "output_tokens" not in usage:
        return None
    return usage  # type: ignore[return-value]  # the two required keys are there


def error_of(value: Any) -> MessageError | None:
    """Read an error; an abort's is always the same, a reason that v1 does not have is ``UnknownError``."""
    if not isinstance(value, dict) or not isinstance(value.get("reason"), str):
        return None
    reason = value["reason"]
    if reason == "AbortError":
        return ABORT_ERROR
    message, code, retryable = value.get("message"), value.get("code"), value.get("retryable")
    return {
        "reason": reason if reason in _REASONS else "UnknownError",
        "message": None if message is None else text_of(message),
        "code": None if code is None else text_of(code)[:MAX_WORD_CHARS],
        "status_code": whole(value.get("status_code")),
        "retryable": retryable if isinstance(retryable, bool) else None,
    }
