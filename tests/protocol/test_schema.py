"""The generated schema: as the types say, as the frames are."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from jsonschema import Draft202012Validator

from protocol import frames, schema
from protocol.errors import CommandError
from tests.protocol.streams import VECTORS, load_vector

if TYPE_CHECKING:
    from pathlib import Path

VALIDATORS = {
    name: Draft202012Validator(json.loads((schema.DIRECTORY / f"{name}.json").read_text("utf-8")))
    for name in ("commands", "frames", "events", "messages")
}
SESSION_FRAMES = {"attached", "snapshot", "pong", "error"}


def test_the_files_are_as_the_types_say() -> None:
    assert schema.drift() == []
    assert schema.main(["--check"]) == 0


def test_drift_is_named_and_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(schema, "DIRECTORY", tmp_path)
    schema.write(tmp_path)
    assert schema.drift(tmp_path) == []
    (tmp_path / "events.json").write_text("{}")
    (tmp_path / "stray.json").write_text("{}")
    assert schema.drift(tmp_path) == ["events.json", "stray.json"]
    schema.write(tmp_path)
    assert schema.drift(tmp_path) == []
    monkeypatch.setattr(schema, "drift", lambda: ["events.json"])
    assert schema.main(["--check"]) == 1
    assert "events.json" in capsys.readouterr().err


def test_an_unknown_argument_is_refused() -> None:
    assert schema.main(["--chekc"]) == 2


def test_generation_is_deterministic() -> None:
    assert schema.documents() == schema.documents()


@pytest.mark.parametrize("name", VALIDATORS)
def test_each_schema_is_a_schema(name: str) -> None:
    Draft202012Validator.check_schema(VALIDATORS[name].schema)


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_the_vectors_are_valid(path: Path) -> None:
    vector = load_vector(path)
    for frame in vector["frames"]:
        if frame["type"] == "from-the-future":
            assert not VALIDATORS["events"].is_valid(frame)
            continue
        VALIDATORS["frames" if frame["type"] in SESSION_FRAMES else "events"].validate(frame)
    for message in vector["state"]["messages"]:
        VALIDATORS["messages"].validate(message)


@pytest.mark.parametrize(
    "frame",
    [
        frames.ack("prompt", "i", session_id="s", run_id="r", queued=1, duplicate=True),
        frames.ack("abort", runs=[{"session_id": None, "run_id": None, "state": "latched"}]),
        frames.error(CommandError("rate_limited", "slow", retry_after_s=0.1), "i"),
        frames.pong(),
        {"type": "goaway", "reason": "drain", "retry_after_s": 1.5},
        {"type": "detached", "session_id": "s", "reason": "deleted"},
        {"type": "session-changed", "session_id": "s", "title": None, "status": "idle", "updated_at": 1},
    ],
)
def test_frames_as_they_are_built_are_valid(frame: dict[str, Any]) -> None:
    VALIDATORS["frames"].validate(frame)


@pytest.mark.parametrize(
    ("group", "frame"),
    [
        ("commands", {"type": "attach"}),
        ("commands", {"type": "attach", "session_id": "a b"}),
        ("commands", {"type": "dance"}),
        ("frames", {"type": "ack"}),
        ("frames", {"type": "error", "code": "no_such_code", "message": "", "retryable": False}),
        ("events", {"type": "run-finish", "session_id": "s", "seq": 1, "run_id": "r", "time": 1}),
        ("events", {"type": "text-delta", "session_id": "s", "seq": "1", "run_id": "r"}),
        ("messages", {"id": "m", "role": "user"}),
    ],
)
def test_wrong_frames_are_not(group: str, frame: dict[str, Any]) -> None:
    assert not VALIDATORS[group].is_valid(frame)


@pytest.mark.parametrize(
    "command",
    [
        {"type": "hello", "batch": True, "attach": [{"session_id": "s", "epoch": "e", "seq": 3}]},
        {"type": "prompt", "id": "c", "text": "hi", "on_busy": "steer", "from_the_future": 1},
        {"type": "respond", "session_id": "s", "request_id": "r", "decision": "deny", "value": None},
    ],
)
def test_commands_are_valid_also_with_fields_of_a_later_version(command: dict[str, Any]) -> None:
    VALIDATORS["commands"].validate(command)


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in _references(value)]
    return []


def test_every_reference_of_the_asyncapi_document_leads_somewhere() -> None:
    document = schema.asyncapi()
    references = _references(document)
    assert len(references) > 100
    for reference in references:
        node: Any = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_the_asyncapi_document_has_every_command_with_its_reply() -> None:
    operations = schema.asyncapi()["operations"]
    replies = {
        name.removeprefix("receive"): operation["reply"]["messages"][0]["$ref"].rsplit("/", 1)[1]
        for name, operation in operations.items()
        if operation["action"] == "receive"
    }
    assert replies == {
        "Hello": "Welcome",
        "Prompt": "Ack",
        "Resume": "Ack",
        "Abort": "Ack",
        "Attach": "Attached",
        "Detach": "Ack",
        "Respond": "Ack",
        "History": "HistoryPage",
        "Watch": "Ack",
        "Ping": "Pong",
    }
