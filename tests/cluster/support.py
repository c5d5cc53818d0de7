"""What the cluster's tests stand on: a Redis of their own, nodes as processes, and lines that can be cut.

A :class:`Line` stands between a node and Redis, or the database: it can refuse, or go silent, and be mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from tests.e2e.support import Server, free_port
from tests.support_relay import Relay

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

HERE = Path(__file__).resolve().parent
LEASE_S = 2.0
LONG = 40.0
"""How long a test waits for what takes leases, restarts and a loaded machine."""


class RedisServer:
    """A redis-server on a port of its own that stores nothing."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> Self:
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as probe:
                probe.sendall(b"PING\r\n")
                if probe.recv(16).startswith(b"+PONG"):
                    return self
            time.sleep(0.01)
        raise AssertionError("redis-server did not start")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class Line(Relay):
    """A TCP line to a port. ``cut`` refuses and resets; ``silence`` keeps connections open and carries nothing."""

    def __init__(self, target: int) -> None:
        super().__init__(free_port())
        self._target = target
        self._open = True
        self._flows = asyncio.Event()
        self._flows.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.start()

    def cut(self) -> None:
        """Reset what is open, and refuse what comes."""
        self._open = False
        self._loop.call_soon_threadsafe(self._reset)

    def silence(self) -> None:
        """Carry nothing more, and say nothing of it."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def mend(self) -> None:
        self._open = True
        self._loop.call_soon_threadsafe(self._flows.set)

    def _reset(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, onward}
        try:
            ways = [asyncio.create_task(self._carry(reader, onward)), asyncio.create_task(self._carry(there, writer))]
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        finally:
            self._writers -= {writer, onward}
            writer.transport.abort()
            onward.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()


class Node(Server):
    """A node of a cluster, with lines of its own to Redis and the database."""

    def __init__(
        self, folder: Path, redis: RedisServer, database: str, *, env: Mapping[str, str], args: Sequence[str] = ()
    ) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder, "engines:steps", args=args, env=env, cwd=HERE)
        address = urlsplit(database)
        assert address.port is not None
        self.to_redis = Line(redis.port)
        self.to_database = Line(address.port)
        netloc = address.netloc.replace(f":{address.port}", f":{self.to_database.port}")
        self.database = address._replace(netloc=netloc).geturl()

    def command(self) -> list[str]:
        bus = f"redis://127.0.0.1:{self.to_redis.port}"
        serve = [sys.executable, "-m", "gateway", "serve", self.engine, "--port", str(self.port)]
        return [*serve, "--store", self.database, "--bus", bus, *self.args]

    def await_ready(self, patience: float = 120) -> Self:
        return super().await_ready(patience)

    def freeze(self) -> None:
        self.running.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.send_signal(signal.SIGCONT)

    async def left(self, patience: float = 60) -> None:
        """Wait until a node that was told to leave has done so; where it does not, its tasks are in the error."""
        try:
            code = await self.exited(patience)
        except subprocess.TimeoutExpired:
            self.running.send_signal(signal.SIGUSR1)
            await asyncio.sleep(1)
            raise AssertionError(f"the node does not end\n{self.logs()[-20_000:]}") from None
        assert code == 0, self.logs()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.running.send_signal(signal.SIGCONT)
        super().close()
        self.to_redis.close()
        self.to_database.close()


class Cluster:
    """Some nodes on one database and one Redis."""

    def __init__(self, folder: Path, redis: RedisServer, database: str, count: int, **settings: Any) -> None:
        self.redis = redis
        self.runs = folder / "runs.log"
        self.runs.touch()
        given = {"lease_s": LEASE_S, "drain": 5, "run_log": self.runs} | settings
        env = {f"GATEWAY_{name.upper()}": str(value) for name, value in given.items()}
        env["RUN_LOG"] = str(self.runs)
        del env["GATEWAY_RUN_LOG"]
        self.nodes = [Node(folder / f"node-{n}", redis, database, env=env) for n in range(count)]

    def start(self) -> Self:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.await_ready()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def executed(self) -> list[tuple[str, str, str, int, float]]:
        """What the engines did: (what, session, text, process, monotonic time), in order."""
        found = []
        for line in self.runs.read_text().splitlines():
            what, session, text, pid, when = line.split("\t")
            found.append((what, session, text, int(pid), float(when)))
        return found


def check_single_runner(cluster: Cluster) -> None:
    """At no time did two processes run one session; a process that was frozen or killed ends where it was."""
    running: dict[str, tuple[int, str]] = {}
    taken: dict[str, set[int]] = {}
    for what, session, _, pid, _ in cluster.executed():
        gone = taken.setdefault(session, set())
        if what == "start":
            if session in running and running[session][0] != pid:
                gone.add(running[session][0])
            running[session] = (pid, what)
            gone.discard(pid)
        elif what == "step":
            assert pid not in gone, f"{session}: process {pid} goes on although another one runs the session"
            assert running.get(session, (pid, ""))[0] == pid
        elif running.get(session, (0, ""))[0] == pid:
            del running[session]


async def eventually(holds: Callable[[], Any], what: str, *, timeout: float = LONG) -> Any:
    """Wait until something holds; gives what it gave."""
    deadline = time.monotonic() + timeout
    while True:
        found = holds()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {timeout} s"
        await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    """Say whether a process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
