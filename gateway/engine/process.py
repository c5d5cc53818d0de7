"""Child processes for tools: a group of their own, and nobody of it survives the call.

``run_process`` is meant to be called inside an async tool. Cancelled, it asks the whole group to end (TERM), gives it
200 ms and then kills it (KILL). A grandchild that left the group on purpose cannot be killed safely; on Linux it is
found by a mark in its environment and reported: in the log, and in the result of a call that ended by itself.

Of what a process writes only so much is kept, its beginning and its end; the rest is read and dropped, so the process
neither blocks nor takes our memory.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.engine.abort import outlast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

log = logging.getLogger("gateway.engine")

TERM_GRACE_S = 0.2
OUTPUT_GRACE_S = 1.0
"""How long after a process's end its pipes are read: a daemon that it left behind may hold them open for ever."""
MAX_OUTPUT_BYTES = 128 * 1024
_MARK = "GATEWAY_PROCESS_MARK"


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended: its exit code (negative: the signal) and what it wrote.

    ``truncated`` says that the middle of an output was left out (the text says so too, and how much); ``survivors``
    are the ids of processes that left the group and still run.
    """

    returncode: int
    stdout: str
    stderr: str
    truncated: bool = False
    survivors: tuple[int, ...] = ()


class Output:
    """One pipe's beginning and end, within ``limit`` bytes."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0

    def take(self, data: bytes) -> None:
        """Keep what there is room for."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        if (over := len(self._tail) - self._half) > 0:
            del self._tail[:over]
            self.dropped += over

    def text(self) -> str:
        """Give it as text; where the middle is missing, a line says how much."""
        if not self.dropped:
            return (self._head + self._tail).decode(errors="replace")
        gap = f"\n[… {self.dropped:,} bytes left out …]\n"
        return self._head.decode(errors="replace") + gap + self._tail.decode(errors="replace")


class _Protocol(asyncio.subprocess.SubprocessStreamProtocol):
    """Says when the process itself has ended; ``wait()`` may wait for its pipes too."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=2**16, loop=loop)
        self.exited = asyncio.Event()

    def process_exited(self) -> None:
        self.exited.set()
        super().process_exited()


async def run_process(
    *argv: str,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    inherit_env: bool = True,
    stdin: bytes | None = None,
    max_output_bytes: int = MAX_OUTPUT_BYTES,
    on_output: Callable[[bytes], None] | None = None,
) -> ProcessResult:
    """Run ``argv`` (no shell) to its end and give its result; cancelled, leave nothing of it behind.

    ``env`` is added to this process's environment, or is all there is with ``inherit_env`` False. Of each output
    ``max_output_bytes`` are kept; ``on_output`` sees every piece as it comes. Raises OSError where the program cannot
    be started.
    """
    mark = secrets.token_hex(8)
    loop = asyncio.get_running_loop()
    # Not create_subprocess_exec: it keeps its transport to itself, which has to be closed under a daemon's hands.
    starting = loop.subprocess_exec(
        lambda: _Protocol(loop),
        *argv,
        cwd=cwd,
        env={**(os.environ if inherit_env else {}), **(env or {}), _MARK: mark},
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    started = asyncio.ensure_future(starting)
    cancelled: asyncio.CancelledError | None = None
    try:
        transport, protocol = await outlast(started)
    except asyncio.CancelledError as error:
        if started.cancelled() or started.exception() is not None:
            raise
        # Between its birth and our hearing of it: it is ended like any other, it may have children already.
        (transport, protocol), cancelled = started.result(), error
    process = asyncio.subprocess.Process(transport, protocol, loop)
    stdout, stderr = Output(max_output_bytes), Output(max_output_bytes)
    readers: set[asyncio.Future[Any]] = {
        asyncio.ensure_future(_read(process.stdout, stdout, on_output)),
        asyncio.ensure_future(_read(process.stderr, stderr, on_output)),
        asyncio.ensure_future(_feed(process.stdin, stdin)),
    }
    exited: asyncio.Future[Any] = asyncio.ensure_future(protocol.exited.wait())
    try:
        if cancelled is not None:
            raise cancelled
        await asyncio.shield(exited)
        _signal(process.pid, signal.SIGKILL)  # children that the process left behind in its group
        await asyncio.wait(readers, timeout=OUTPUT_GRACE_S)
    except BaseException:
        await _end_group(process.pid, {exited, *readers})
        for pid in _survivors(mark, process.pid):
            log.warning("process %s left its tool's group and still runs", pid)
        raise
    finally:
        await _end_reading({exited, *readers})
        transport.close()
    survivors = tuple(await asyncio.to_thread(_survivors, mark, process.pid))
    for pid in survivors:
        log.warning("process %s left its tool's group and still runs", pid)
    code = transport.get_returncode() or 0
    return ProcessResult(code, stdout.text(), stderr.text(), bool(stdout.dropped or stderr.dropped), survivors)


async def _read(pipe: asyncio.StreamReader | None, output: Output, on_output: Callable[[bytes], None] | None) -> None:
    while pipe is not None and (data := await pipe.read(2**16)):
        output.take(data)
        if on_output is not None:
            on_output(data)


async def _feed(pipe: asyncio.StreamWriter | None, data: bytes | None) -> None:
    if pipe is None:
        return
    # A process need not read its input; uvloop says RuntimeError where it has closed it before we write.
    with contextlib.suppress(ConnectionError, RuntimeError):
        pipe.write(data or b"")
        await pipe.drain()
    pipe.close()


async def _end_group(pid: int, tasks: set[asyncio.Future[Any]]) -> None:
    _signal(pid, signal.SIGTERM)
    await asyncio.wait(tasks, timeout=TERM_GRACE_S)
    _signal(pid, signal.SIGKILL)  # also where the leader has ended: the rest of its group may not have
    await asyncio.wait(tasks, timeout=TERM_GRACE_S)


async def _end_reading(tasks: set[asyncio.Future[Any]]) -> None:
    """Stop reading what a daemon outside the group may hold open for ever."""
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("reading a process's output failed", exc_info=error)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _survivors(mark: str, group: int) -> list[int]:
    needle = f"{_MARK}={mark}".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            pid = int(environ.parent.name)
            if needle in environ.read_bytes() and os.getpgid(pid) != group:  # one of the group is only slow to die
                found.append(pid)
    return found
