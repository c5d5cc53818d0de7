"""Sessions at rest leave the server's memory while clients are attached to them, and nobody can tell.

That one has left is read in the server's log; the rest is what the clients see.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import agree, check_log, fresh, spec, types
from tests.e2e.test_sharing import bearer, share

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.support import Client, Server

STORES = ("sqlite", "postgresql")
SETTINGS = {"evict_s": 0.05}
ARGS = ("--log-level", "debug")


def in_memory(server: Server, session: str) -> bool:
    log = server.stderr()
    return log.rfind(f"session {session} is in memory") >= log.rfind(f"session {session} has left memory")


async def rest(server: Server, client: Client, session: str) -> None:
    """Wait until a session has left memory; pings call nothing back."""
    async with asyncio.timeout(20):
        while in_memory(server, session):
            await client.barrier()
            await asyncio.sleep(0.05)


async def test_a_prompt_of_somebody_else_streams_to_those_who_wait(server: Server) -> None:
    session = fresh()
    async with server.client(batch=True) as ann, server.client() as eve, server.client() as bob:
        await ann.run(session)
        await eve.ok("attach", session_id=session, seq=0, role="observer")
        await eve.idle(session)
        for _ in range(2):
            await rest(server, ann, session)
            seen = len(ann.frames), len(eve.frames)
            ack = await bob.prompt(session, spec("words", words=40))
            for client, start in ((ann, seen[0]), (eve, seen[1])):
                await client.until("run-finish", run_id=ack["run_id"])
                kinds = {kind for kind in types(client.frames[start:]) if kind != "pong"}
                assert not kinds & {"attached", "snapshot", "detached", "error"}, kinds
                await agree(server, client, session)
                assert not client.view(session).dropped
            await bob.over(ack)
    check_log(await server.log(session))


async def test_coming_back_to_it_is_live_or_a_replay(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        await a.run(session)
        held = a.view(session)
        await rest(server, a, session)
        await a.cut()
    async with server.client(attach=[{"session_id": session, "epoch": held.epoch, "seq": held.seq}]) as b:
        assert (await b.until("attached"))["recovery"] == "live"
        await rest(server, b, session)
        async with server.client() as c:
            attached = await c.ok("attach", session_id=session, epoch=held.epoch, seq=3)
            assert (attached["recovery"], attached["epoch"]) == ("replay", held.epoch)
            await c.until("run-finish")
            assert [event["seq"] for event in c.events(session)] == list(range(4, held.seq + 1))
        await b.run(session)


async def test_a_detach_a_title_an_abort_and_a_look_are_answered_as_ever(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as watcher:
        await watcher.ok("watch", on=True)
        await a.run(session)
        await rest(server, a, session)
        assert (await a.ok("abort"))["runs"] == []
        assert (await a.ok("abort", session_id=session))["runs"] == []
        await rest(server, a, session)
        await server.http("PATCH", f"/api/sessions/{session}", {"title": "Named"})
        await watcher.until("session-changed", session_id=session, title="Named")
        await rest(server, a, session)
        assert len((await server.snapshot(session))["messages"]) == 2
        assert len((await a.ok("history", session_id=session))["messages"]) == 2
        await rest(server, a, session)
        await a.ok("detach", session_id=session)
        await a.fails("not_attached", "detach", session_id=session)
        assert not in_memory(server, session), "a detach needs no session"


async def test_a_deletion_is_told_and_the_name_is_free(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        await rest(server, a, session)
        assert (await server.http("DELETE", f"/api/sessions/{session}")).status in (200, 204)
        assert (await a.until("detached", session_id=session))["reason"] == "deleted"
        a.frames.clear()
        await b.run(session)
        await a.barrier()
        assert types(a.frames) == ["pong"]


async def test_who_waits_holds_the_run_of_another_and_who_has_gone_does_not(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        await a.run(session)
        await rest(server, a, session)
        async with server.client() as b:
            ack = await b.holding(session)
        await a.until("run-start", run_id=ack["run_id"])
        assert (await server.snapshot(session))["status"] == "running"
        await a.ok("abort", session_id=session)
        await a.over(ack)
        await rest(server, a, session)
    async with server.client() as watcher:
        async with server.client() as b:
            ack = await b.holding(session)
            await watcher.ok("attach", session_id=session, role="observer")
        finish = await watcher.until("run-finish", run_id=ack["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_many_at_once(server: Server) -> None:
    sessions = [fresh() for _ in range(60)]
    async with server.client(batch=True) as a, server.client(batch=True) as b:
        for session in sessions:
            await a.run(session)
        for session in sessions:
            await rest(server, a, session)
        acks = [await b.prompt(session, spec("words", words=5)) for session in sessions]
        for ack in acks:
            await a.over(ack)
            await b.over(ack)
        for session in sessions:
            assert not a.view(session).gaps
            await agree(server, a, session)


@pytest.mark.parametrize("role", ["observer", "owner"])
async def test_a_share_that_is_taken_back_ends_what_waits(launch: Launch, role: str) -> None:
    server = launch(args=("--token", "alice,bob,carol", *ARGS), evict_s=0.05)
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        assert await share(server, session, "bob", role) == 200
        await bob.ok("attach", session_id=session)
        await rest(server, alice, session)
        assert await share(server, session, "bob", None) in (200, 204)
        assert (await bob.until("detached", session_id=session))["reason"] == "forbidden"
        await rest(server, alice, session)
        bob.frames.clear()
        await alice.run(session)
        await agree(server, alice, session, **bearer("alice"))
        await bob.barrier()
        assert types(bob.frames) == ["pong"]


async def test_a_drain_says_goodbye_to_those_who_wait(launch: Launch) -> None:
    server = launch(args=ARGS, evict_s=0.05)
    session = fresh()
    async with server.client() as a:
        await a.run(session)
        await rest(server, a, session)
        server.terminate()
        await a.until("goaway")
        assert await a.closed() == 4100
    assert await server.exited() == 0
