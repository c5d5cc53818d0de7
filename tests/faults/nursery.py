"""Servers that start in a fiftieth of the time: forked from a process that has imported the product once.

Hundreds of kills are hundreds of starts. A forked server is a real process: it opens its own database and socket, runs
the product's own `main`, and can be killed like any other. `python -m tests.faults.nursery` is the process that forks;
it has one thread and no loop, takes one JSON object a line and answers each with one.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.e2e.support import ROOT, Server

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Nursery:
    """The forking process, from the test's side."""

    def __init__(self) -> None:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.nursery"],
            cwd=ROOT,
            env={**env, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **question: Any) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()


class Child:
    """A forked server: what `subprocess.Popen` would be, were it our own child."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._fd = os.pidfd_open(pid)
        self._code: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise TimeoutError(f"the server {self.pid} goes on")
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self._code is None and select.select([self._fd], [], [], timeout)[0]:
            self._code = self._nursery.ask(reap=self.pid)
            os.close(self._fd)
        return self._code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            signal.pidfd_send_signal(self._fd, sig)


class QuickServer(Server):
    """A server of the nursery's. `death` is for the next start only: where it kills itself, see `deaths`."""

    def __init__(self, nursery: Nursery, folder: Path, engine: str = "director", **options: Any) -> None:
        super().__init__(folder, engine, **options)
        self._nursery = nursery
        self.death: tuple[str, int] | None = None

    def spawn(self) -> Child:
        pid = self._nursery.ask(
            argv=self.command()[3:],
            env=self.environment(),
            cwd=str(self.cwd),
            logs=[str(self.folder / "out.log"), str(self.folder / "err.log")],
            death=self.death,
        )
        self.death = None
        self.process = child = Child(self._nursery, pid)
        return child


# The other side


def serve(lines: Sequence[str] | Any) -> None:
    """Fork a server, or say how one ended, for each line."""
    for line in lines:
        question = json.loads(line)
        if "reap" in question:
            answer = os.waitstatus_to_exitcode(os.waitpid(question["reap"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _become(question)
        print(answer, flush=True)


def _become(question: dict[str, Any]) -> None:
    from gateway.cli import main
    from tests.faults.deaths import install

    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in enumerate(question["logs"], 1):
        os.dup2(os.open(name, flags), number)
    os.environ.clear()
    os.environ.update(question["env"])
    os.chdir(question["cwd"])
    if question["death"] is not None:
        install(*question["death"])
    code = 1
    try:
        main(question["argv"])
    except SystemExit as exc:
        code = int(exc.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


IMPORTED = (
    "alembic.command",
    "gateway.cli",
    "tests.faults.deaths",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "uvloop",
)
"""All that a server imports by the time it serves."""


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # or the first collection of every child would copy all pages
    serve(sys.stdin)
