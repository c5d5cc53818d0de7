"""Server processes under measurement, pinned to one core; the client has the other."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """Give a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def gateway(engine: str = "tests.bench.engines:flat_out", **settings: str) -> Iterator[tuple[int, int]]:
    """Start the product with persistence on; gives (port, pid)."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/bench.db"
        command = [sys.executable, "-m", "gateway", "serve", engine, "--port", str(port), "--store", store]
        environ = {f"GATEWAY_{name.upper()}": value for name, value in settings.items()}
        with _process([*command, "--log-level", "warning"], port, environ) as pid:
            yield port, pid


@contextmanager
def bare() -> Iterator[tuple[int, int]]:
    """Start the bare loop; gives (port, pid)."""
    port = free_port()
    with _process([sys.executable, "-m", "tests.bench.bare", str(port)], port, {}) as pid:
        yield port, pid


@contextmanager
def _process(command: list[str], port: int, environ: dict[str, str]) -> Iterator[int]:
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | environ, stdout=subprocess.DEVNULL)
    try:
        if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
            os.sched_setaffinity(process.pid, {0})
        deadline = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command} did not start") from None
                time.sleep(0.02)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_bytes(pid: int) -> int:
    """Read a process's private resident memory."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Private_Dirty in smaps_rollup")
