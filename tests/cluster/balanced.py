"""A pytest plugin that puts the black-box tests before two nodes: each connection and each request goes to the next
one.

``python -m pytest -p tests.cluster.balanced tests/e2e/test_abort.py``. The tests do not know; what they hold one
process to holds for a cluster behind any load balancer.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import tests.e2e.conftest
import tests.e2e.support
from tests.cluster.support import RedisServer
from tests.e2e.support import Server, free_port
from tests.support_postgres import Postgres
from tests.support_relay import Relay

if TYPE_CHECKING:
    from typing import Self

NODES = 2
_shared: dict[str, Any] = {}


def _services() -> tuple[RedisServer, Postgres]:
    if not _shared:
        _shared["redis"] = RedisServer().start()
        _shared["postgres"] = Postgres().create()
    return _shared["redis"], _shared["postgres"]


def pytest_unconfigure() -> None:
    """End what was started."""
    if _shared:
        _shared["redis"].stop()
        _shared["postgres"].destroy()


class Balancer(Relay):
    """Carries each new connection on ``port`` to the next of some ports that is up."""

    def __init__(self, port: int, targets: list[int]) -> None:
        super().__init__(port)
        self._targets, self._next = targets, 0
        self.start()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in self._targets:
            target = self._targets[self._next % len(self._targets)]
            self._next += 1
            with contextlib.suppress(OSError):
                there, onward = await asyncio.open_connection("127.0.0.1", target)
                break
        else:
            writer.transport.abort()
            return
        ways = [asyncio.create_task(self._carry(reader, onward)), asyncio.create_task(self._carry(there, writer))]
        try:
            await asyncio.gather(*ways)
        except OSError:
            pass
        finally:
            for way in ways:
                way.cancel()
            for end in (writer, onward):
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            # Reset here is reset there.
            writer.transport.abort()
            raise
        with contextlib.suppress(OSError):
            writer.write_eof()


class BalancedServer(Server):
    """Looks like one server, is some nodes behind a balancer."""

    database = ""
    nodes: list[subprocess.Popen[bytes]]
    balancer: Balancer | None = None

    def spawn(self) -> subprocess.Popen[bytes]:
        redis, postgres = _services()
        if not self.database:
            self.database = postgres.database()
        ports = [free_port() for _ in range(NODES)]
        named = ":" in self.engine or "-" in self.engine or not self.engine
        target = [self.engine if named else f"engines:{self.engine}"] if self.engine else []
        self.nodes = []
        env = self.environment()
        with (self.folder / "out.log").open("ab") as out, (self.folder / "err.log").open("ab") as err:
            for port in ports:
                command = [sys.executable, "-m", "gateway", "serve", *target, "--port", str(port)]
                command += ["--store", self.database, "--bus", redis.url, "--hosts", "*", *self.args]
                self.nodes.append(
                    subprocess.Popen(command, cwd=self.cwd, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
                )
        self.process = self.nodes[0]
        self.ports = ports
        deadline = time.monotonic() + 120
        for port, node in zip(ports, self.nodes, strict=True):
            while not self._up(port):
                if node.poll() is not None:
                    raise AssertionError(self.logs())
                assert time.monotonic() < deadline, self.logs()
                time.sleep(0.02)
        self.balancer = Balancer(self.port, ports)
        return self.process

    def _up(self, port: int) -> bool:
        mine, self.port = self.port, port
        try:
            return self.ready()
        finally:
            self.port = mine

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait(10)
        self._unbalance()

    def _unbalance(self) -> None:
        if self.balancer is not None:
            self.balancer.close()
            self.balancer = None

    def terminate(self) -> None:
        for node in self.nodes:
            node.send_signal(signal.SIGTERM)

    def exit_code(self, patience: float = 30) -> int:
        codes = [node.wait(patience) for node in self.nodes]
        self._unbalance()
        return max(codes)

    def close(self) -> None:
        for node in getattr(self, "nodes", []):
            if node.poll() is None:
                node.kill()
                node.wait(10)
        self._unbalance()

    def start(self) -> Self:
        self.spawn()
        return self


setattr(tests.e2e.conftest, "Server", BalancedServer)  # noqa: B010
setattr(tests.e2e.support, "Server", BalancedServer)  # noqa: B010
