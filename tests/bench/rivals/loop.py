"""The bare Starlette loop on the same uvicorn."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.bench import process
from tests.bench.clients.raw import RawSocket
from tests.bench.rivals.base import Stopwatch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.bench.process import Server

FINISH = b'"type":"run-finish"'


class Loop:
    """No persistence, no resume."""

    name = "Starlette loop"

    def missing(self) -> None:
        """Nothing."""

    def serve(self) -> AbstractContextManager[Server]:
        """Start it."""
        return process.module("tests.bench.servers.loop")

    async def flood(self, port: int, events: int, sessions: int = 1, *, distinct: bool = False) -> float:
        """Order runs."""
        client = await RawSocket.connect(port)
        text = json.dumps({"distinct" if distinct else "events": events // sessions})
        watch = Stopwatch()
        client.send({"text": text, "sessions": sessions})
        await client.until(FINISH, sessions)
        seconds = watch.seconds
        client.close()
        return seconds


class Limit:
    """A bare asyncio protocol that writes prepared frames, one per event: no engine, no JSON, no ASGI."""

    name = "raw asyncio limit"

    def missing(self) -> None:
        """Nothing."""

    def serve(self) -> AbstractContextManager[Server]:
        """Start it."""
        return process.module("tests.bench.servers.raw")

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Order frames."""
        client = await RawSocket.connect(port)
        watch = Stopwatch()
        for _ in range(sessions):
            client.send({"events": events // sessions})
        await client.until(FINISH, sessions)
        seconds = watch.seconds
        client.close()
        return seconds
