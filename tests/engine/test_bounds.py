"""Results of any kind and size become JSON of a bounded one."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import re
from datetime import UTC, datetime
from typing import Any

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engine.bounds import bounded, bounded_text
from protocol.codec import encode

LIMIT = 1000


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Pair:
    left: Any
    right: Any


class Shape(pydantic.BaseModel):
    sides: int
    raw: bytes = b""


@pytest.mark.parametrize(
    ("value", "json_value"),
    [
        (None, None),
        (True, True),
        (2**53, 2**53),
        (2**70, str(2**70)),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("a\ud800b", "a?b"),
        ("ü".encode(), "ü"),
        (b"\x89PNG", "iVBORw=="),
        (bytearray(b"x"), "x"),
        ({1: (1, 2), Colour.RED: Colour.RED}, {"1": [1, 2], "red": "red"}),
        (range(3), [0, 1, 2]),
        ((n * n for n in range(3)), [0, 1, 4]),
        ({7}, [7]),
        (Pair(b"\xff", Pair(1, None)), {"left": "/w==", "right": {"left": 1, "right": None}}),
        (Shape(sides=3), {"sides": 3, "raw": ""}),
        (Shape(sides=3, raw=b"\xff"), "<Shape, not JSON>"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    ],
    ids=lambda value: re.sub(" at 0x.*>", ">", repr(value)),  # an id that every process gives alike
)
def test_whatever_a_tool_returns_becomes_json(value: Any, json_value: Any) -> None:
    assert bounded(value, LIMIT) == (json_value, False)


def test_what_has_no_place_in_json_says_what_it_was() -> None:
    text, cut = bounded(object, LIMIT)
    assert text == "<class 'object'>"
    assert not cut
    assert bounded(10**5000, 10**6)[0].startswith("0x")


def test_a_giant_text_costs_what_is_kept_of_it() -> None:
    text, cut = bounded("ü" * 50_000_000, LIMIT)
    assert cut
    assert set(text) == {"ü"}
    assert len(text.encode()) <= LIMIT


def test_an_endless_generator_is_left_after_the_limit_and_closed() -> None:
    closed = []

    def endless() -> Any:
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    items, cut = bounded(endless(), LIMIT)
    assert cut
    assert items == list(range(len(items)))
    assert 0 < len(items) <= LIMIT
    assert closed == [True]


def test_a_value_that_contains_itself_ends() -> None:
    knot: list[Any] = []
    knot.append(knot)
    value, cut = bounded(knot, LIMIT)
    assert cut
    assert json.dumps(value).count("[") == 64


def test_bytes_cut_inside_a_letter_are_still_text() -> None:
    assert bounded("aü".encode() * 1000, 10) == ("aüaüa", True)


def test_a_cut_text_says_so() -> None:
    assert bounded_text("short", 10) == "short"
    assert bounded_text("long enough", 6) == "long e…"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
        max_leaves=40,
    ),
    st.integers(0, 400),
)
def test_the_result_is_always_json_and_never_much_above_the_limit(value: Any, limit: int) -> None:
    taken, cut = bounded(value, limit)
    data = encode(taken)
    plain = json.dumps(taken, ensure_ascii=False)
    assert json.loads(data) == json.loads(plain)
    assert len(plain.encode()) <= 8 * limit + 64, "escapes apart"
    assert isinstance(cut, bool)
