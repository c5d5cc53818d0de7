"""A TCP server on a loop and a thread of its own: what stands between two processes under test."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future


class Relay(ABC):
    """Listens on ``port`` of loopback until it is closed, and ends every connection then."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listens: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Return once it listens. Raises OSError where the port is taken."""
        self._thread.start()
        self._listens.result(10)

    @abstractmethod
    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; cancelled, leave nothing of it open."""

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        try:
            server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, backlog=1000)
        except OSError as exc:
            self._listens.set_exception(exc)
            return
        self._listens.set_result(None)
        await self._over.wait()
        server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        for _ in range(10):  # until the last transport has been told
            await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Not a coroutine for asyncio to run: until 3.12 it reports each one that is cancelled at the end as failed.
        # And held: of a client that has said its last word, nothing else holds what carries the answer.
        task = asyncio.create_task(self._accept(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Return once nothing of it is left."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
