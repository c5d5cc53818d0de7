"""Clients that cost almost nothing: they count what they look for in raw bytes and parse no JSON.

With a real client on the other core the client would be what is measured. So every rival's client is made of these two:
a WebSocket that cuts frames out of the byte stream, and an HTTP stream that does not even do that.
"""

from __future__ import annotations

import asyncio
import os
import struct
from typing import TYPE_CHECKING, Any, Self, cast

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable


class _Watched(asyncio.Protocol):
    """Bytes in; somebody waits until something has come so often."""

    def __init__(self) -> None:
        self.bytes = 0
        self._needle = b""
        self._missing = 0
        self._found: asyncio.Future[bytes] | None = None
        self._ended: Exception | None = None
        self._backlog: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionError("the server closed the connection"))

    async def until(self, needle: bytes, times: int = 1) -> bytes:
        """Wait until ``needle`` has come so often, counted from the last wait's end; give the message it came in."""
        self._needle, self._missing = needle, times
        self._found = asyncio.get_running_loop().create_future()
        backlog, self._backlog = self._backlog, []
        for number, payload in enumerate(backlog):
            self._look(payload)
            if self._found is None or self._found.done():
                self._backlog = backlog[number + 1 :]
                break
        if self._ended is not None and not self._found.done():
            raise self._ended
        return await self._found

    def _look(self, payload: bytes) -> None:
        found = self._found
        if found is None or found.done():
            self._backlog.append(payload)
            return
        self._missing -= payload.count(self._needle)
        if self._missing <= 0:
            found.set_result(payload)

    def _end(self, exc: Exception) -> None:
        self._ended = exc
        if self._found is not None and not self._found.done():
            self._found.set_exception(exc)

    def close(self) -> None:
        """Hang up."""
        self._transport.abort()


class RawSocket(_Watched):
    """A WebSocket. ``messages`` counts; ``listen`` is called with each text message instead of keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = 0
        self.listen: Callable[[bytes], None] | None = None
        self._buffer = b""
        self._opened = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, port: int, path: str = "/ws", *, source: str | None = None) -> Self:
        """Open one by hand, from a given loopback address where the ports of one do not suffice."""
        local = None if source is None else (source, 0)
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port, local_addr=local)
        client._transport.write(
            (
                f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        await client._opened
        return client

    def send(self, frame: Any) -> None:
        """Send JSON."""
        self.send_text(orjson.dumps(frame))

    def send_text(self, data: bytes, opcode: int = 1) -> None:
        """Send one message, masked."""
        mask, size, first = os.urandom(4), len(data), 0x80 | opcode
        head = struct.pack("!BB", first, 0x80 | size) if size < 126 else struct.pack("!BBH", first, 0x80 | 126, size)
        masked = int.from_bytes(data) ^ int.from_bytes((mask * (size // 4 + 1))[:size])
        self._transport.write(head + mask + masked.to_bytes(size))

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        if self._buffer:
            data = self._buffer + data
        if not self._opened.done():
            head, separator, rest = data.partition(b"\r\n\r\n")
            if not separator:
                self._buffer = data
                return
            if b" 101 " not in head:
                self._opened.set_exception(ConnectionError(head.decode()))
                return
            self._opened.set_result(None)
            data = rest
        self._cut(data)

    def _cut(self, data: bytes) -> None:
        """Cut whole frames off the bytes; keep the rest."""
        position, have = 0, len(data)
        while have - position >= 2:
            size, start = data[position + 1] & 0x7F, position + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                if have < start + width:
                    break
                size = int.from_bytes(data[start : start + width])
                start += width
            if have < start + size:
                break
            opcode, position = data[position] & 0x0F, start + size
            if opcode == 1:
                self._take(data[start:position])
            elif opcode == 9:
                self.send_text(data[start:position], 10)
            elif opcode == 8:
                self._end(ConnectionError(f"closed: {data[start:position]!r}"))
        self._buffer = data[position:]

    def _take(self, payload: bytes) -> None:
        self.messages += 1
        if self.listen is not None:
            self.listen(payload)
        else:
            self._look(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._opened.done():
            self._opened.set_exception(self._ended or ConnectionError())


class SocketIO(RawSocket):
    """A Socket.IO client, over WebSocket from the start: packets are counted, pings answered, nothing is parsed."""

    @classmethod
    async def open(cls, port: int, path: str = "/socket.io/", auth: object = None) -> Self:
        """Connect to the default namespace."""
        client = await cls.connect(port, f"{path}?EIO=4&transport=websocket")
        await client.until(b'"sid"')
        client.send_text(b"40" + (b"" if auth is None else orjson.dumps(auth)))
        await client.until(b'40{"sid"')
        return client

    def emit(self, *event: object) -> None:
        """Send an event with its arguments."""
        self.send_text(b"42" + orjson.dumps(event))

    def _take(self, payload: bytes) -> None:
        if payload == b"2":
            self.send_text(b"3")
        else:
            super()._take(payload)


class HttpStream(_Watched):
    """An HTTP response, such as server-sent events, as a stream of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self._tail = b""

    @classmethod
    async def request(cls, port: int, method: str, path: str, body: object = None) -> Self:
        """Send a request; :meth:`until` then counts in what comes."""
        _, client = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        data = b"" if body is None else orjson.dumps(body)
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        client._transport.write(head.encode() + data)
        return client

    def data_received(self, data: bytes) -> None:
        self.bytes += len(data)
        # A needle may be cut by the edge of two reads; what has been counted is not looked at twice.
        whole = self._tail + data
        last = whole.rfind(b"\n") + 1
        self._tail = whole[last:]
        if last:
            self._look(whole[:last])
