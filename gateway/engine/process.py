"""Child processes for tools: a group of their own, and nobody of it survives the run.

``run_process`` is meant to be called inside an async tool. Cancelled, it asks the whole group to end (TERM), gives it
200 ms and then kills it (KILL). A grandchild that left the group on purpose cannot be killed safely; on Linux it is
found by a mark in its environment and reported in the log.
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
from typing import TYPE_CHECKING

from gateway.engine.abort import outlast

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("gateway.engine")

TERM_GRACE_S = 0.2
_MARK = "GATEWAY_PROCESS_MARK"


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a process ended: its exit code (negative: the signal) and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


async def run_process(
    *argv: str, cwd: str | Path | None = None, env: Mapping[str, str] | None = None, stdin: bytes | None = None
) -> ProcessResult:
    """Run ``argv`` (no shell) to its end and give its result; cancelled, leave nothing of it behind.

    ``env`` is added to this process's environment. Raises OSError where the program cannot be started.
    """
    mark = secrets.token_hex(8)
    loop = asyncio.get_running_loop()
    # Not create_subprocess_exec: it keeps its transport to itself, which has to be closed under a daemon's hands.
    starting = loop.subprocess_exec(
        lambda: asyncio.subprocess.SubprocessStreamProtocol(limit=2**16, loop=loop),
        *argv,
        cwd=cwd,
        env={**os.environ, **(env or {}), _MARK: mark},
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
    output = asyncio.ensure_future(process.communicate(stdin))
    try:
        if cancelled is not None:
            raise cancelled
        stdout, stderr = await asyncio.shield(output)
    except BaseException:
        await _end_group(process.pid, output)
        _report(mark)
        raise
    finally:
        transport.close()
    _signal(process.pid, signal.SIGKILL)  # children that the process left behind in its group
    return ProcessResult(process.returncode or 0, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


async def _end_group(pid: int, output: asyncio.Future[tuple[bytes, bytes]]) -> None:
    _signal(pid, signal.SIGTERM)
    await asyncio.wait({output}, timeout=TERM_GRACE_S)
    _signal(pid, signal.SIGKILL)  # also where the leader has ended: the rest of its group may not have
    await asyncio.wait({output}, timeout=TERM_GRACE_S)
    if not output.done():  # a daemon outside the group holds the pipes open: do not wait for it
        output.cancel()
        await asyncio.wait({output})


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _report(mark: str) -> None:
    needle = f"{_MARK}={mark}".encode()
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if needle in environ.read_bytes():
                log.warning("process %s left its tool's group and still runs", environ.parent.name)
