"""The contract for machines: JSON Schema of every frame and an AsyncAPI 3 document, generated from the types.

``python -m protocol.schema`` writes ``protocol/schema/``; ``--check`` only compares and exits 1 on drift. The web SDK's
types are generated from these files.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, TypeAdapter

from protocol.commands import Command, DiscriminatedCommand
from protocol.events import Event
from protocol.frames import PROTOCOL_VERSION, SUBPROTOCOL, ServerFrame
from protocol.messages import Message

DIRECTORY = Path(__file__).parent / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"

_DiscriminatedEvent = Annotated[Event, Field(discriminator="type")]
_DiscriminatedFrame = Annotated[ServerFrame, Field(discriminator="type")]

COMMANDS: TypeAdapter[Any] = TypeAdapter(DiscriminatedCommand)
FRAMES: TypeAdapter[Any] = TypeAdapter(_DiscriminatedFrame)
EVENTS: TypeAdapter[Any] = TypeAdapter(_DiscriminatedEvent)
MESSAGES: TypeAdapter[Any] = TypeAdapter(Message)

_GROUPS: dict[str, tuple[str, TypeAdapter[Any]]] = {
    "commands": ("What a client may send: one command per WebSocket message.", COMMANDS),
    "frames": ("What a server sends beside events: connection frames and session frames outside the log.", FRAMES),
    "events": ("The sequenced events of a session: durable, replayed, folded.", EVENTS),
    "messages": ("What the fold gives, and what snapshots and history carry.", MESSAGES),
}

_REPLIES = {"hello": "Welcome", "attach": "Attached", "ping": "Pong", "history": "HistoryPage"}


def json_schemas() -> dict[str, dict[str, Any]]:
    """Give the JSON Schema (draft 2020-12) of each group, by name."""
    return {
        name: {"$schema": DIALECT, "title": name, "description": about, **adapter.json_schema()}
        for name, (about, adapter) in _GROUPS.items()
    }


def asyncapi() -> dict[str, Any]:
    """Give the AsyncAPI 3 document: one channel, what the gateway receives and what it sends."""
    _, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, (_, adapter) in _GROUPS.items()],
        ref_template="#/components/schemas/{model}",
    )
    commands = _messages(Command)
    frames = _messages(ServerFrame)
    events = _messages(Event)
    operations: dict[str, Any] = {
        "sendFrame": {
            "action": "send",
            "channel": {"$ref": "#/channels/socket"},
            "summary": "Connection frames and session frames that are not in the log.",
            "messages": _refs(frames),
        },
        "sendEvent": {
            "action": "send",
            "channel": {"$ref": "#/channels/socket"},
            "summary": "The events of attached sessions, in order of seq, each after its commit.",
            "messages": _refs(events),
        },
    }
    for name, message in commands.items():
        reply = _REPLIES.get(message["name"], "Ack")
        operations[f"receive{name}"] = {
            "action": "receive",
            "channel": {"$ref": "#/channels/socket"},
            "summary": message["summary"],
            "messages": _refs([name]),
            "reply": {"channel": {"$ref": "#/channels/socket"}, "messages": _refs([reply, "ErrorFrame"])},
        }
    messages = commands | frames | events
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Agent gateway",
            "version": str(PROTOCOL_VERSION),
            "description": "One WebSocket between AI agents and the people in front of them. The contract in words: "
            "protocol/PROTOCOL.md.",
        },
        "defaultContentType": "application/json",
        "channels": {
            "socket": {
                "address": "/ws",
                "description": "UTF-8 JSON text messages. A client sends one frame per message; a client that said "
                "`batch: true` may also get an array of frames, as if sent one by one.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {
                    "ws": {
                        "method": "GET",
                        "headers": {
                            "type": "object",
                            "properties": {"Sec-WebSocket-Protocol": {"type": "string", "examples": [SUBPROTOCOL]}},
                        },
                        "bindingVersion": "0.1.0",
                    }
                },
            }
        },
        "operations": operations,
        "components": {"messages": messages, "schemas": shared["$defs"]},
    }


def _messages(union: Any) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {}
    for model in get_args(union):
        types = get_args(get_type_hints(model)["type"])
        out[model.__name__] = {
            "name": types[0] if len(types) == 1 else model.__name__,
            "title": ", ".join(types),
            "summary": (model.__doc__ or "").strip().splitlines()[0] if model.__doc__ else ", ".join(types),
            "payload": {"$ref": f"#/components/schemas/{model.__name__}"},
        }
    return out


def _refs(names: Any) -> list[dict[str, str]]:
    return [{"$ref": f"#/channels/socket/messages/{name}"} for name in names]


def documents() -> dict[str, str]:
    """Give every generated file: name → text, the same on every run."""
    contents: dict[str, Any] = {f"{name}.json": schema for name, schema in json_schemas().items()}
    contents["asyncapi.json"] = asyncapi()
    return {
        name: json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
        for name, content in contents.items()
    }


def drift(directory: Path = DIRECTORY) -> list[str]:
    """Name the files in ``directory`` that are missing, old or not generated."""
    wanted = documents()
    found = {path.name: path.read_text("utf-8") for path in directory.glob("*")} if directory.is_dir() else {}
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def write(directory: Path = DIRECTORY) -> None:
    """Write every generated file and remove what is none."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = documents()
    for path in directory.glob("*"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text, "utf-8")


def main(arguments: list[str]) -> int:
    """Run the command line: no argument writes, ``--check`` compares. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print("usage: python -m protocol.schema [--check]", file=sys.stderr)
        return 2
    if not arguments:
        write()
        return 0
    changed = drift()
    for name in changed:
        print(f"{name} differs from the types: run python -m protocol.schema", file=sys.stderr)
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
