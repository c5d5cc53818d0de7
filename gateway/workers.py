"""``gateway serve --workers N``: one parent, N processes on one port, each a node of a cluster on this machine.

The parent binds the port and serves nothing itself. Each worker has the listening socket, and a line to the parent: on
it the worker says that it serves, and learns by its end that the parent is gone. A worker that ends is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.config import BadSetting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gateway.config import Settings

logger = logging.getLogger(__name__)

SHORTEST_WAIT_S, LONGEST_WAIT_S = 0.2, 30.0
"""Before a worker that ended is started again; twice as long each time, until one has lived for the longest."""

UNUSABLE = 2
"""A worker that ends with this code before it has served will not do better the next time."""

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


def check(settings: Settings) -> None:
    """Say early what several workers need. Raises :exc:`BadSetting`."""
    if not settings.store.startswith(("postgresql://", "postgres://")):
        raise BadSetting("workers: several processes share a PostgreSQL store; add --store postgresql://host/database")
    if settings.bus is None and shutil.which("redis-server") is None:
        raise BadSetting("workers: needs redis-server on the PATH, or a Redis of yours: --bus redis://host:6379")


@contextlib.contextmanager
def local_bus() -> Iterator[str]:
    """Run a Redis of our own on a Unix socket, which nobody else can reach; gives its address."""
    with tempfile.TemporaryDirectory(prefix="gateway-bus-") as folder:
        path = Path(folder) / "bus.sock"
        # It is to die with this process, however that may end; nothing on it is to be kept.
        options = ["--port", "0", "--unixsocket", str(path), "--unixsocketperm", "700", "--save", "", "--dir", folder]
        process = subprocess.Popen(
            ["redis-server", *options, "--appendonly", "no"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # no threads yet
        )
        try:
            deadline = time.monotonic() + 10
            while not path.is_socket():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise BadSetting("workers: the local redis-server does not start; give one of yours with --bus")
                time.sleep(0.01)
            yield f"unix://{path}"
        finally:
            process.terminate()
            process.wait()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGTERM)


class Worker:
    """One process, started again when it ends."""

    def __init__(self, number: int, command: Sequence[str], listener: socket.socket) -> None:
        self.ready = asyncio.Event()
        self.unusable = False
        self._number = number
        self._command = command
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Keep one process running until :meth:`send` has told it to end."""
        wait = SHORTEST_WAIT_S
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            code = await self._once()
            if self._stopping.is_set():
                return
            if code == UNUSABLE and not self.ready.is_set():
                self.unusable = True
                return
            if loop.time() - started > LONGEST_WAIT_S:
                wait = SHORTEST_WAIT_S
            logger.error("worker %d ended with %s; again in %.1f s", self._number, code, wait)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._stopping.wait()
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _once(self) -> int:
        """Run one process to its end; gives its code."""
        mine, its = socket.socketpair()
        with mine:
            with its:
                fds = (self._listener.fileno(), its.fileno())
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    "--worker",
                    f"{fds[0]}:{fds[1]}",
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,  # a terminal's Ctrl-C is for the parent, which passes it on
                )
            mine.setblocking(False)
            if await asyncio.get_running_loop().sock_recv(mine, 1):
                self.ready.set()
            return await self._process.wait()

    def send(self, number: int) -> None:
        """Send a signal, after which the process is not started again."""
        self._stopping.set()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)


async def supervise(commands: Sequence[Sequence[str]], listener: socket.socket, announce: str) -> int:
    """Run the workers until a signal ends them; gives the exit code. The first drains them, the second ends them."""
    workers = [Worker(number, command, listener) for number, command in enumerate(commands)]
    loop = asyncio.get_running_loop()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        if signals == 2:
            logger.warning("second signal: ending at once")
        for worker in workers:
            worker.send(signal.SIGTERM if signals == 1 else signal.SIGKILL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    said = asyncio.create_task(_announce(workers, announce))
    try:
        pending = set(tasks)
        while pending:
            _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if any(worker.unusable for worker in workers):
                for worker in workers:
                    worker.send(signal.SIGTERM)
    finally:
        said.cancel()
        await asyncio.wait([said])
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    for task in tasks:
        task.result()
    if any(worker.unusable for worker in workers):
        return UNUSABLE
    return 1 if signals > 1 else 0


async def _announce(workers: Sequence[Worker], text: str) -> None:
    for worker in workers:
        await worker.ready.wait()
    print(text, flush=True)
