"""Child processes of tools (the contract's cases 42 to 44): no survivors, and what survives is reported."""

from __future__ import annotations

import asyncio
import os
import resource
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


async def test_a_gigabyte_of_output_is_kept_as_its_two_ends() -> None:
    """The process is neither blocked nor does it take our memory; the text says what is missing."""
    program = "import sys\nfor _ in range(1024): sys.stdout.write('x' * 2**20)\nsys.stdout.write('the end')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = await run_process(sys.executable, "-c", program, max_output_bytes=2000)
    assert result.returncode == 0
    assert result.truncated
    assert result.stdout.startswith("x" * 1000 + "\n[… 1,073,739,831 bytes left out …]\n")
    assert result.stdout.endswith("x" * 993 + "the end")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000, "kilobytes"


async def test_every_piece_of_output_can_be_watched() -> None:
    pieces: list[bytes] = []
    result = await run_process(
        sys.executable, "-c", "print('a' * 300000)", max_output_bytes=10, on_output=pieces.append
    )
    assert b"".join(pieces) == b"a" * 300000 + b"\n"
    assert result.stdout == "aaaaa\n[… 299,991 bytes left out …]\naaaa\n"


async def test_a_child_left_in_the_background_ends_with_its_parent() -> None:
    """`server &` in a command: nobody of the group survives, and nobody waits for it."""
    result = await run_process("/bin/sh", "-c", "sleep 1000 & echo $!")
    assert gone(int(result.stdout))
    assert result.survivors == ()


async def test_a_daemon_that_outlives_a_call_is_reported_in_its_result(caplog: pytest.LogCaptureFixture) -> None:
    """It holds the pipes open; the call ends all the same, with what was written."""
    program = (
        "import os, signal\n"
        "wait, tell = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.write(tell, b'.')\n"
        "    signal.pause()\n"
        "os.read(wait, 1)\n"
    )
    result = await run_process("/bin/sh", "-c", f'{sys.executable} -c "$0" & wait $!; sleep 0', program, stdin=b"")
    pid = int(result.stdout)
    try:
        assert result.survivors == (pid,)
        assert f"process {pid} left its tool's group" in caplog.text
    finally:
        os.kill(pid, signal.SIGKILL)


async def test_an_environment_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    own = await run_process("/usr/bin/env", env={"A": "1"}, inherit_env=False)
    assert {line.split("=")[0] for line in own.stdout.split()} == {"A", "GATEWAY_PROCESS_MARK"}
    assert "SECRET=s" in (await run_process("/usr/bin/env", env={"A": "1"})).stdout


async def test_a_program_that_does_not_read_its_input() -> None:
    result = await run_process("/bin/sh", "-c", "exit 4", stdin=b"x" * 10_000_000)
    assert result.returncode == 4


async def test_a_program_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        await run_process("/no/such/program")
