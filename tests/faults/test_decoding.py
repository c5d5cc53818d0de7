"""The decoder under whatever comes: the fuzzer's corpus, and what hypothesis makes of commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.decoding import check

CORPUS = sorted((Path(__file__).parent / "corpus").iterdir())

_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_type = st.sampled_from(
    ["hello", "prompt", "resume", "abort", "attach", "detach", "respond", "history", "watch", "ping", "sing"]
)
_field = st.sampled_from(
    ["id", "text", "messages", "session_id", "run_id", "on_busy", "attach", "seq", "epoch", "limit", "on", "metadata"]
)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_the_fuzzer_kept_is_a_command_or_a_refusal(path: Path) -> None:
    check(path.read_bytes())


@given(st.binary(max_size=500))
def test_any_bytes_are_a_command_or_a_refusal(data: bytes) -> None:
    check(data)


@given(_type, st.dictionaries(_field, _value, max_size=5))
def test_any_fields_are_a_command_or_a_refusal(kind: str, fields: dict[str, Any]) -> None:
    check(json.dumps({"type": kind, **fields}).encode())


@given(_type, st.dictionaries(_field, _value, max_size=3), st.integers(0, 200), st.binary(max_size=4))
def test_a_command_with_a_wound_is_a_command_or_a_refusal(
    kind: str, fields: dict[str, Any], at: int, wound: bytes
) -> None:
    data = json.dumps({"type": kind, **fields}, ensure_ascii=False).encode("utf-8", "replace")
    check(data[:at] + wound + data[at + len(wound) :])
