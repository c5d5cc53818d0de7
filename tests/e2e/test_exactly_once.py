"""Exactly once: the same command again never starts a second run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.support import Server, agree, check_log, fresh, spec, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch

STORES = ("sqlite", "postgresql")


async def test_the_same_prompt_again_is_a_duplicate_with_the_first_ids(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        first = await c.prompt(session, "once", id=same)
        again = await c.prompt(session, "once", id=same)
        assert again.get("duplicate") is True
        assert (again["run_id"], again["session_id"]) == (first["run_id"], session)
        await c.until("run-finish", run_id=first["run_id"])
        after = await c.prompt(session, "once", id=same)
        assert (after["run_id"], after.get("duplicate")) == (first["run_id"], True)
        await c.barrier()
        assert types(c.events(session)).count("run-start") == 1
        check_log(c.events(session))


async def test_the_same_prompt_after_a_reconnect_attaches_to_the_first_run(server: Server, gate: Path) -> None:
    session, same = fresh(), fresh("p")
    text = spec("hold", gate=str(gate))
    async with server.client() as a:
        first = await a.prompt(session, text, id=same)
        await a.until("text-delta", session_id=session)
        await a.cut()
    async with server.client() as b:
        again = await b.prompt(session, text, id=same)
        assert (again["run_id"], again.get("duplicate")) == (first["run_id"], True)
        attached = await b.until("attached", session_id=session)
        assert attached["role"] == "owner"
        gate.touch()
        assert (await b.until("run-finish", run_id=first["run_id"]))["status"] == "completed"
        snapshot = await agree(server, b, session)
        assert len(snapshot["messages"]) == 2


async def test_the_same_prompt_sent_at_once_on_many_connections_starts_one_run(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as a, server.client() as b, server.client() as c:
        for one in (a, b, c):
            await one.send({"type": "prompt", "id": same, "session_id": session, "text": "once"})
        acks = [await one.reply(same) for one in (a, b, c)]
        assert len({ack["run_id"] for ack in acks}) == 1
        assert sum(bool(ack.get("duplicate")) for ack in acks) == 2
        for one in (a, b, c):
            await one.idle(session)
            await agree(server, one, session)
    log = await server.log(session)
    check_log(log)
    assert types(log).count("run-start") == 1


async def test_without_a_session_id_the_same_prompt_finds_its_session(server: Server) -> None:
    same = fresh("p")
    async with server.client() as a:
        first = await a.prompt(None, "once", id=same)
        await a.until("run-finish", run_id=first["run_id"])
    async with server.client() as b:
        again = await b.prompt(None, "once", id=same)
        assert again.get("duplicate") is True
        assert (again["session_id"], again["run_id"]) == (first["session_id"], first["run_id"])


async def test_the_same_id_with_another_body_is_id_reuse(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        await c.run(session, "once", id=same)
        await c.fails("id_reuse", "prompt", session_id=session, text="twice", id=same)
        await c.fails("id_reuse", "prompt", session_id=fresh(), text="once", id=same)
        await c.barrier()
        assert types(c.events(session)).count("run-start") == 1


async def test_an_error_stores_nothing(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        await c.holding(session)
        await c.fails("session_busy", "prompt", session_id=session, text="next", id=same)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        ack = await c.prompt(session, "next", id=same)
        assert not ack.get("duplicate")
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"


async def test_an_error_leaves_the_id_free_for_another_body(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        await c.fails("invalid", "prompt", session_id=session, id=same)
        ack = await c.prompt(session, "now right", id=same)
        assert not ack.get("duplicate")
        await c.until("run-finish", run_id=ack["run_id"])


async def test_an_error_creates_no_session(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.fails("invalid", "prompt", session_id=session)
        await c.fails("session_not_found", "attach", session_id=session)


async def test_a_queued_prompt_again_is_a_duplicate_too(server: Server, gate: Path) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        await c.holding(session, gate=str(gate))
        first = await c.prompt(session, "next", id=same, on_busy="queue")
        again = await c.prompt(session, "next", id=same, on_busy="queue")
        assert (again["run_id"], again.get("duplicate")) == (first["run_id"], True)
        gate.touch()
        await c.until("run-finish", run_id=first["run_id"])
        assert types(c.events(session)).count("run-start") == 2
        check_log(c.events(session))


async def test_the_key_outlives_kill_9(launch: Launch) -> None:
    server = launch()
    done, live, anonymous = fresh(), fresh(), fresh("p")
    async with server.client() as c:
        first = await c.prompt(done, "once", id=(id_done := fresh("p")))
        await c.until("run-finish", run_id=first["run_id"])
        second = await c.prompt(live, spec("hold"), id=(id_live := fresh("p")))
        await c.until("text-delta", session_id=live)
        third = await c.prompt(None, "where?", id=anonymous)
        server.kill()
        await c.closed()
    await server.restart()
    async with server.client() as c:
        again = await c.prompt(done, "once", id=id_done)
        assert (again["run_id"], again.get("duplicate")) == (first["run_id"], True)
        again = await c.prompt(live, spec("hold"), id=id_live)
        assert (again["run_id"], again.get("duplicate")) == (second["run_id"], True)
        again = await c.prompt(None, "where?", id=anonymous)
        assert (again["session_id"], again["run_id"]) == (third["session_id"], third["run_id"])
        await c.fails("id_reuse", "prompt", session_id=done, text="other", id=id_done)
        await agree(server, c, live)
    for session in (done, live):
        log = await server.log(session)
        check_log(log)
        assert types(log).count("run-start") == 1


async def test_the_key_outlives_the_deletion_of_its_session(server: Server) -> None:
    session, same = fresh(), fresh("p")
    async with server.client() as c:
        await c.run(session, "once", id=same)
        assert (await server.http("DELETE", f"/api/sessions/{session}")).status in (200, 202, 204)
        reply = await c.call("prompt", session_id=session, text="other", id=same)
        assert reply.get("code") == "id_reuse"
        again = await c.call("prompt", session_id=session, text="once", id=same)
        assert again["type"] == "error" or again.get("duplicate") is True, "never a second run"
