"""The live session list."""

from __future__ import annotations

from tests.e2e.support import Server, fresh


async def test_a_watcher_hears_of_every_session(server: Server) -> None:
    session = fresh()
    async with server.client() as watcher, server.client() as c:
        ack = await watcher.ok("watch", on=True)
        assert (ack["type"], ack["command"]) == ("ack", "watch")
        await c.holding(session)
        running = await watcher.until("session-changed", session_id=session, status="running")
        assert type(running["updated_at"]) is int
        assert "title" in running
        assert not running.get("deleted")
        await c.ok("abort", session_id=session)
        idle = await watcher.until("session-changed", session_id=session, status="idle")
        assert idle["updated_at"] >= running["updated_at"]
        assert not [f for f in watcher.frames if f["type"] in ("attached", "run-start")]


async def test_a_new_title_is_told(server: Server) -> None:
    session = fresh()
    async with server.client() as watcher, server.client() as c:
        await c.run(session)
        await watcher.ok("watch", on=True)
        await server.http("PATCH", f"/api/sessions/{session}", {"title": "Named"})
        await watcher.until("session-changed", session_id=session, title="Named")


async def test_a_deletion_is_told(server: Server) -> None:
    session = fresh()
    async with server.client() as watcher, server.client() as c:
        await watcher.ok("watch", on=True)
        await c.run(session)
        await server.http("DELETE", f"/api/sessions/{session}")
        await watcher.until("session-changed", session_id=session, deleted=True)


async def test_who_stops_watching_hears_no_more(server: Server) -> None:
    session, second = fresh(), fresh()
    async with server.client() as watcher, server.client() as other:
        await other.ok("watch", on=True)
        await watcher.ok("watch", on=True)
        await watcher.run(session)
        await watcher.ok("watch", on=False)
        seen = len(watcher.frames)
        await server.http("POST", f"/api/sessions/{second}/prompt", {"text": "Hi"})
        await other.until("session-changed", session_id=second, status="idle")
        await watcher.barrier()
        assert not [f for f in watcher.frames[seen:] if f["type"] == "session-changed"]


async def test_who_never_watched_hears_nothing(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        await c.barrier()
        assert not [f for f in c.frames if f["type"] == "session-changed"]
