"""The limit: a bare asyncio protocol on uvloop that writes one prepared WebSocket frame per event.

No ASGI, no engine, no JSON: what one core can push through a socket event by event.
``python -m tests.bench.servers.raw PORT``; a message ``{"events": n}`` gets n frames and an end.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import sys
from typing import cast

import uvloop

from tests.bench.servers.engines import TOKEN

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
SLICE = 256


def frame(text: str) -> bytes:
    """Frame a short text message."""
    data = text.encode()
    return bytes([0x81, len(data)]) + data


EVENT = frame(json.dumps({"type": "text-delta", "text": TOKEN}, separators=(",", ":")))
FINISH = frame('{"type":"run-finish"}')


class Raw(asyncio.Protocol):
    """One connection. Messages come whole and short: the benchmark sends nothing else."""

    def __init__(self) -> None:
        self._open = False
        self._room = asyncio.Event()
        self._room.set()
        self._runs: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        """Answer the handshake, then start what is ordered."""
        if not self._open:
            key = data.split(b"Sec-WebSocket-Key: ", 1)[1].split(b"\r\n", 1)[0]
            accept = base64.b64encode(hashlib.sha1(key + MAGIC, usedforsecurity=False).digest())
            self._transport.write(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
            )
            self._open = True
        elif data[0] & 0x0F == 1:
            mask, masked = data[2:6], data[6 : 6 + (data[1] & 0x7F)]
            order = json.loads(bytes(byte ^ mask[i % 4] for i, byte in enumerate(masked)))
            task = asyncio.get_running_loop().create_task(self._send(order["events"]))
            self._runs.add(task)
            task.add_done_callback(self._runs.discard)

    def pause_writing(self) -> None:
        """The buffer is full."""
        self._room.clear()

    def resume_writing(self) -> None:
        """It has drained."""
        self._room.set()

    async def _send(self, events: int) -> None:
        write = self._transport.write
        for start in range(0, events, SLICE):
            for _ in range(min(SLICE, events - start)):
                write(EVENT)
            await self._room.wait()
            await asyncio.sleep(0)
        write(FINISH)


async def main(port: int) -> None:
    """Serve until ended."""
    server = await asyncio.get_running_loop().create_server(Raw, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(int(sys.argv[1])))
