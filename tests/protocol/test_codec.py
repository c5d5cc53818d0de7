"""Decoding, encoding, merging and batching."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from protocol import codec
from protocol.codec import (
    BadCommand,
    EventEncoder,
    clean_text,
    decode_command,
    decode_message,
    encode,
    message,
)
from protocol.commands import Ping, Prompt
from tests.protocol.streams import VECTORS, Frame, load_vector, logs

if TYPE_CHECKING:
    from protocol.commands import Command


def records(log: list[Frame]) -> list[codec.Record]:
    encoder = EventEncoder("s")
    return [encoder.encode(event) for event in log]


def refused(data: str | bytes) -> BadCommand:
    with pytest.raises(BadCommand) as caught:
        decode_command(data)
    return caught.value


def attempt(data: str | bytes) -> Command | BadCommand:
    try:
        return decode_command(data)
    except BadCommand as exc:
        return exc


# -- decoding commands


def test_decodes_a_command() -> None:
    assert decode_command(b'{"type":"ping","id":"7"}') == Ping(id="7")


def test_ignores_fields_it_does_not_know() -> None:
    assert decode_command('{"type":"ping","from_the_future":[1]}') == Ping()


@pytest.mark.parametrize(
    "data",
    ["", "{", "nonsense", "5", "null", "[]", '[{"type":"ping"}]', '"ping"', '{"type":"ping"} {}', "[" * 5000, "\x00"],
)
def test_what_is_no_json_object_is_a_bad_frame(data: str) -> None:
    assert refused(data).code == "bad_frame"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_words_that_json_does_not_have_are_a_bad_frame(word: str) -> None:
    assert refused(f'{{"type":"respond","value":{word}}}').code == "bad_frame"


def test_those_words_are_fine_inside_a_string() -> None:
    assert decode_command('{"type":"prompt","text":"NaN"}') == Prompt(text="NaN")


def test_bytes_that_are_no_utf8_are_a_bad_frame() -> None:
    assert refused(b'{"type":"prompt","text":"\xff"}').code == "bad_frame"


@pytest.mark.parametrize("kind", ['"dance"', "5", "null", '["ping"]', "{}"])
def test_an_unknown_type_is_named_as_such_and_echoes_the_id(kind: str) -> None:
    bad = refused(f'{{"type":{kind},"id":"x"}}')
    assert (bad.code, bad.id) == ("unknown_type", "x")


def test_a_missing_type_is_invalid_and_names_the_field() -> None:
    bad = refused('{"id":"x"}')
    assert (bad.code, bad.id) == ("invalid", "x")
    assert bad.message.startswith("type:")


@pytest.mark.parametrize("id_", ["5", '""', '"' + "x" * 129 + '"', "[]"])
def test_an_id_that_is_none_is_not_echoed(id_: str) -> None:
    bad = refused(f'{{"type":"ping","id":{id_}}}')
    assert (bad.code, bad.id) == ("invalid", None)
    assert bad.message.startswith("id:")


@given(st.binary(max_size=60) | st.text(max_size=60))
def test_any_input_is_a_command_or_a_bad_command(data: bytes | str) -> None:
    outcome = attempt(data)
    assert isinstance(outcome, BaseModel) or outcome.code in ("bad_frame", "unknown_type", "invalid")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
_names = ["id", "session_id", "text", "messages", "attach", "seq", "role", "limit", "on", "decision", "request_id"]


@given(
    st.sampled_from(["hello", "prompt", "attach", "history", "respond", "watch", "abort", "resume"]),
    st.dictionaries(st.sampled_from(_names), _json, max_size=5),
)
def test_any_fields_make_a_command_or_name_a_field(kind: str, fields: dict[str, Any]) -> None:
    outcome = attempt(json.dumps({"type": kind, **fields}))
    if isinstance(outcome, BadCommand):
        assert outcome.code == "invalid"
        assert outcome.message.split(":")[0].split(".")[0] in {*fields, "frame", *_names}


# -- encoding


@given(_json)
def test_encode_gives_json_back(value: Any) -> None:
    decoded = json.loads(encode(value))
    assert decoded == json.loads(json.dumps(codec.jsonable(value)))


class Stranger:
    def __repr__(self) -> str:
        return "<stranger \ud800>"


class Model(BaseModel):
    a: int = 1


def test_what_json_cannot_say_is_said_as_a_string() -> None:
    value = {"set": {1}, 5: b"\xff", "big": 2**80, "nan": math.nan, "s": Stranger(), "m": Model(), "c": Model}
    decoded = json.loads(encode(value))
    assert decoded["set"] == [1]
    assert decoded["5"] == "\ufffd"
    assert decoded["big"] == str(2**80)
    assert decoded["nan"] is None
    assert decoded["s"] == "<stranger \ufffd>"
    assert decoded["m"] == {"a": 1}
    assert "Model" in decoded["c"]


def test_encode_survives_endless_nesting() -> None:
    value: list[Any] = []
    value.append(value)
    assert encode(value) == b'["[[...]]"]'


def test_encode_ends_where_a_value_contains_itself_many_times() -> None:
    node: dict[str, Any] = {}
    node["children"] = [{"parent": node, "root": node} for _ in range(3)]
    assert len(encode(node)) < 10_000


def test_encode_survives_what_cannot_even_be_shown() -> None:
    class Unsayable:
        def __repr__(self) -> str:
            raise ValueError

    assert encode({"x": [Unsayable()], Unsayable(): 1}) == b'{"x":["<Unsayable>"],"<Unsayable>":1}'


@given(st.text(alphabet=st.characters(min_codepoint=0xD700, max_codepoint=0xE100) | st.characters(codec="utf-8")))
def test_clean_text_is_encodable_and_leaves_good_text_alone(text: str) -> None:
    clean = clean_text(text)
    clean.encode()
    if not any(0xD800 <= ord(char) < 0xE000 for char in text):
        assert clean == text
    assert clean_text(clean) == clean


def test_clean_text_joins_surrogate_pairs() -> None:
    assert clean_text("\ud83d\ude00") == "😀"
    assert clean_text("a\ud83db") == "a\ufffdb"


# -- events


@given(logs())
def test_an_encoded_event_is_the_event(log: list[Frame]) -> None:
    for event, record in zip(log, records(log), strict=True):
        assert json.loads(record.data) == event
        assert record.seq == event["seq"]


def test_a_delta_with_a_lone_surrogate_still_goes_out() -> None:
    event = {"type": "text-delta", "session_id": "s", "seq": 1, "run_id": "r", "part_id": "p", "text": "a\udc00b"}
    record = EventEncoder("s").encode(event)
    assert json.loads(record.data)["text"] == "a\ufffdb"


def test_one_frame_is_sent_bare_and_several_as_an_array() -> None:
    assert message([b'{"a":1}']) == b'{"a":1}'
    assert message([b'{"a":1}', b'{"b":2}']) == b'[{"a":1},{"b":2}]'
    assert message([b'{"a":1},{"b":2}'], joined=True) == b'[{"a":1},{"b":2}]'
    assert decode_message('{"a":1}') == [{"a": 1}]
    assert decode_message('[{"a":1},{"b":2}]') == [{"a": 1}, {"b": 2}]


def test_the_vectors_survive_the_wire() -> None:
    for path in VECTORS:
        for frame in load_vector(path)["frames"]:
            assert orjson.loads(encode(frame)) == frame
