"""Loopback model providers that play a plan, byte by byte; and OpenAI's side of it (the others: ``dialects``)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@dataclass(frozen=True, slots=True)
class Forever:
    """Send this again and again, until the client hangs up."""

    data: bytes


Move: TypeAlias = "bytes | asyncio.Event | Forever | None"
"""Bytes are sent, None waits until the client hangs up, an event until it is set."""


class Provider:
    """Answers each request with the next plan."""

    def __init__(self, *plans: list[Any]) -> None:
        self.plans = list(plans)
        self.requests: list[Any] = []
        self.heads: list[str] = []
        self.received = asyncio.Event()
        self.closed = asyncio.Event()
        self.url = ""

    @property
    def root(self) -> str:
        """The server's address without a path."""
        return self.url.removesuffix("/v1")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
            self.requests.append(json.loads(await reader.readexactly(length)))
            self.heads.append(head.decode())
            self.received.set()
            hung_up = asyncio.create_task(self._hung_up(reader))
            try:
                for move in self.plans.pop(0):
                    await self._play(move, writer, hung_up)
            finally:
                hung_up.cancel()
        except ConnectionError:
            self.closed.set()
        finally:
            writer.close()

    async def _hung_up(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            await reader.read()
        self.closed.set()

    async def _play(self, move: Move, writer: asyncio.StreamWriter, hung_up: asyncio.Task[None]) -> None:
        match move:
            case bytes():
                writer.write(move)
                await writer.drain()
            case asyncio.Event():
                await move.wait()
            case Forever(data):
                while not hung_up.done():
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(0)
            case None:
                await hung_up


@asynccontextmanager
async def provider(*plans: list[Any]) -> AsyncIterator[Provider]:
    served = Provider(*plans)
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    async with server:
        served.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield served


HEADERS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def chunk(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> bytes:
    data = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "local",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        **extra,
    }
    return b"data: " + json.dumps(data).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def response(status: int, body: Any, headers: str = "") -> list[Any]:
    payload = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}"
    return [f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload]


def failure(status: int, body: dict[str, Any], headers: str = "") -> list[Any]:
    return response(status, {"error": body}, headers)


def answer(*deltas: dict[str, Any], finish: str = "stop") -> list[Any]:
    chunks = [chunk(delta) for delta in deltas]
    return [HEADERS, *chunks, chunk({}, finish, usage=USAGE), DONE]
