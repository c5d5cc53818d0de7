"""Values made JSON and kept small: what a tool gives back may be anything, of any size.

The walk stops at its budget, so a result of 1 GB costs what is kept of it and no more; what has no place in JSON is
written as text that says what it was.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Any

import pydantic_core

MAX_OUTPUT_BYTES = 256 * 1024
"""What a tool's result may take unless it says otherwise; a model reads every byte of it."""
MAX_PROGRESS_BYTES = 16 * 1024
MAX_ERROR_BYTES = 8 * 1024
MAX_DEPTH = 64


def bounded(value: Any, limit: int) -> tuple[Any, bool]:
    """Give ``value`` as JSON values of about ``limit`` bytes at most, and whether anything was left out."""
    walk = _Walk(limit)
    return walk.take(value, 0), walk.cut


def bounded_text(text: str, limit: int) -> str:
    """Cut ``text`` to ``limit`` bytes; an ellipsis says so."""
    walk = _Walk(limit)
    kept = walk.text(text)
    return kept + "…" if walk.cut else kept


class _Walk:
    def __init__(self, limit: int) -> None:
        self.left = limit
        self.cut = False

    def take(self, value: Any, depth: int) -> Any:
        self.left -= 2  # quotes or brackets, and a comma
        match value:
            case Enum():
                return self.take(value.value, depth)
            case None | bool():
                return value
            case str():
                return self.text(value)
            case int():
                return int(value) if value.bit_length() < 64 else self.text(_digits(value))
            case float():
                return float(value) if math.isfinite(value) else self.text(str(value))
            case bytes() | bytearray() | memoryview():
                return self._bytes(memoryview(value).cast("B"))
        if depth >= MAX_DEPTH:
            self.cut = True
            return "…"
        match value:
            case Mapping():
                return self._mapping(value.items(), depth)
            case Sequence() | Set() | Iterator():
                return self._items(value, depth)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._mapping(((f.name, getattr(value, f.name)) for f in dataclasses.fields(value)), depth)
        return self.take(_plain(value), depth + 1)

    def text(self, text: str) -> str:
        room = max(self.left, 0)
        data = text[:room].encode("utf-8", "replace")  # a lone surrogate has no place on the wire
        kept = data.decode() if len(data) <= room else data[:room].decode(errors="ignore")
        self.left -= len(data)
        self.cut = self.cut or len(kept) < len(text)
        return kept

    def _bytes(self, data: memoryview) -> str:
        head = bytes(data[: max(self.left, 0)])
        whole = len(head) == len(data)
        try:
            text = head.decode()
        except UnicodeDecodeError as error:
            if whole or error.start < len(head) - 3:  # not merely cut inside a letter
                text = base64.b64encode(head[: len(head) if whole else len(head) // 4 * 3]).decode()
            else:
                text = head[: error.start].decode()
        self.cut = self.cut or not whole
        return self.text(text)

    def _mapping(self, items: Iterable[tuple[Any, Any]], depth: int) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        for key, item in items:
            if self.left <= 0:
                self.cut = True
                break
            name = key.value if isinstance(key, Enum) else key
            name = self.text(name if isinstance(name, str) else str(name))  # before its value spends what is left
            taken[name] = self.take(item, depth + 1)
        return taken

    def _items(self, items: Iterable[Any], depth: int) -> list[Any]:
        taken: list[Any] = []
        for item in items:
            if self.left <= 0:
                self.cut = True
                break
            taken.append(self.take(item, depth + 1))
        if isinstance(items, Generator):
            items.close()
        return taken


def _digits(number: int) -> str:
    return str(number) if number.bit_length() < 4096 else hex(number)  # Python itself refuses more decimal digits


def _plain(value: Any) -> Any:
    try:
        return pydantic_core.to_jsonable_python(value, serialize_unknown=True)
    except Exception:  # a model that cannot say itself as JSON, bytes that are no text for one
        return f"<{type(value).__name__}, not JSON>"
