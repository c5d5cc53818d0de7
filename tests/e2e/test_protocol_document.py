"""Replay the transcripts of protocol/PROTOCOL.md against a real server."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.e2e.support import Server

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENT = Path(__file__).parents[2] / "protocol" / "PROTOCOL.md"
DELTAS = ("text-delta", "reasoning-delta", "tool-input-delta")
PATIENCE = 10.0  # seconds
LINE = re.compile(r"(?:(?P<who>\w+) )?(?P<arrow>[→←~×]) (?:(?P<times>\d+) × )?(?P<body>.+)")


def transcripts() -> Iterator[Any]:
    heading = ""
    for block in re.split(r"(?m)^(?=### |```transcript)", DOCUMENT.read_text("utf-8")):
        if block.startswith("### "):
            heading = block.splitlines()[0].removeprefix("### ")
        elif block.startswith("```transcript"):
            body, _, _ = block.removeprefix("```transcript\n").partition("```")
            yield pytest.param(body.splitlines(), id=heading)


def matches(pattern: Any, value: Any, names: dict[str, Any]) -> bool:
    """Compare by the document's rules; bind ``<name>`` in ``names``."""
    if pattern == "*":
        return True
    if isinstance(pattern, str) and re.fullmatch(r"<\w+>", pattern):
        return bool(names.setdefault(pattern, value) == value)
    if isinstance(pattern, dict) and isinstance(value, dict):
        exact = {key: item for key, item in pattern.items() if key != "…"}
        if not exact.keys() <= value.keys() or ("…" not in pattern and exact.keys() != value.keys()):
            return False
        return all(matches(item, value[key], names) for key, item in exact.items())
    if isinstance(pattern, list) and isinstance(value, list):
        return len(pattern) == len(value) and all(matches(p, v, names) for p, v in zip(pattern, value, strict=True))
    return bool(type(pattern) is type(value) and pattern == value)


def filled(value: Any, names: dict[str, Any]) -> Any:
    """Replace ``<name>`` by what it stands for."""
    if isinstance(value, dict):
        return {key: filled(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


@dataclass
class Peer:
    """One connection of a transcript; ``loose`` are frames that may come anywhere.

    The live list also tells of the sessions of other transcripts: only what ``text`` mentions counts.
    """

    socket: ClientConnection
    names: dict[str, Any]
    text: str
    loose: list[dict[str, Any]] = field(default_factory=list)

    async def send(self, body: str) -> None:
        with suppress(json.JSONDecodeError):  # a transcript may send nonsense
            body = json.dumps(filled(json.loads(body), self.names))
        await self.socket.send(body)

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while True:
                frame: dict[str, Any] = json.loads(await self.socket.recv())
                stray = frame["type"] == "session-changed" and f'"{frame["session_id"]}"' not in self.text
                if frame != {"type": "pong"} and not stray:
                    return frame

    def fits(self, pattern: dict[str, Any], frame: dict[str, Any]) -> bool:
        trial = dict(self.names)
        if not matches(pattern, frame, trial):
            return False
        self.names.update(trial)
        return True

    async def expect(self, pattern: dict[str, Any]) -> None:
        said = ""
        while True:
            frame = await self.next()
            whole = frame
            if pattern["type"] in DELTAS and frame["type"] == pattern["type"]:
                said += frame["text"]
                whole = {**frame, "text": said}
                if len(said) < len(pattern["text"]) and pattern["text"].startswith(said):
                    continue
            if self.fits(pattern, whole):
                return
            if not self.take_loose(frame):
                pytest.fail(f"expected {json.dumps(pattern)}\n     got {json.dumps(whole)}")

    def take_loose(self, frame: dict[str, Any]) -> bool:
        for index, pattern in enumerate(self.loose):
            if self.fits(pattern, frame):
                del self.loose[index]
                return True
        return False

    async def settle(self) -> None:
        while self.loose:
            frame = await self.next()
            if not self.take_loose(frame):
                pytest.fail(f"expected one of {json.dumps(self.loose)}\n     got {json.dumps(frame)}")

    async def closed(self, code: int) -> None:
        with pytest.raises(ConnectionClosed) as caught:
            await self.next()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == code


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("document"), "scripted:engine")
    try:
        server.start()
        yield f"ws://127.0.0.1:{server.port}/ws"
    finally:
        server.close()


@pytest.mark.parametrize("lines", list(transcripts()))
async def test_transcript(lines: list[str], url: str) -> None:
    names: dict[str, Any] = {}
    peers: dict[str, Peer] = {}
    try:
        for line in lines:
            step = LINE.fullmatch(line)
            assert step is not None, line
            who = step["who"] or ""
            if who not in peers:
                peers[who] = Peer(await connect(url), names, "\n".join(lines))
            peer = peers[who]
            for _ in range(int(step["times"] or 1)):
                match step["arrow"]:
                    case "→":
                        await peer.send(step["body"])
                    case "←":
                        await peer.expect(json.loads(step["body"]))
                    case "~":
                        peer.loose.append(json.loads(step["body"]))
                    case "×":
                        await peer.closed(int(step["body"]))
        for peer in peers.values():
            await peer.settle()
    finally:
        for peer in peers.values():
            await peer.socket.close()


def test_the_document_has_transcripts_that_can_be_read() -> None:
    blocks = [param.values[0] for param in transcripts()]
    assert len(blocks) >= 12
    for line in (line for block in blocks for line in block):
        step = LINE.fullmatch(line)
        assert step is not None, line
        if step["arrow"] in "←~":
            assert json.loads(step["body"])["type"]


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ({"a": 1}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "…": "*"}, {"a": 1, "b": 2}, True),
        ({"a": 1, "…": "*"}, {"b": 2}, False),
        ({"a": "*"}, {"a": [1]}, True),
        ({"a": "*"}, {}, False),
        (["<x>", "<x>"], [1, 1], True),
        (["<x>", "<x>"], [1, 2], False),
        ([], [1], False),
        ({"a": 1}, {"a": True}, False),
        ({"a": None}, {"a": 0}, False),
    ],
)
def test_the_matcher(pattern: Any, value: Any, fits: bool) -> None:
    assert matches(pattern, value, {}) is fits
