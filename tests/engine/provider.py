"""A loopback model provider that speaks an OpenAI-compatible endpoint's SSE, by plan."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


class Provider:
    """Answers each request with the next plan: bytes to send, then hang (None at the end) or close."""

    def __init__(self, *plans: list[bytes | None]) -> None:
        self.plans = list(plans)
        self.requests: list[Any] = []
        self.received = asyncio.Event()
        self.closed = asyncio.Event()
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line)
            self.requests.append(json.loads(await reader.readexactly(length)))
            self.received.set()
            for data in self.plans.pop(0):
                if data is None:
                    await reader.read()  # until the client closes
                    self.closed.set()
                    return
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def provider(*plans: list[bytes | None]) -> AsyncIterator[Provider]:
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


def failure(status: int, body: dict[str, Any], headers: str = "") -> list[bytes | None]:
    payload = json.dumps({"error": body}).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n{headers}"
    return [f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload]


def answer(*deltas: dict[str, Any], finish: str = "stop") -> list[bytes | None]:
    chunks = [chunk(delta) for delta in deltas]
    return [HEADERS, *chunks, chunk({}, finish, usage=USAGE), DONE]
