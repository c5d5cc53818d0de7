"""Resume: the last turn goes on in a new assistant message."""

from __future__ import annotations

import json

from tests.e2e.support import Server, agree, check_log, fresh, of_run, spec, text_of, types

STORES = ("sqlite", "postgresql")


async def test_a_resume_after_an_abort_continues_with_a_new_assistant_message(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session, say="Once upon")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        before = await agree(server, c, session)
        assert before["resumable"] is True
        ack = await c.ok("resume", session_id=session)
        assert (ack["type"], ack["command"], ack["session_id"]) == ("ack", "resume", session)
        finish = await c.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "completed"
        own = of_run(c.events(session), ack["run_id"])
        assert types(own)[:2] == ["run-start", "message-start"]
        assert own[0]["mode"] == "resume"
        assert "message-added" not in types(own)
        after = await agree(server, c, session)
        assert after["messages"][:2] == before["messages"], "the aborted message stays as it was"
        assert [m["role"] for m in after["messages"]] == ["user", "assistant", "assistant"]
        assert after["resumable"] is False
        check_log(c.events(session))


async def test_the_engine_gets_mode_resume_and_the_whole_history(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "first")
        await c.holding(session, say="partial text")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session, status="aborted")
        ack = await c.ok("resume", session_id=session)
        await c.until("run-finish", run_id=ack["run_id"])
        report = json.loads(text_of((await agree(server, c, session))["messages"][-1]))
        assert report["mode"] == "resume"
        assert [m["role"] for m in report["messages"]] == ["user", "assistant", "user", "assistant"]
        assert report["messages"][0]["text"] == "first"
        assert report["messages"][3]["text"] == "partial text"


async def test_a_completed_turn_is_not_resumable(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        assert (await server.snapshot(session))["resumable"] is False
        await c.fails("not_resumable", "resume", session_id=session)


async def test_a_failed_turn_is_resumable(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session, spec("raising")))["status"] == "failed"
        ack = await c.ok("resume", session_id=session)
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        await agree(server, c, session)


async def test_a_busy_session_is_session_busy(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        snapshot = await server.snapshot(session)
        assert (snapshot["status"], snapshot["resumable"]) == ("running", False)
        await c.fails("session_busy", "resume", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)


async def test_an_unknown_session_is_session_not_found(server: Server) -> None:
    async with server.client() as c:
        await c.fails("session_not_found", "resume", session_id=fresh())


async def test_a_resume_attaches_like_a_prompt(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        await a.holding(session)
        await a.ok("abort", session_id=session)
        await a.until("run-finish", session_id=session)
        head = a.view(session).seq
        async with server.client() as b:
            ack = await b.ok("resume", session_id=session)
            attached = await b.until("attached", session_id=session)
            assert attached.get("id") is None
            assert (attached["recovery"], attached["role"], attached["seq"]) == ("snapshot", "owner", head)
            await b.until("run-finish", run_id=ack["run_id"])
            await agree(server, b, session)


async def test_a_resumed_run_can_be_aborted_and_resumed_again(server: Server) -> None:
    session = fresh()
    again = {"do": "hold", "say": "more"}
    async with server.client() as c:
        await c.holding(session, resume=again)
        for _ in range(3):
            await c.ok("abort", session_id=session)
            await c.until("run-finish", session_id=session, status="aborted")
            ack = await c.ok("resume", session_id=session)
            await c.until("text-delta", run_id=ack["run_id"])
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session, status="aborted")
        snapshot = await agree(server, c, session)
        assert [text_of(m) for m in snapshot["messages"][1:]] == ["holding", "more", "more", "more"]
        check_log(c.events(session))


async def test_the_same_resume_again_starts_no_second_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        first = await c.ok("resume", session_id=session, id=(same := fresh("r")))
        await c.until("run-finish", run_id=first["run_id"])
        again = await c.ok("resume", session_id=session, id=same)
        assert (again["run_id"], again.get("duplicate")) == (first["run_id"], True)
        check_log(c.events(session))
