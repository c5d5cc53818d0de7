"""ENGINE cases 59, 60, 62 and 63 through the real server: nothing is left over, and nothing is left open."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ABORT_ERROR, agree, check_log, fresh, spec, text_of, types

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame
    from tests.e2e.support import Client, Server

SESSIONS = 8
CYCLES = 1000
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process holds, as the kernel counts it."""

    files: int
    threads: int
    children: int
    rss: int

    @classmethod
    def of(cls, pid: int) -> Usage:
        process = Path("/proc", str(pid))
        tasks = list((process / "task").iterdir())
        children = sum(len((t / "children").read_text().split()) for t in tasks)
        pages = int((process / "statm").read_text().split()[1])
        return cls(len(os.listdir(process / "fd")), len(tasks), children, pages * os.sysconf("SC_PAGE_SIZE"))


async def settled(server: Server, client: Client, like: Usage | None = None) -> Usage:
    """What the server holds once it rests: round trips, until it is no more than before, or for a while."""
    usage = Usage.of(server.running.pid)
    for _ in range(200):
        await client.barrier()
        usage = Usage.of(server.running.pid)
        if like is not None and (usage.files, usage.threads, usage.children) == (
            like.files,
            like.threads,
            like.children,
        ):
            break
    return usage


async def cycle(client: Client, sessions: list[str], text: str, at: str) -> None:
    """All the sessions at once: prompt, abort in the middle, resume, abort again unless it was quicker."""
    client.frames.clear()
    client.messages.clear()
    started = [await client.prompt(s, text) for s in sessions]
    for ack in started:
        await came(client, at, ack["run_id"])
        await client.ok("abort", session_id=ack["session_id"])
    for ack in started:
        finish = await came(client, "run-finish", ack["run_id"])
        assert (finish["status"], finish["error"], finish["settled"]) == ("aborted", ABORT_ERROR, True)
    resumed = [await client.ok("resume", session_id=s) for s in sessions]
    for ack in resumed:
        await client.ok("abort", session_id=ack["session_id"])
    for ack in resumed:
        assert (await came(client, "run-finish", ack["run_id"]))["status"] in ("aborted", "completed")


async def came(client: Client, kind: str, run_id: str) -> Frame:
    """Wait for a run's first event of this kind, which may be here already: other runs' events come between."""

    def found() -> Frame | None:
        return next((f for f in client.frames if f["type"] == kind and f.get("run_id") == run_id), None)

    await client.reach(lambda: found() is not None, f"{kind} of {run_id}")
    event = found()
    assert event is not None
    return event


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", ["agents:agent", "director"])
async def test_case_63_a_thousand_abort_resume_cycles(launch: Launch, engine: str) -> None:
    """Over one connection and several sessions: files, threads, children and memory stay as they are."""
    agent = engine != "director"
    server = launch(engine, retain_s=1, scripted_pace=0.005)
    sessions = [fresh() for _ in range(SESSIONS)]
    later = {"do": "words", "words": 10, "delay": 0.005}
    ways = (
        [("Tell me a story", "text-delta"), ("Count to 1000", "tool-start")]
        if agent
        else [
            (spec("words", words=10_000, delay=0.005, resume=later), "text-delta"),
            (spec("tool_running", resume=later), "tool-start"),
        ]
    )
    rounds = CYCLES // SESSIONS
    async with server.client() as c:
        for n in range(6):  # pools fill, caches warm
            await cycle(c, sessions, *ways[n % 2])
        before = await settled(server, c)
        middle = before
        for n in range(rounds):
            await cycle(c, sessions, *ways[n % 2])
            if n == rounds // 2:
                middle = Usage.of(server.running.pid)
        after = await settled(server, c, before)
        print(f"{engine}: {before} -> {after}")
        assert (after.files, after.threads, after.children) == (before.files, before.threads, before.children)
        assert after.rss - before.rss < 48 * MIB, (before, middle, after)
        assert after.rss - middle.rss < 24 * MIB, "and it does not go on growing"
        for session in sessions:
            await agree(server, c, session)
            assert not c.view(session).dropped
            c.views.pop(session)
        idle = [await c.ok("abort", session_id=s) for s in sessions]
        assert [a["runs"] for a in idle] == [[]] * SESSIONS


async def test_case_59_a_dropped_socket_aborts_its_runs_after_their_grace_and_a_return_keeps_them(
    launch: Launch,
) -> None:
    """Whoever vanishes means Stop once the grace is over; whoever comes back within it wants what is running."""
    server = launch("agents:agent", scripted_pace=0.01)
    left, kept = fresh(), fresh()
    async with server.client() as watcher:
        async with server.client() as c:
            for session, grace in ((left, 0.2), (kept, 60)):
                await c.prompt(session, "Tell me a story", grace_s=grace)
                await c.until("text-delta", session_id=session)
                await watcher.ok("attach", session_id=session, seq=0, role="observer")
            await c.cut()
        finish = await watcher.until("run-finish", session_id=left)
        assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "disconnect", ABORT_ERROR)
        async with server.client() as back:
            await back.ok("attach", session_id=kept, epoch=c.view(kept).epoch, seq=c.view(kept).seq)
            assert (await watcher.until("run-finish", session_id=kept, timeout=30))["status"] == "completed"
        snapshot = await server.snapshot(left)
        assert snapshot["resumable"] is True
        assert text_of(snapshot["messages"][-1]).startswith("Once")
    for session in (left, kept):
        check_log(await server.log(session))


async def test_case_60_an_abort_of_an_idle_session_is_an_empty_ack(launch: Launch) -> None:
    """Stop where nothing runs is what the person wanted already: an ack, nothing stopped, nothing written."""
    server = launch("agents:agent", scripted_pace=0)
    session = fresh()
    async with server.client() as c:
        await c.run(session, "a table")
        head = c.view(session).seq
        for how in ({"session_id": session}, {"session_id": session, "reason": "twice"}, {}):
            ack = await c.ok("abort", **how)
            assert (ack["type"], ack["command"], ack["runs"]) == ("ack", "abort", [])
        await c.barrier()
        assert c.view(session).seq == head, "it left no event"
        assert (await c.run(session, "a table"))["status"] == "completed"
        await agree(server, c, session)


async def test_case_62_sigterm_seals_every_run_by_the_deadline(launch: Launch) -> None:
    """Engines that listen and engines that do not, tools that end and tools that hang: all in time, and exit code 0."""
    server = launch("agents:mixed", drain=0.3, abort_grace=0.5)
    jobs = ["story", "tool", *(spec(do) for do in ("hold", "stubborn", "late", "hang", "tool_running", "tool_input"))]
    sessions = {fresh(): job for job in jobs * 4}
    async with server.client(batch=True) as c:
        for session, job in sessions.items():
            await c.prompt(session, job, on_disconnect="continue")
        for session in sessions:
            await c.reach(lambda s=session: len(types(c.events(s))) > 4, "a run on its way")  # type: ignore[misc]
        began = time.monotonic()
        server.terminate()
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0
        took = time.monotonic() - began
    assert took < 0.3 + 0.5 + 3, f"the drain, the grace, and some for the sealing: {took:.1f} s"
    await server.restart()
    logs = await asyncio.gather(*(server.log(session) for session in sessions))
    for log, job in zip(logs, sessions.values(), strict=True):
        check_log(log)
        end = log[-1]
        assert end["type"] == "run-finish", job
        assert (end["status"], end["reason"]) == ("aborted", "shutdown"), (job, end)
        assert not any(e["type"] == "run-finish" and e["status"] == "lost" for e in log)
