"""``gateway serve --workers N``: several processes, one port, one parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.support import HERE, LONG, alive, eventually
from tests.e2e.support import ROOT, Server, agree, fresh

if TYPE_CHECKING:
    from collections.abc import Iterator


def steps(count: int = 3, **more: object) -> str:
    return json.dumps({"steps": count, **more})


class Workers(Server):
    """A parent with its workers."""

    def __init__(self, folder: Path, database: str, count: int = 3) -> None:
        self.runs = folder / "runs.log"
        self.runs.touch()
        env = {"RUN_LOG": str(self.runs), "GATEWAY_LEASE_S": "2", "GATEWAY_DRAIN": "20"}
        super().__init__(folder, "engines:steps", env=env, cwd=HERE)
        self.database = database
        self.count = count

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "gateway", "serve", self.engine, "--port", str(self.port)]
        return [*serve, "--store", self.database, "--workers", str(self.count)]

    def children(self) -> dict[int, str]:
        """Processes below the parent: id → command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    if parent == self.running.pid:
                        found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
                except OSError:
                    continue
        return found

    def workers(self) -> list[int]:
        return [pid for pid, line in self.children().items() if "--worker " in line]

    def bus(self) -> int:
        return next(pid for pid, line in self.children().items() if "redis-server" in line)


@pytest.fixture
def workers(tmp_path: Path, database: str) -> Iterator[Workers]:
    one = Workers(tmp_path, database)
    yield one.start()
    one.close()


async def announced(server: Workers) -> None:
    await eventually(lambda: "3 workers" in (server.folder / "out.log").read_text(), "the line that says it listens")


async def test_workers_share_sessions_and_the_work(workers: Workers) -> None:
    await announced(workers)
    assert (workers.folder / "out.log").read_text().count("listening") == 1
    assert len(workers.workers()) == 3
    session = fresh()
    tabs = [workers.client() for _ in range(12)]
    for tab in tabs:
        await tab.open()
        await tab.greet()
        await tab.prompt(fresh(), steps())
    for tab in tabs:
        await tab.prompt(session, steps(), on_busy="queue")
    for tab in tabs:
        await tab.reach(lambda tab=tab: len(tab.view(session).fold.messages) == 24, "all twelve answers")  # type: ignore[misc]
        await tab.idle(session)
        await agree(workers, tab, session)
        await tab.close()
    pids = {int(line.split("\t")[3]) for line in workers.runs.read_text().splitlines()}
    assert pids <= set(workers.workers())
    assert len(pids) > 1


async def test_a_worker_that_crashes_is_started_again_and_its_runs_are_sealed(workers: Workers, tmp_path: Path) -> None:
    await announced(workers)
    session = fresh()
    client = workers.client()
    await client.open()
    await client.greet()
    ack = await client.prompt(session, steps(2, gate=str(tmp_path / "gate")), on_disconnect="continue")
    await client.until("text-delta", session_id=session)
    victim = int(workers.runs.read_text().splitlines()[0].split("\t")[3])
    os.kill(victim, signal.SIGKILL)
    await eventually(lambda: len(set(workers.workers()) - {victim}) == 3, "three workers again")
    async with workers.client() as other:
        await other.ok("attach", session_id=session, seq=0, timeout=LONG)
        await other.over(ack, timeout=LONG)
        assert (await other.ok("resume", session_id=session, timeout=LONG))["run_id"]


async def test_one_sigterm_drains_all_workers_and_leaves_nothing_behind(workers: Workers, tmp_path: Path) -> None:
    await announced(workers)
    processes = list(workers.children())
    async with workers.client() as client:
        ack = await client.prompt(fresh(), steps(2, gate=str(tmp_path / "gate")))
        await client.until("text-delta")
        workers.terminate()
        await client.until("goaway", timeout=LONG)
        (tmp_path / "gate").touch()
        finish = await client.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "completed"
        assert await client.closed(timeout=LONG) == 4100
    assert await workers.exited(60) == 0
    assert not [pid for pid in processes if alive(pid)]


async def test_a_second_sigterm_ends_at_once(workers: Workers, tmp_path: Path) -> None:
    await announced(workers)
    processes = list(workers.children())
    async with workers.client() as client:
        await client.prompt(fresh(), steps(2, gate=str(tmp_path / "gate")))
        await client.until("text-delta")
        workers.terminate()
        await client.until("goaway", timeout=LONG)
        workers.terminate()
        assert await workers.exited(20) == 1
    await eventually(lambda: not [pid for pid in processes if alive(pid)], "the end of all")


async def test_workers_and_their_redis_do_not_outlive_a_killed_parent(workers: Workers) -> None:
    await announced(workers)
    processes = list(workers.children())
    assert len(processes) == 4
    workers.kill()
    await eventually(lambda: not [pid for pid in processes if alive(pid)], "the end of all")


def refusal(*args: str, **env: str) -> tuple[int, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "serve", "--port", "0", *args],
        env={**clean, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--workers", "2"], "workers: several processes share a PostgreSQL store"),
        (["--bus", "redis://127.0.0.1:1"], "bus: several nodes share a PostgreSQL store"),
        (["--bus", "nats://x", "--store", "postgresql://x/y"], "bus: 'nats' is no bus"),
        (["--workers", "0"], "workers: 0 is out of range"),
    ],
)
def test_what_cannot_be_costs_one_line(args: list[str], says: str, tmp_path: Path) -> None:
    code, text = refusal(*args, GATEWAY_LEASE_S="6")
    assert code == 2
    assert text.startswith(f"gateway: {says}")
    assert text.count("\n") == 1


def test_workers_without_a_redis_server_say_so(tmp_path: Path) -> None:
    code, text = refusal("--workers", "2", "--store", "postgresql://x/y", PATH=str(tmp_path))
    assert (code, text.count("\n")) == (2, 1)
    assert "redis-server" in text


async def test_a_node_starts_without_redis_and_says_that_it_is_degraded(tmp_path: Path, database: str) -> None:
    server = Server(tmp_path, "engines:steps", cwd=HERE)
    server.command = lambda: [  # type: ignore[method-assign]
        sys.executable, "-m", "gateway", "serve", "engines:steps", "--port", str(server.port),
        "--store", database, "--bus", "redis://user:secret@127.0.0.1:1",
    ]  # fmt: skip
    try:
        await asyncio.to_thread(server.start)
        assert (await server.http("GET", "/readyz")).body == {"status": "degraded: no bus"}
        async with server.client() as client:
            await client.run(fresh(), steps())
        assert "bus redis://" in server.stderr()
        assert "secret" not in server.stderr()
    finally:
        server.close()
