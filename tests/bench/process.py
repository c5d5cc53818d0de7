"""Server processes under measurement, pinned to one core; the clients have the other."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
SERVER_CORE, CLIENT_CORE = 0, 1


class Server:
    """A running server: where it listens, and its process, which leads a group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.port = port
        self.pid = process.pid

    def pause(self) -> None:
        """Stop every process of it, so that it takes nothing from who is measured."""
        os.killpg(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it run again."""
        os.killpg(self.pid, signal.SIGCONT)

    def private_bytes(self) -> int:
        """Read the memory that this process alone has written to."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Private_Dirty:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no Private_Dirty in smaps_rollup")


def pin(core: int, pid: int = 0) -> None:
    """Keep a process on one core, where the machine has another and lets us say so."""
    if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
        os.sched_setaffinity(pid, {core})


def free_port() -> int:
    """Give a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str],
    port: int,
    environ: dict[str, str] | None = None,
    *,
    cwd: Path = ROOT,
    patience_s: float = 60,
) -> Iterator[Server]:
    """Start a server and wait until it takes connections. Raises RuntimeError, with what it said, if it does not."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            ["taskset", "-c", str(SERVER_CORE), *command] if _can_pin() else list(command),
            cwd=cwd,
            env=os.environ | (environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + patience_s
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise RuntimeError(f"{list(command)} did not start:\n{said.read().decode()[-3000:]}")
                time.sleep(0.005)
            yield Server(process, port)
        finally:
            _end(process)


def _can_pin() -> bool:
    return hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1 and Path("/usr/bin/taskset").exists()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        if number == signal.SIGTERM:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                continue
    process.wait()


@contextmanager
def module(name: str, *arguments: str, environ: dict[str, str] | None = None) -> Iterator[Server]:
    """Start ``python -m name PORT arguments…`` of this environment."""
    port = free_port()
    with running([sys.executable, "-m", name, str(port), *arguments], port, environ) as server:
        yield server


@contextmanager
def gateway(
    engine: str = "tests.bench.servers.engines:flat_out",
    store: Path | None = None,
    *,
    program: str = "gateway",
    **settings: object,
) -> Iterator[Server]:
    """Start the product, persistence on; ``settings`` as in the environment, without the prefix."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = store or Path(folder) / "bench.db"
        command = [sys.executable, "-m", program, "serve", engine, "--port", str(port), "--store", f"sqlite:///{path}"]
        # Runs that are still streaming when the measurement is over need no time to finish.
        environ = {f"GATEWAY_{name.upper()}": str(value) for name, value in ({"drain": 0} | settings).items()}
        with running([*command, "--log-level", "warning"], port, environ) as server:
            yield server
