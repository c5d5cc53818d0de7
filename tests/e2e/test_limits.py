"""Limits: commands per second, sessions per connection, and a client that does not read."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed

from tests.e2e.support import Server, agree, check_log, fresh, spec

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

SETTINGS = {"commands_per_s": 20, "max_sessions": 4, "max_frame_bytes": 70_000}


async def test_welcome_says_the_limits(server: Server) -> None:
    async with server.client() as c:
        limits = c.welcome["limits"]
        assert (limits["commands_per_s"], limits["max_sessions"], limits["max_frame_bytes"]) == (20, 4, 70_000)


async def test_a_burst_of_commands_is_rate_limited_and_the_connection_stays(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        ids = [fresh("h") for _ in range(60)]
        for one in ids:
            await c.send({"type": "history", "id": one, "session_id": session})
        replies = [await c.reply(one) for one in ids]
        limited = [r for r in replies if r["type"] == "error"]
        assert limited
        assert {r["code"] for r in limited} == {"rate_limited"}
        assert all(r["retryable"] is True for r in limited)
        assert len(limited) < len(replies)
    async with server.client() as c:
        await c.ok("history", session_id=session)


async def test_aborts_are_never_rate_limited(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.holding(session)
        ids = [fresh("h") for _ in range(60)]
        for one in ids:
            await c.send({"type": "history", "id": one, "session_id": session})
        done = await c.ok("abort", session_id=session)
        assert [r["run_id"] for r in done["runs"]] == [ack["run_id"]]
        await c.until("run-finish", session_id=session, status="aborted")
        aborts = [fresh("a") for _ in range(60)]
        for one in aborts:
            await c.send({"type": "abort", "id": one, "session_id": session})
        assert {(await c.reply(one))["type"] for one in aborts} == {"ack"}


async def test_sessions_per_connection_are_bounded(server: Server) -> None:
    sessions = [fresh() for _ in range(5)]
    async with server.client() as maker:
        for session in sessions[:4]:
            await maker.run(session)
    async with server.client() as maker:
        await maker.run(sessions[4])
    async with server.client() as c:
        for session in sessions[:4]:
            await c.ok("attach", session_id=session)
        assert (await c.call("attach", session_id=sessions[4]))["type"] == "error"
        await c.ok("attach", session_id=sessions[0], seq=0)
        await c.ok("detach", session_id=sessions[0])
        await c.ok("attach", session_id=sessions[4])


async def test_max_frame_bytes_holds(server: Server) -> None:
    async with server.client() as c:
        await c.send({"type": "prompt", "text": "x" * 70_000})
        assert (await c.until("error"))["code"] == "too_large"
        await c.barrier()


async def test_a_client_that_does_not_read_slows_nobody_and_is_cut_off(launch: Launch) -> None:
    """Invariant 10."""
    server = launch(send_timeout=1)
    session = fresh()
    async with server.client() as a, server.client(slow=True) as slow:
        ack = await a.prompt(session, spec("flood", events=800, bytes=30_000))
        await slow.send({"type": "attach", "session_id": session, "role": "observer", "seq": 0})
        finish = await a.until("run-finish", run_id=ack["run_id"], timeout=60)
        assert finish["status"] == "completed"
        await agree(server, a, session)
        began = time.monotonic()
        while time.monotonic() - began < 3:  # well past send_timeout, and nobody else notices
            sent = time.monotonic()
            await a.barrier()
            assert time.monotonic() - sent < 1
        code = await slow.closed(timeout=60)
        assert code in (4102, 1006)
        assert (await a.run(session, "next"))["status"] == "completed"
        check_log(a.events(session))


async def test_a_flood_of_unread_replies_ends_that_connection_only(launch: Launch) -> None:
    """At most 256 KiB of waiting replies, else 4102; nothing else is harmed."""
    server = launch(send_timeout=60)
    session = fresh()
    async with server.client() as a, server.client(slow=True) as slow:
        await a.run(session, spec("big", bytes=100_000))
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with asyncio.timeout(20):
                for _ in range(6000):
                    await slow.send({"type": "history", "session_id": session})
        await a.barrier()
        code = await slow.closed(timeout=60)
        assert code in (4102, 1006)
        assert (await a.run(session, "next"))["status"] == "completed"
