"""The gateway itself: SQLite on disk, every event committed before it is sent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench import process
from tests.bench.clients.raw import RawSocket
from tests.bench.rivals.base import Stopwatch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.bench.process import Server

FINISH = b'"type":"run-finish"'


async def connect(port: int, *, batch: bool = True, source: str | None = None, **hello: object) -> RawSocket:
    """Open a connection and be welcomed."""
    client = await RawSocket.connect(port, source=source)
    client.send({"type": "hello", "batch": batch} | hello)
    await client.until(b'"type":"welcome"')
    return client


@dataclass(frozen=True)
class Product:
    """With clients that batch, or not. ``distinct``: events that cannot be joined, so that each is stamped."""

    name: str = "gateway"
    batch: bool = True

    def missing(self) -> None:
        """Nothing."""

    def serve(self) -> AbstractContextManager[Server]:
        """Start it as ``gateway serve`` does, its limit on commands aside."""
        return process.gateway(commands_per_s=10_000)

    async def flood(self, port: int, events: int, sessions: int = 1, *, distinct: bool = False) -> float:
        """Prompt in new sessions."""
        client = await connect(port, batch=self.batch)
        text = json.dumps({"distinct" if distinct else "events": events // sessions})
        watch = Stopwatch()
        for _ in range(sessions):
            client.send({"type": "prompt", "text": text})
        await client.until(FINISH, sessions)
        seconds = watch.seconds
        client.close()
        return seconds


class Untuned(Product):
    """The gateway with Python's collector as it comes, to show what tuning it does."""

    def __init__(self) -> None:
        super().__init__("gateway, collector untuned")

    def serve(self) -> AbstractContextManager[Server]:
        """Start it by a program that leaves the collector alone."""
        return process.gateway(program="tests.bench.servers.untuned", commands_per_s=10_000)
