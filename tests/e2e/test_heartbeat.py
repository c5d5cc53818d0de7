"""The heartbeat: the server always says something, and notices who has gone."""

from __future__ import annotations

import time

from tests.e2e.support import Server, fresh

SETTINGS = {"heartbeat_s": 0.5}


async def test_welcome_says_the_heartbeat(server: Server) -> None:
    async with server.client() as c:
        assert c.welcome["heartbeat_s"] == 0.5


async def test_an_idle_connection_hears_a_pong_without_an_id_every_heartbeat(server: Server) -> None:
    async with server.client() as c:
        last = time.monotonic()
        for _ in range(6):
            pong = await c.until("pong", timeout=1.0)
            assert pong.get("id") is None
            assert time.monotonic() - last < 1.0, "silence never reaches twice the heartbeat"
            last = time.monotonic()


async def test_a_client_that_never_pinged_is_not_cut_off(server: Server) -> None:
    async with server.client() as c:
        for _ in range(8):
            await c.until("pong", timeout=1.0)
        await c.barrier()


async def test_a_client_that_had_pinged_and_falls_silent_is_closed_with_4103(server: Server) -> None:
    async with server.client() as c:
        await c.ok("ping")
        began = time.monotonic()
        assert await c.closed() == 4103
        assert 1.2 < time.monotonic() - began < 4


async def test_a_client_that_goes_on_pinging_stays(server: Server) -> None:
    async with server.client() as c:
        await c.ok("ping")
        for _ in range(8):
            while (await c.until("pong", timeout=1.0)).get("id") is not None:
                pass
            await c.ok("ping")


async def test_a_lost_heartbeat_is_no_close_on_purpose(server: Server) -> None:
    session = fresh()
    async with server.client() as c, server.client() as d:
        await c.holding(session, fields={"grace_s": 30})
        await c.ok("ping")
        assert await c.closed() == 4103
        attached = await d.ok("attach", session_id=session)
        assert attached["status"] == "running", "within its grace the run goes on"
        await d.ok("abort", session_id=session)
        await d.until("run-finish", session_id=session)
