"""A TCP proxy that does to a connection what networks do: cut, reset, stall, dribble, delay, throttle; by the dice."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import random
    from types import TracebackType

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Fate:
    """What happens to one connection: how its bytes travel, and how it ends after so many of them (both ways).

    `end`: `cut` closes in order, `reset` with RST, `stall` goes on open and silent both ways (half-open: neither side
    learns of it), `half` carries on from the client only, `none` leaves it be.
    """

    end: str = "none"
    after: int = 0
    delay_s: float = 0.0
    piece: int = CHUNK
    rate: float = 0.0
    """Bytes per second; 0 is as fast as it goes."""


def deal(dice: random.Random) -> Fate:
    """Draw a fate: most connections end soon, some travel badly before."""
    end = dice.choice(("cut", "reset", "reset", "stall", "half"))
    after = int(dice.expovariate(1 / dice.choice((300, 1000, 3000, 3000, 30_000))))
    if end in ("stall", "half"):  # before the welcome only the client's own patience of 10 and 30 s would end it
        after += 1500
    match dice.choice(("fast",) * 9 + ("late", "bytes", "slow")):
        case "late":
            return Fate(end, min(after, 20_000), delay_s=dice.uniform(0.001, 0.02))
        case "bytes":
            return Fate(end, min(after, 3000), piece=1)
        case "slow":
            return Fate(dice.choice(("cut", "reset")), min(after, 1200), piece=100, rate=1000)
    return Fate(end, after)


class Proxy:
    """Between a port of its own and the server's. `fates` says what befalls the next connection."""

    def __init__(self, port: int, dice: random.Random) -> None:
        self.target = port
        self.dice = dice
        self.calm = False
        """From now on nothing happens to new connections."""
        self.counted: dict[str, int] = {}
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: object, trace: TracebackType | None) -> None:
        assert self._server is not None
        self._server.close()
        await self.drop()

    async def drop(self) -> None:
        """End every connection there is."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        fate = Fate() if self.calm else deal(self.dice)
        self.counted[fate.end] = self.counted.get(fate.end, 0) + 1
        other: asyncio.StreamWriter | None = None
        try:
            back, other = await asyncio.open_connection("127.0.0.1", self.target)
            await _Line(fate).carry((reader, writer), (back, other))
        except (OSError, asyncio.CancelledError):
            pass  # the other side has gone, or the test is over
        finally:
            self._tasks.discard(task)
            for end in (writer, other):
                if end is not None:
                    _close(end, reset=fate.end == "reset")


class _Line:
    """Two streams and what is left of them."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.left = fate.after
        self.over = asyncio.Event()

    async def carry(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        ways = [
            asyncio.create_task(self._way(client[0], server[1], up=True)),
            asyncio.create_task(self._way(server[0], client[1], up=False)),
        ]
        ended = asyncio.create_task(self.over.wait())
        try:
            await asyncio.wait([*ways, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*ways, ended):
                task.cancel()
            await asyncio.gather(*ways, ended, return_exceptions=True)

    async def _way(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, up: bool) -> None:
        fate = self.fate
        with suppress(OSError):
            while data := await source.read(CHUNK):
                for at in range(0, len(data), fate.piece):
                    piece = data[at : at + fate.piece]
                    if fate.end != "none" and not (up and fate.end == "half"):
                        piece, self.left = piece[: max(0, self.left)], self.left - len(piece)
                    if fate.delay_s:
                        await asyncio.sleep(fate.delay_s)
                    sink.write(piece)
                    await sink.drain()
                    if fate.rate:
                        await asyncio.sleep(len(piece) / fate.rate)
                    if fate.end != "none" and self.left <= 0 and not (up and fate.end == "half"):
                        await self._end(source)

    async def _end(self, source: asyncio.StreamReader) -> None:
        if self.fate.end in ("cut", "reset"):
            self.over.set()
        while await source.read(CHUNK):  # taken, and told to nobody
            continue


def _close(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        sock = writer.get_extra_info("socket")
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.close()
