"""Every field of every command: what it takes, and that its error names it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, get_args

import pytest

from protocol import commands
from protocol.codec import BadCommand, decode_command

if TYPE_CHECKING:
    from pydantic import BaseModel

MESSAGE = {"role": "user", "parts": [{"type": "text", "text": "hi"}]}
VALID: dict[str, dict[str, Any]] = {
    "hello": {
        "token": "t",
        "client": {"name": "x"},
        "batch": True,
        "attach": [{"session_id": "s", "epoch": "e", "seq": 4, "role": "observer"}],
    },
    "prompt": {
        "session_id": "s",
        "text": "hi",
        "on_busy": "queue",
        "on_disconnect": "continue",
        "grace_s": 0,
        "deadline_s": 1.5,
        "on_lost": "resume",
        "replaces": "msg_1",
        "metadata": {"k": [1]},
    },
    "resume": {"session_id": "s", "on_disconnect": "abort", "grace_s": 2.5, "deadline_s": 60},
    "abort": {"session_id": "s", "run_id": "r", "command_id": "c", "reason": "enough"},
    "attach": {"session_id": "s", "epoch": "e", "seq": 0, "role": "owner"},
    "detach": {"session_id": "s", "run": "abort"},
    "respond": {"session_id": "s", "request_id": "q", "decision": "allow", "value": {"any": "thing"}},
    "history": {"session_id": "s", "before": "msg_9", "limit": 200},
    "watch": {"on": True},
    "ping": {},
}
REQUIRED = {
    "resume": ["session_id"],
    "attach": ["session_id"],
    "detach": ["session_id"],
    "respond": ["session_id", "request_id", "decision"],
    "history": ["session_id"],
    "watch": ["on"],
}
WRONG: list[tuple[str, str, Any]] = [
    ("ping", "id", 5),
    ("ping", "id", ""),
    ("ping", "id", "x" * 129),
    ("hello", "token", 5),
    ("hello", "batch", "true"),
    ("hello", "batch", 1),
    ("hello", "attach", {}),
    ("hello", "attach.0.session_id", "no spaces"),
    ("hello", "attach.0.seq", -1),
    ("hello", "attach.0.role", "boss"),
    ("hello", "attach.0.epoch", 1),
    ("prompt", "session_id", ""),
    ("prompt", "session_id", "x" * 129),
    ("prompt", "session_id", "a/b"),
    ("prompt", "session_id", "a\n"),
    ("prompt", "session_id", "é"),
    ("prompt", "text", ""),
    ("prompt", "text", 5),
    ("prompt", "text", ["hi"]),
    ("prompt", "on_busy", "wait"),
    ("prompt", "on_disconnect", "maybe"),
    ("prompt", "on_lost", True),
    ("prompt", "grace_s", -1),
    ("prompt", "grace_s", "5"),
    ("prompt", "deadline_s", 0),
    ("prompt", "deadline_s", True),
    ("prompt", "replaces", 5),
    ("prompt", "metadata", []),
    ("resume", "session_id", None),
    ("resume", "grace_s", 1e9),
    ("abort", "session_id", 7),
    ("abort", "run_id", ""),
    ("abort", "command_id", []),
    ("abort", "reason", 5),
    ("attach", "session_id", 5),
    ("attach", "seq", 2**53),
    ("attach", "seq", 1.5),
    ("attach", "seq", "1"),
    ("attach", "seq", True),
    ("attach", "role", "Owner"),
    ("detach", "run", "stop"),
    ("respond", "decision", "maybe"),
    ("respond", "decision", "withdrawn"),
    ("respond", "request_id", 5),
    ("history", "before", 5),
    ("history", "limit", 0),
    ("history", "limit", 201),
    ("history", "limit", "50"),
    ("watch", "on", "yes"),
]


def frame(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **VALID[kind], **fields})


def test_the_table_covers_every_command_and_every_field() -> None:
    models: tuple[type[BaseModel], ...] = get_args(commands.Command)
    assert {model.model_fields["type"].default for model in models} == set(VALID) == set(commands.COMMAND_TYPES)
    for model in models:
        kind = model.model_fields["type"].default
        known = set(model.model_fields) - {"id", "type", "messages"}
        assert set(VALID[kind]) == known


@pytest.mark.parametrize("kind", VALID)
def test_takes_every_field(kind: str) -> None:
    command = decode_command(frame(kind, id="i"))
    assert command.id == "i"
    dumped = command.model_dump(mode="json")
    for name, value in VALID[kind].items():
        assert dumped[name] == value


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in REQUIRED.items() for name in names])
def test_a_missing_field_is_named(kind: str, name: str) -> None:
    fields = {key: value for key, value in VALID[kind].items() if key != name}
    with pytest.raises(BadCommand, match=f"^{name}: ") as caught:
        decode_command(json.dumps({"type": kind, "id": "i", **fields}))
    assert caught.value.code == "invalid"
    assert caught.value.id == "i"


@pytest.mark.parametrize(("kind", "path", "value"), WRONG)
def test_a_wrong_field_is_named(kind: str, path: str, value: Any) -> None:
    name, _, inner = path.partition(".0.")
    fields = {name: [{"session_id": "s", inner: value}]} if inner else {name: value}
    with pytest.raises(BadCommand) as caught:
        decode_command(frame(kind, **fields))
    assert caught.value.code == "invalid"
    assert caught.value.message.startswith(f"{path}: ")


@pytest.mark.parametrize("kind", sorted(set(VALID) - set(REQUIRED) - {"prompt"}))
def test_everything_else_is_optional(kind: str) -> None:
    assert decode_command(json.dumps({"type": kind})).id is None


def test_defaults_are_those_of_the_contract() -> None:
    prompt = decode_command('{"type":"prompt","text":"x"}')
    assert isinstance(prompt, commands.Prompt)
    assert (prompt.on_busy, prompt.on_disconnect, prompt.on_lost) == ("reject", "abort", "seal")
    assert (prompt.grace_s, prompt.deadline_s, prompt.session_id) == (None, None, None)
    attach = decode_command('{"type":"attach","session_id":"s"}')
    assert isinstance(attach, commands.Attach)
    assert (attach.role, attach.seq) == ("owner", None)
    history = decode_command('{"type":"history","session_id":"s"}')
    assert isinstance(history, commands.History)
    assert history.limit == 50
    hello = decode_command('{"type":"hello"}')
    assert isinstance(hello, commands.Hello)
    assert (hello.batch, hello.attach) == (False, [])
    detach = decode_command('{"type":"detach","session_id":"s"}')
    assert isinstance(detach, commands.Detach)
    assert detach.run == "continue"


@pytest.mark.parametrize("fields", [{}, {"text": "x", "messages": [MESSAGE]}])
def test_a_prompt_has_exactly_one_of_text_and_messages(fields: dict[str, Any]) -> None:
    with pytest.raises(BadCommand, match=r"^frame: a prompt has exactly one of text and messages") as caught:
        decode_command(json.dumps({"type": "prompt", **fields}))
    assert caught.value.code == "invalid"


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "text", "text": ""}],
        [{"type": "file", "media_type": "image/png", "url": "https://x.test/a.png"}],
        [{"type": "file", "media_type": "image/png", "data": "aGk=", "name": "a.png"}],
        [{"type": "custom", "name": "place", "data": {"lat": 1}}],
    ],
)
def test_a_prompt_takes_every_part_a_person_can_send(parts: list[dict[str, Any]]) -> None:
    prompt = decode_command(json.dumps({"type": "prompt", "messages": [{"role": "user", "parts": parts}]}))
    assert isinstance(prompt, commands.Prompt)
    assert prompt.messages is not None
    assert len(prompt.messages[0].parts) == 1


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ([{"role": "assistant", "parts": MESSAGE["parts"]}], "messages.0.role"),
        ([{"role": "user", "parts": []}], "messages.0.parts"),
        ([{"role": "user"}], "messages.0.parts"),
        ([{"role": "user", "parts": [{"type": "tool"}]}], "messages.0.parts.0"),
        ([{"role": "user", "parts": [{"type": "text"}]}], "messages.0.parts.0.text.text"),
        ([{"role": "user", "parts": [{"type": "file", "media_type": "a/b"}]}], "messages.0.parts.0.file"),
        (
            [{"role": "user", "parts": [{"type": "file", "media_type": "a/b", "url": "u", "data": "d"}]}],
            "messages.0.parts.0.file",
        ),
    ],
)
def test_a_wrong_message_is_named_to_the_part(messages: Any, where: str) -> None:
    with pytest.raises(BadCommand) as caught:
        decode_command(json.dumps({"type": "prompt", "messages": messages}))
    assert caught.value.code == "invalid"
    assert caught.value.message.startswith(f"{where}: ")
