"""A WebSocket client of bare bytes, that does what no library lets it do."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

TEXT, BINARY, CONTINUATION, CLOSE, PING = 1, 2, 0, 8, 9
HANDSHAKE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n"


def frame(opcode: int, data: bytes = b"", *, fin: bool = True, packed: bool = False) -> bytes:
    """A masked frame; the mask is zero, so that a large one costs nothing."""
    first = (0x80 if fin else 0) | (0x40 if packed else 0) | opcode
    if len(data) < 126:
        head = struct.pack("!BB", first, 0x80 | len(data))
    elif len(data) < 65536:
        head = struct.pack("!BBH", first, 0x80 | 126, len(data))
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, len(data))
    return head + bytes(4) + data


def bomb(size: int) -> bytes:
    """A small frame that unpacks to `size` bytes."""
    packer = zlib.compressobj(9, wbits=-12)
    data = packer.compress(b" " * size) + packer.flush(zlib.Z_SYNC_FLUSH)
    return frame(TEXT, data[:-4], packed=True)


class Raw:
    """One TCP connection, and what it does is the test's."""

    def __init__(self, port: int, *, window: int | None = None) -> None:
        self.port = port
        self.sock = socket.socket()
        if window is not None:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.sock.setblocking(False)
        self._loop = asyncio.get_running_loop()

    async def __aenter__(self) -> Self:
        await self._loop.sock_connect(self.sock, ("127.0.0.1", self.port))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, trace: TracebackType | None) -> None:
        self.sock.close()

    async def upgrade(self, *, packed: bool = False) -> Self:
        """Become a WebSocket."""
        await self.send(HANDSHAKE + (DEFLATE if packed else b"") + b"\r\n")
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += await self._loop.sock_recv(self.sock, 1)
        assert answer.startswith(b"HTTP/1.1 101"), answer
        return self

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def text(self, data: str | bytes) -> None:
        await self.send(frame(TEXT, data.encode() if isinstance(data, str) else data))

    async def send_what_is_taken(self, data: bytes, *, patience: float = 1.0) -> bool:
        """Send, unless the other side stops taking; false if it did, or has closed."""
        try:
            async with asyncio.timeout(patience):
                await self.send(data)
        except (TimeoutError, OSError):
            return False
        return True

    async def read_to_the_end(self, *, patience: float = 20.0) -> bytes:
        """All that comes until the other side closes or resets."""
        taken = bytearray()
        async with asyncio.timeout(patience):
            with suppress(OSError):
                while data := await self._loop.sock_recv(self.sock, 1 << 16):
                    taken += data
        return bytes(taken)

    async def close_code(self, *, patience: float = 20.0) -> int:
        """The code of the close frame that ends the connection; 1006 if it ends without one."""
        data = bytearray()
        async with asyncio.timeout(patience):
            with suppress(OSError):
                while more := await self._loop.sock_recv(self.sock, 1 << 16):
                    data += more
                    while len(data) >= 2:
                        opcode, size, head = data[0] & 15, data[1] & 127, 2
                        if size == 126 and len(data) >= 4:
                            size, head = struct.unpack_from("!H", data, 2)[0], 4
                        elif size == 127 and len(data) >= 10:
                            size, head = struct.unpack_from("!Q", data, 2)[0], 10
                        if len(data) < head + size:
                            break
                        if opcode == CLOSE:
                            return int(struct.unpack_from("!H", data, head)[0])
                        del data[: head + size]
        return 1006


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
