"""A client that costs almost nothing: it cuts WebSocket frames out of the byte stream and parses no JSON.

With a real client on the other core the client would be what is measured.
"""

from __future__ import annotations

import asyncio
import os
import struct
from typing import Any

import orjson


class RawClient:
    """One connection. ``messages`` and ``bytes`` count what has arrived since :meth:`reset`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self.messages = 0
        self.bytes = 0

    @classmethod
    async def connect(cls, port: int) -> RawClient:
        """Open a WebSocket by hand."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
        writer.write(
            (
                f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
            ).encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 101 " not in head:
            raise ConnectionError(head.decode())
        return cls(reader, writer)

    def send(self, frame: dict[str, Any]) -> None:
        """Send one text message, masked."""
        data = orjson.dumps(frame)
        mask = os.urandom(4)
        size = len(data)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self._writer.write(head + mask + masked)

    def reset(self) -> None:
        """Start counting anew."""
        self.messages = self.bytes = 0

    async def until(self, needle: bytes, times: int = 1, *, keep: bool = False) -> bytes:
        """Read until ``needle`` has been seen so often; give what came last (``keep``: all of it)."""
        seen = 0
        kept: list[bytes] = []
        while True:
            for payload in self._cut():
                seen += payload.count(needle)
                if keep:
                    kept.append(payload)
                if seen >= times:
                    return b"\n".join(kept) if keep else payload
            chunk = await self._reader.read(2**20)
            if not chunk:
                raise ConnectionError("the server closed the connection")
            self.bytes += len(chunk)
            self._buffer += chunk

    def _cut(self) -> list[bytes]:
        """Cut whole frames off the buffer."""
        buffer, position, found = self._buffer, 0, []
        size_all = len(buffer)
        while size_all - position >= 2:
            opcode, size = buffer[position] & 0x0F, buffer[position + 1] & 0x7F
            start = position + 2
            if size == 126:
                if size_all < start + 2:
                    break
                size = int.from_bytes(buffer[start : start + 2], "big")
                start += 2
            elif size == 127:
                if size_all < start + 8:
                    break
                size = int.from_bytes(buffer[start : start + 8], "big")
                start += 8
            if size_all < start + size:
                break
            if opcode == 8:
                raise ConnectionError(f"closed: {buffer[start : start + size]!r}")
            if opcode == 1:
                found.append(buffer[start : start + size])
            position = start + size
        self._buffer = buffer[position:]
        self.messages += len(found)
        return found

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await asyncio.wait([asyncio.ensure_future(self._writer.wait_closed())], timeout=1)
