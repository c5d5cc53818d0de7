"""What an engine's value is in an event: always what JSON would make of it."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.values import bound
from protocol.codec import encode

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text(st.characters(max_codepoint=127), min_size=1000, max_size=1050),
    st.lists(st.one_of(st.integers(), st.text()), max_size=3),
)


@given(VALUES)
@example(2**53)
@example(-(2**53))
@example(2**70)
@example("\ud83d")
@example("\x00" * 1024)
def test_a_value_is_put_into_an_event_as_json_has_it(value: Any) -> None:
    event: dict[str, Any] = {}
    bound(event, "data", value)
    assert event.pop("_size", 0) in (0, len(encode(value)))
    assert event == {"data": orjson.loads(encode(value))}
    assert type(event["data"]) is type(orjson.loads(encode(value)))


class Shouting(str):
    """A string of the engine's own class, which may be changed, or lie."""

    __slots__ = ("mood",)


class Level(int):
    """A number of the engine's own class."""


def test_what_only_looks_plain_is_copied() -> None:
    for value in (Shouting("hey"), Level(3)):
        event: dict[str, Any] = {}
        bound(event, "data", value)
        assert type(event["data"]) in (str, int)
