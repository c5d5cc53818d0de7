"""Child processes of tools (the contract's cases 42 to 44): no survivors, and what survives is reported."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine.process import run_process

if TYPE_CHECKING:
    from pathlib import Path

TREE = """
import os, sys
if os.fork() == 0:
    os.fork()
print(os.getpid(), file=open(sys.argv[1], "a"), flush=True)
import signal
signal.pause()
"""
DEAF = """
import os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), file=open(sys.argv[1], "a"), flush=True)
while True:
    signal.pause()
"""
DAEMON = """
import os, signal, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), file=open(sys.argv[1], "a"), flush=True)
    else:
        os._exit(0)
signal.pause()
"""


async def start(program: str, pids: Path, count: int) -> tuple[asyncio.Task[object], list[int]]:
    """Start ``program`` and wait until ``count`` of its processes have written their ids."""
    os.mkfifo(pids)
    loop = asyncio.get_running_loop()
    written: asyncio.Queue[int] = asyncio.Queue()
    fifo = os.open(pids, os.O_RDWR)

    def readable() -> None:
        for line in os.read(fifo, 4096).split():
            written.put_nowait(int(line))

    loop.add_reader(fifo, readable)
    try:
        task: asyncio.Task[object] = asyncio.create_task(run_process(sys.executable, "-c", program, str(pids)))
        return task, [await written.get() for _ in range(count)]
    finally:
        loop.remove_reader(fifo)
        os.close(fifo)


def gone(pid: int) -> bool:
    """Say whether a process ends: a KILL has been sent by now, but takes a moment to arrive."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], 5)[0])
    finally:
        os.close(handle)


async def cancel(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_process_ends_by_itself() -> None:
    """The plain case: exit code, output and what it was given."""
    program = "import sys; print(sys.stdin.read()); sys.exit(3)"
    result = await run_process(sys.executable, "-c", program, stdin=b"hello")
    assert (result.returncode, result.stdout.strip(), result.stderr) == (3, "hello", "")


async def test_case_42_subprocess_tree(tmp_path: Path) -> None:
    """Children and grandchildren end with the call."""
    task, pids = await start(TREE, tmp_path / "pids", 3)
    await cancel(task)
    assert [pid for pid in pids if not gone(pid)] == []


async def test_case_43_child_ignores_term(tmp_path: Path) -> None:
    """A process that is deaf to TERM is killed."""
    task, pids = await start(DEAF, tmp_path / "pids", 1)
    await cancel(task)
    assert gone(pids[0])


async def test_case_44_double_forked_daemon(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A daemon that left the group is not chased, but named in the log."""
    task, pids = await start(DAEMON, tmp_path / "pids", 1)
    try:
        await cancel(task)
        assert f"process {pids[0]} left its tool's group" in caplog.text
    finally:
        os.kill(pids[0], signal.SIGKILL)


async def test_a_process_cancelled_while_it_is_being_started_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been born before we hear of it."""
    loop = asyncio.get_running_loop()
    spawn, born, gate, pids = loop.subprocess_exec, asyncio.Event(), asyncio.Event(), []

    async def slow_spawn(*args: Any, **options: Any) -> Any:
        transport, protocol = await spawn(*args, **options)
        pids.append(transport.get_pid())
        born.set()
        await gate.wait()
        return transport, protocol

    monkeypatch.setattr(loop, "subprocess_exec", slow_spawn)
    task: asyncio.Task[object] = asyncio.create_task(run_process(sys.executable, "-c", "import signal; signal.pause()"))
    await born.wait()
    task.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert gone(pids[0])
