"""A server that a test plays by hand, on a real socket."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from protocol.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from websockets.http11 import Request, Response

Frame = dict[str, Any]
PATIENCE = 5.0  # seconds


class Conversation:
    """One connection as the test sees it."""

    def __init__(self, socket: ServerConnection) -> None:
        self.socket = socket

    async def recv(self) -> Frame:
        """Take the next command."""
        async with asyncio.timeout(PATIENCE):
            frame: Frame = json.loads(await self.socket.recv())
            return frame

    async def send(self, *frames: Frame) -> None:
        """Send frames, several as one array."""
        await self.socket.send(json.dumps(frames[0] if len(frames) == 1 else frames))

    async def close(self, code: int, reason: str = "") -> None:
        """End the connection."""
        await self.socket.close(code, reason)

    def cut(self) -> None:
        """Break the connection without a word."""
        self.socket.transport.abort()

    async def closed(self) -> int | None:
        """Wait until the client has left; gives its close code."""
        async with asyncio.timeout(PATIENCE):
            try:
                while True:
                    await self.socket.recv()
            except ConnectionClosed as exc:
                return exc.rcvd.code if exc.rcvd is not None else None

    async def welcome(self, heartbeat_s: float = 15, **fields: Any) -> Frame:
        """Take the hello and welcome the client; gives the hello."""
        hello = await self.recv()
        assert hello["type"] == "hello"
        limits = {"max_frame_bytes": 1 << 20, "max_sessions": 10, "commands_per_s": 100}
        await self.send(
            {
                "type": "welcome",
                "protocol": 1,
                "connection_id": "c",
                "server": "scripted",
                "heartbeat_s": heartbeat_s,
                "limits": limits,
                **fields,
            }
        )
        return hello


class ScriptedServer:
    """Hands every connection to the test; ``refuse`` answers handshakes with HTTP 503 that often."""

    def __init__(self) -> None:
        self.port = 0
        self.refuse = 0
        self.refused = asyncio.Event()
        self._arrived: asyncio.Queue[Conversation] = asyncio.Queue(16)

    @property
    def url(self) -> str:
        """The address to connect to."""
        return f"ws://127.0.0.1:{self.port}/ws"

    async def accept(self) -> Conversation:
        """Wait for the next connection."""
        async with asyncio.timeout(PATIENCE):
            return await self._arrived.get()

    async def _handle(self, socket: ServerConnection) -> None:
        conversation = Conversation(socket)
        await self._arrived.put(conversation)
        await socket.wait_closed()

    async def _check(self, socket: ServerConnection, request: Request) -> Response | None:
        if self.refuse > 0:
            self.refuse -= 1
            self.refused.set()
            return socket.respond(503, "draining\n")
        return None


@asynccontextmanager
async def scripted_server() -> AsyncIterator[ScriptedServer]:
    """Run a scripted server on a free port of the loopback."""
    scripted = ScriptedServer()
    async with serve(
        scripted._handle,
        "127.0.0.1",
        0,
        subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
        process_request=scripted._check,
        compression=None,
        ping_interval=None,
        close_timeout=1,
    ) as server:
        scripted.port = server.sockets[0].getsockname()[1]
        try:
            yield scripted
        finally:
            for socket in server.connections:
                socket.transport.abort()
