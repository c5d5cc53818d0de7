"""``python -m tests.soak --minutes 30``: thousands of sessions on one server, and nothing grows.

Clients of the real library prompt, abort, resume, leave and come back, delete; in the middle the server is killed and
started again on the same database. Retention and eviction are seconds, so that the store and the memory
reach their steady state. What is measured at the end is held against what was measured after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sqlite3
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.client import Closed, CommandError, Unreachable, connect
from gateway.client.backoff import Backoff
from tests.e2e.support import Server, fresh, spec, text_of

if TYPE_CHECKING:
    from gateway.client import Gateway
    from protocol.commands import OnBusy

MIB = 1 << 20
CLIENTS = 12
KEPT = 4
"""Sessions that a client goes on with; for each new one the oldest is deleted, so that the store has to forget."""
BEAT_S = (0.2, 0.6)
"""From one thing to the next: the same load on a quiet machine and on a busy one, for memory goes with the load, and
a machine that gets quieter in the middle would look like a leak."""
SETTINGS = {
    "GATEWAY_RETAIN_S": "2",
    "GATEWAY_EVICT_S": "1",
    "GATEWAY_DISCONNECT_GRACE": "0.5",
    "GATEWAY_HEARTBEAT_S": "2",
}
ON_BUSY: tuple[OnBusy, ...] = ("reject", "queue", "interrupt")
PROMPTS = (
    {"do": "words", "words": 20, "delay": 0.01},
    {"do": "words", "words": 200, "delay": 0.01},
    {"do": "tools"},
    {"do": "tool_running", "text": True},
    {"do": "hold"},
    {"do": "mixed"},
    {"do": "late"},
)
EXPECTED = ("session_busy", "not_resumable", "session_not_found", "queue_full", "not_attached")
"""Refusals that random commands earn."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the server holds: bytes of memory and of database, open files, threads, tasks, commands it remembers."""

    memory: int
    files: int
    threads: int
    tasks: int
    database: int
    used: int
    """Of the database, without the pages that are free for reuse."""
    commands: int

    @classmethod
    def of(cls, server: Server, tasks: int) -> Figures:
        process = Path("/proc", str(server.running.pid))
        memory = int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        with contextlib.closing(sqlite3.connect(server.folder / "g.db", timeout=10)) as database:
            page, free, pages = (
                database.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_size", "freelist_count", "page_count")
            )
            (commands,) = database.execute("select count(*) from commands").fetchone()
        size = sum(file.stat().st_size for file in server.folder.glob("g.db*"))
        files, threads = len(os.listdir(process / "fd")), len(os.listdir(process / "task"))
        return cls(memory, files, threads, tasks, size, page * (pages - free), commands)

    def __str__(self) -> str:
        return (
            f"memory {self.memory / MIB:6.1f} MiB, files {self.files:3}, threads {self.threads:2}, "
            f"tasks {self.tasks:2}, "
            f"database {self.database / MIB:5.1f} MiB ({self.used / MIB:.1f} used, {self.commands} commands)"
        )


class Soak:
    """The clients, and what they have done."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.seed = seed
        self.over = asyncio.Event()
        self.counted = dict.fromkeys(("connections", "sessions", "prompts", "aborts", "resumes", "deleted"), 0)

    async def people(self, number: int) -> None:
        """One person after another, each with connections of their own, until it is over."""
        dice = random.Random(self.seed + number)
        sessions: list[str] = []
        loop = asyncio.get_running_loop()
        beat = loop.time()
        while not self.over.is_set():
            # The server may be away, which is a part of it: they come back.
            with contextlib.suppress(Unreachable, Closed):
                address = f"ws://127.0.0.1:{self.server.port}/ws"
                async with connect(address, backoff=Backoff(base=0.05, cap=0.5)) as gateway:
                    self.counted["connections"] += 1
                    for _ in range(dice.randint(3, 30)):
                        beat = max(beat + dice.uniform(*BEAT_S), loop.time() - 1)
                        await asyncio.sleep(beat - loop.time())
                        if self.over.is_set():
                            return
                        await self.act(gateway, sessions, dice)

    async def act(self, gateway: Gateway, sessions: list[str], dice: random.Random) -> None:
        """Do one thing."""
        if not sessions or dice.random() < 0.15:
            sessions.append(fresh())
            self.counted["sessions"] += 1
        if len(sessions) > KEPT:
            self.counted["deleted"] += (
                await self.server.http("DELETE", f"/api/sessions/{sessions.pop(0)}")
            ).status == 204
        session = gateway.session(dice.choice(sessions))
        try:
            match dice.choices(("prompt", "abort", "resume", "attach"), (6, 4, 1, 1))[0]:
                case "prompt":
                    on_busy: OnBusy = dice.choice(ON_BUSY)
                    await session.prompt(json.dumps(dice.choice(PROMPTS)), on_busy=on_busy)
                    self.counted["prompts"] += 1
                case "abort":
                    await session.abort()
                    self.counted["aborts"] += 1
                case "resume":
                    await session.resume()
                    self.counted["resumes"] += 1
                case "attach":
                    await session.attach()
        except CommandError as exc:
            if exc.code not in EXPECTED:
                raise


async def settled(server: Server) -> Figures:
    """What the server holds once nobody is there, runs have ended, and old sessions were let go: some seconds' rest."""
    await asyncio.sleep(8)
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("tasks"))
        tasks = int(text_of(c.view(session).fold.messages[-1]))
    await server.http("DELETE", f"/api/sessions/{session}")
    await asyncio.sleep(0.5)
    return Figures.of(server, tasks)


async def stage(server: Server, seed: int, seconds: float, counted: dict[str, int]) -> Figures:
    """Let the clients live for so long, then give what is left of them."""
    soak = Soak(server, seed)
    lives = [asyncio.create_task(soak.people(number)) for number in range(CLIENTS)]
    try:
        done, _ = await asyncio.wait(lives, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for life in done:
            life.result()
        soak.over.set()
        await asyncio.gather(*lives)
    finally:
        for life in lives:
            life.cancel()
        await asyncio.gather(*lives, return_exceptions=True)
    for name, value in soak.counted.items():
        counted[name] = counted.get(name, 0) + value
    return await settled(server)


def hold(before: Figures, after: Figures) -> list[str]:
    """Say what has grown beyond its bound."""
    bounds = {
        # The allocator keeps what the busiest moment took; a leak of 1 kB a prompt would be beyond it in some minutes.
        "memory": before.memory + 16 * MIB,
        # Nobody is connected: the listener, the database, the loop.
        "files": before.files + 2,
        "threads": before.threads + 1,
        # One client that asks: its reader, pump and run, and what the server itself has.
        "tasks": before.tasks + 1,
        # Of a deleted session its commands stay for a day, 250 bytes each in the table and its two indexes.
        "used": before.used + 4 * MIB + 400 * (after.commands - before.commands),
        # Free pages are used again; the write-ahead log is as long as it once was.
        "database": before.database + 16 * MIB + 400 * (after.commands - before.commands),
    }
    return [
        f"{name}: {getattr(before, name)} -> {getattr(after, name)}, beyond {bound}"
        for name, bound in bounds.items()
        if getattr(after, name) > bound
    ]


async def main(minutes: float, seed: int) -> int:
    """Warm up, soak, kill and restart, soak again. Gives the exit code."""
    print(f"soak of {minutes:g} minutes, --seed {seed}", flush=True)
    seconds = minutes * 60
    counted: dict[str, int] = {}
    grown: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder), env=SETTINGS).start()
        began = time.monotonic()
        try:
            for half in range(2):
                before = await stage(server, seed + 1000 * half, seconds * 0.12, counted)
                print(f"{time.monotonic() - began:6.0f} s  warm    {before}", flush=True)
                for quarter in range(3):
                    after = await stage(server, seed + 1000 * half + 100 * quarter + 50, seconds * 0.1, counted)
                    print(f"{time.monotonic() - began:6.0f} s  {counted['prompts']:6}  {after}", flush=True)
                grown += hold(before, after)
                if not half:
                    server.kill()  # in the middle
                    await server.restart()
            listed = (await server.http("GET", "/api/sessions?limit=200")).body["sessions"]
            for line in listed:
                if line["status"] != "idle":
                    grown.append(f"nobody is there, and {line['session_id']} is {line['status']}")
            if "Traceback" in server.logs():
                grown.append(server.logs())
        finally:
            server.close()
    print(counted, flush=True)
    for line in grown:
        print(f"soak: {line}", flush=True)
    print("soak: " + ("failed" if grown else "nothing grew"), flush=True)
    return bool(grown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    raise SystemExit(asyncio.run(main(options.minutes, options.seed)))
