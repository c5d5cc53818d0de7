"""A real server in a process of its own, for tests that talk to it from outside."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]

needs_server = pytest.mark.skipif(
    importlib.util.find_spec("gateway.endpoint") is None or importlib.util.find_spec("gateway.cli") is None,
    reason="the server is not in this tree",
)


@dataclass
class Server:
    """A running server: its socket's address and its process."""

    url: str
    process: subprocess.Popen[str]


def free_port() -> int:
    """Give a TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(target: str, directory: Path, *options: str, port: int | None = None) -> Iterator[Server]:
    """Serve ``target`` (``module:attr``) with a SQLite store in ``directory`` until the block ends."""
    port = port or free_port()
    command = [sys.executable, "-m", "gateway", "serve", target, "--port", str(port)]
    command += ["--store", f"sqlite:///{directory / 'gateway.db'}", *options]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with (
        (directory / "server.log").open("a+") as log,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            _wait_until_it_listens(process.stdout, log, str(port))
            rest = threading.Thread(target=log.writelines, args=(process.stdout,), daemon=True)
            rest.start()  # a full pipe would stop the server
            yield Server(f"ws://127.0.0.1:{port}/ws", process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_it_listens(output: IO[str], log: IO[str], port: str) -> None:
    said = []
    for line in output:
        said.append(line)
        log.write(line)
        if port in line:
            return
    pytest.fail("the server did not start:\n" + "".join(said))
