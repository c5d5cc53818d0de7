"""The disk fills, goes read-only, is locked or damaged: a clear refusal, nothing acknowledged lost, and back by itself.

The disks are real: a small tmpfs of its own for each test, mounted as root. Where nobody may mount, what can be said
without is in `tests/e2e/test_store.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import PATIENCE, Server, agree, check_log, fresh, spec, text_of
from tests.faults import dice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Client

DISK_BYTES = 4 << 20
GROWN = spec("words", words=100, pad=100)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root may mount a disk to fill; tests/e2e/test_store.py has refused writes without one")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk: Path) -> None:
    """Take all the room there is."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        (disk / "probe").write_bytes(b"x")


def empty(disk: Path) -> None:
    (disk / "ballast").unlink()
    (disk / "probe").unlink()


def on(disk: Path, launch: Launch, *, start: bool = True) -> Server:
    return launch(start=start, args=("--store", f"sqlite:///{disk / 'g.db'}"))


async def refuses(server: Server) -> str:
    """It ends at the start with exit code 2 and one line."""
    said = len(server.stderr()) if (server.folder / "err.log").exists() else 0
    server.spawn()
    assert await server.exited(20) == 2, server.logs()
    lines = [line for line in server.stderr()[said:].splitlines() if line.strip()]
    assert len(lines) == 1, server.logs()
    assert lines[0].startswith("gateway: "), lines
    return lines[0]


async def back(c: Client) -> None:
    """The store takes prompts again, and nobody did anything about it."""
    async with asyncio.timeout(PATIENCE):
        while (await c.call("prompt", session_id=fresh(), text="Hi")).get("code") == "store_unavailable":
            continue


async def suffers(server: Server, begin: Callable[[], None], end: Callable[[], None], *, rounds: int) -> None:
    """Let the store fail under live runs, and come back, time after time."""
    sessions = [fresh() for _ in range(3)]
    async with server.client() as c:
        for _ in range(rounds):
            acks = [await c.prompt(s, spec("words", words=100_000, pad=100, delay=0.002)) for s in sessions]
            for ack in acks:
                await c.until("text-delta", run_id=ack["run_id"])
            begin()
            try:
                told: set[str] = set()
                async with asyncio.timeout(30):
                    while told != set(sessions):
                        error = await c.until("error", timeout=30)
                        assert (error["code"], error["retryable"]) == ("store_unavailable", True)
                        told.add(error["session_id"])
                await c.fails("store_unavailable", "prompt", session_id=fresh(), text="Hi")
                assert (await server.http("GET", "/healthz")).status == 200
            finally:
                end()
            await back(c)
            for ack in acks:
                await c.over(ack, timeout=30)
            for session in sessions:
                snapshot = await agree(server, c, session)
                assert snapshot["messages"][-1]["error"]["reason"] == "InterruptedError"
                assert snapshot["resumable"] is True
        for session, ack in zip(sessions, acks, strict=True):
            log = await server.log(session)
            check_log(log)
            assert [e["status"] for e in log if e["type"] == "run-finish"] == ["lost"] * rounds
            seen = [e for e in c.events(session) if e["type"] == "text-delta" and e["run_id"] == ack["run_id"]]
            last = (await server.snapshot(session))["messages"][-1]
            assert text_of(last) == "".join(e["text"] for e in seen), "what was not committed was not sent"
            assert (await c.run(session, "again"))["status"] == "completed"
    assert "Traceback" not in server.logs()


async def test_a_full_disk_is_told_and_survived(disk: Path, launch: Launch) -> None:
    await suffers(on(disk, launch), lambda: fill(disk), lambda: empty(disk), rounds=round(4 * max(1, dice.TIMES)))


async def test_a_full_disk_at_the_start_is_one_line_and_exit_code_2(disk: Path, launch: Launch) -> None:
    fill(disk)
    server = on(disk, launch, start=False)
    await refuses(server)
    empty(disk)
    server.start()
    async with server.client() as c:
        assert (await c.run(fresh()))["status"] == "completed"


async def test_a_restart_on_a_disk_that_is_full_keeps_what_was_acknowledged(disk: Path, launch: Launch) -> None:
    server, session, lost = on(disk, launch), fresh(), fresh()
    async with server.client() as c:
        await c.run(session, GROWN)
        before = await agree(server, c, session)
        await c.holding(lost)
        server.kill()
        await c.closed()
    fill(disk)
    await server.restart()
    async with server.client() as c:
        assert await server.snapshot(session) == before, "what can be read is served"
        await c.fails("store_unavailable", "prompt", session_id=session, text="Hi")
        await c.fails("store_unavailable", "prompt", session_id=lost, text="Hi")
        empty(disk)
        await back(c)
        await c.ok("attach", session_id=lost, seq=0)
        await c.until("run-finish", session_id=lost, status="lost")
    check_log(await server.log(lost))
    assert "Traceback" not in server.logs()


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


async def test_a_read_only_disk_is_one_line_and_exit_code_2(disk: Path, launch: Launch) -> None:
    server, session = on(disk, launch), fresh()
    async with server.client() as c:
        await c.run(session)
        before = await agree(server, c, session)
    server.terminate()
    assert await server.exited() == 0
    remount(disk, "ro")
    assert "read-only" in (await refuses(server)).lower().replace("readonly", "read-only")
    remount(disk, "rw")
    await server.restart()
    assert await server.snapshot(session) == before


@contextlib.contextmanager
def immutable(path: Path) -> Iterator[None]:
    done = subprocess.run(["chattr", "+i", str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this file system has no immutable files, and root may write any other")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(path)], check=True)


async def test_a_file_that_may_not_be_written_is_one_line_and_exit_code_2(disk: Path, launch: Launch) -> None:
    server, session = on(disk, launch), fresh()
    async with server.client() as c:
        await c.run(session)
        before = await agree(server, c, session)
    server.terminate()
    assert await server.exited() == 0
    with immutable(disk / "g.db"):
        assert "g.db" in await refuses(server)
    await server.restart()
    assert await server.snapshot(session) == before


async def test_a_file_that_becomes_read_only_under_live_runs(launch: Launch) -> None:
    server = launch()
    stack = contextlib.ExitStack()
    wal = server.folder / "g.db-wal"
    await suffers(server, lambda: stack.enter_context(immutable(wal)), stack.close, rounds=1)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else writes, and does not end."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


async def test_a_lock_of_somebody_else_is_told_and_survived(launch: Launch) -> None:
    server = launch()
    stack = contextlib.ExitStack()
    await suffers(server, lambda: stack.enter_context(locked(server.folder / "g.db")), stack.close, rounds=2)


async def test_a_locked_database_at_the_start_is_one_line_and_exit_code_2(launch: Launch) -> None:
    server, session = launch(), fresh()
    async with server.client() as c:
        await c.run(session)
        before = await agree(server, c, session)
    server.terminate()
    assert await server.exited() == 0
    with locked(server.folder / "g.db"):
        assert "locked" in await refuses(server)
    await server.restart()
    assert await server.snapshot(session) == before


# Damage


async def filled(server: Server, sessions: list[str]) -> None:
    """Put so much into a database that its tables have pages of their own, and close it in order."""
    async with server.client() as c:
        for session in sessions:
            assert (await c.run(session, GROWN))["status"] == "completed"
    server.terminate()
    assert await server.exited() == 0


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    match how:
        case "header":
            data[:100] = os.urandom(100)
        case "empty pages":
            data[8192:] = bytes(len(data) - 8192)
        case "middle":
            for page in range(2, len(data) // 4096):
                data[page * 4096 : page * 4096 + 200] = os.urandom(200)
        case "truncated":
            del data[len(data) // 3 :]
        case "truncated to nothing but a page":
            del data[4096:]
    path.write_bytes(data)


async def test_a_damaged_database_is_one_line_that_names_it(launch: Launch) -> None:
    server, sessions = launch(), [fresh() for _ in range(4)]
    await filled(server, sessions)
    path = server.folder / "g.db"
    whole = path.read_bytes()
    for how in ("header", "empty pages", "middle", "truncated", "truncated to nothing but a page"):
        damage(path, how)
        line = await refuses(server)
        assert "g.db" in line
        assert "malformed" in line or "not a database" in line, (how, line)
        path.write_bytes(whole)
        for rest in server.folder.glob("g.db-*"):
            rest.unlink()
    await server.restart()
    for session in sessions:
        check_log(await server.log(session))


async def test_garbage_behind_the_write_ahead_log_costs_nothing_that_was_committed(launch: Launch) -> None:
    server, session = launch(), fresh()
    async with server.client() as c:
        await c.run(session, GROWN)
        before = await agree(server, c, session)
        server.kill()
        await c.closed()
    with (server.folder / "g.db-wal").open("ab") as wal:
        wal.write(os.urandom(50_000))
    await server.restart()
    assert await server.snapshot(session) == before
    check_log(await server.log(session))


async def test_garbage_in_the_write_ahead_log_is_a_lost_tail_not_a_broken_log(launch: Launch) -> None:
    """SQLite drops what its checksums refuse: the clients, who have seen more, get a new epoch and a snapshot."""
    server, session = launch(), fresh()
    async with server.client() as c:
        await c.run(session, "kept")
        await c.run(session, GROWN)
        seq, epoch = c.view(session).seq, c.view(session).epoch
        server.kill()
        await c.closed()
    wal = server.folder / "g.db-wal"
    data = bytearray(wal.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 1000] = os.urandom(1000)
    wal.write_bytes(data)
    await server.restart()
    async with server.client() as c:
        attached = await c.ok("attach", session_id=session, epoch=epoch, seq=seq)
        assert (attached["recovery"], attached["seq"] < seq) == ("snapshot", True)
        assert attached["epoch"] != epoch
        await c.until("snapshot", session_id=session)
        assert (await c.run(session, "goes on"))["status"] == "completed"
        await agree(server, c, session)


async def test_damage_under_a_running_server_refuses_what_it_cannot_read_and_nothing_else(launch: Launch) -> None:
    server, sessions = launch(evict_s=0, retain_s=0.1), [fresh() for _ in range(8)]
    await filled(server, sessions)
    await server.restart()
    path = server.folder / "g.db"
    whole = path.read_bytes()
    async with server.client() as c:
        running = await c.holding(fresh())
        with path.open("r+b") as file:  # the same file, which the server has open
            for page in range(4, len(whole) // 4096):
                file.seek(page * 4096)
                file.write(os.urandom(300))
        for session in sessions:
            answer = await server.http("GET", f"/api/sessions/{session}")
            assert (answer.status, answer.code) == (503, "store_unavailable"), answer
        assert (await server.http("GET", "/healthz")).status == 200
        await c.ok("abort", session_id=running["session_id"])
        with path.open("r+b") as file:
            file.write(whole)
    server.kill()
    assert "Traceback" not in server.logs()
