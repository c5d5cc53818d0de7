"""Retention: below the floor there is a snapshot, never a partial replay."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.e2e.fold import is_event
from tests.e2e.support import Server, agree, fresh, spec

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

STORES = ("sqlite", "postgresql")

SETTINGS = {"retain_bytes": 200_000, "send_timeout": 30}
CHATTY = spec("words", words=300, pad=300, delay=0.001)
"""About 150 KB of events."""


async def attach_until(server: Server, session: str, recovery: str, **cursor: Any) -> None:
    """Attach again and again until the floor has risen; bounded."""
    async with asyncio.timeout(20), server.client() as c:
        while (await c.ok("attach", session_id=session, role="observer", **cursor))["recovery"] != recovery:
            await c.barrier()


async def test_past_retain_bytes_the_oldest_events_go(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        for _ in range(4):
            await a.over(await a.prompt(session, CHATTY))
        await a.run(session)
        held = a.view(session)
        await attach_until(server, session, "snapshot", epoch=held.epoch, seq=2)
        await attach_until(server, session, "snapshot", seq=0)
        async with server.client() as b:
            attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=2)
            assert (attached["recovery"], attached["epoch"]) == ("snapshot", held.epoch)
            await b.until("snapshot", session_id=session)
            await agree(server, b, session)
            assert b.view(session).fold.state() == held.fold.state()
        async with server.client() as b:
            attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=held.seq - 2)
            assert attached["recovery"] == "replay", "the newest events are still there"
            await b.until("run-finish", session_id=session)
            assert [e["seq"] for e in b.events(session)] == [held.seq - 1, held.seq]


async def test_past_retain_s_the_events_go(launch: Launch) -> None:
    server = launch(retain_s=1)
    session = fresh()
    async with server.client() as a:
        await a.run(session)
        held = a.view(session)
        async with server.client() as b:
            assert (await b.ok("attach", session_id=session, epoch=held.epoch, seq=2))["recovery"] == "replay"
        await attach_until(server, session, "snapshot", epoch=held.epoch, seq=2)
        async with server.client() as b:
            attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=held.seq)
            assert (attached["recovery"], attached["seq"]) == ("live", held.seq)
        assert (await a.run(session, "next"))["status"] == "completed"
        await agree(server, a, session)


async def test_what_retention_dropped_is_still_in_the_transcript_after_kill_9(launch: Launch) -> None:
    server = launch(retain_s=1, retain_bytes=200_000)
    session = fresh()
    async with server.client() as a:
        for _ in range(3):
            await a.over(await a.prompt(session, CHATTY))
        held = a.view(session)
        await attach_until(server, session, "snapshot", epoch=held.epoch, seq=2)
        before = await agree(server, a, session)
        server.kill()
        await a.closed()
    await server.restart()
    assert await server.snapshot(session) == before
    async with server.client(views=a.views) as b:
        attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=held.seq)
        assert (attached["recovery"], attached["epoch"], attached["seq"]) == ("live", held.epoch, held.seq)
        assert (await b.run(session, "next"))["status"] == "completed"


async def test_a_live_cursor_below_the_floor_gets_a_snapshot_too(server: Server) -> None:
    """A client that does not read while 24 MiB pass: it misses them, and loses nothing."""
    session = fresh()
    async with server.client() as a, server.client(slow=True) as slow:
        await a.run(session)
        await slow.ok("attach", session_id=session, role="observer")
        await slow.until("snapshot", session_id=session)
        read = len(slow.frames)
        ack = await a.prompt(session, spec("flood", events=800, bytes=30_000))
        await a.over(ack, timeout=60)
        last = (await agree(server, a, session))["seq"]
        await slow.caught_up(session, last, timeout=60)
        later = slow.frames[read:]
        recovered = [f for f in later if f["type"] in ("attached", "snapshot")]
        assert recovered, "below the floor there is no replay"
        kinds = [f["type"] for f in recovered]
        assert kinds == ["attached", "snapshot"] * (len(kinds) // 2)
        assert all(f["recovery"] == "snapshot" for f in recovered if f["type"] == "attached")
        assert not slow.view(session).gaps
        await agree(server, slow, session)
        assert sum(is_event(f) for f in later) < last
