"""Edit and resend: `replaces` takes a message and all after it away first."""

from __future__ import annotations

from tests.e2e.support import Server, agree, check_log, fresh, of_run, text_of, types


async def test_the_message_and_all_after_it_go(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "one")
        await c.run(session, "two")
        await c.run(session, "three")
        second = (await agree(server, c, session))["messages"][2]
        assert text_of(second) == "two"
        ack = await c.prompt(session, "two, better", replaces=second["id"])
        await c.until("run-finish", run_id=ack["run_id"])
        own = of_run(c.events(session), ack["run_id"])
        assert types(own)[:4] == ["messages-removed", "message-added", "run-start", "message-start"]
        assert own[0]["from_message_id"] == second["id"]
        snapshot = await agree(server, c, session)
        assert [text_of(m) for m in snapshot["messages"] if m["role"] == "user"] == ["one", "two, better"]
        assert len(snapshot["messages"]) == 4
        check_log(c.events(session))


async def test_the_first_message_can_be_replaced(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "one")
        first = (await agree(server, c, session))["messages"][0]
        await c.run(session, "one, better", replaces=first["id"])
        snapshot = await agree(server, c, session)
        assert [text_of(m) for m in snapshot["messages"]] == ["one, better", "Hello, world"]


async def test_a_second_tab_follows_the_edit(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session, "one")
        await b.ok("attach", session_id=session)
        first = (await agree(server, a, session))["messages"][0]
        ack = await a.prompt(session, "better", replaces=first["id"])
        await b.until("run-finish", run_id=ack["run_id"])
        await agree(server, b, session)


async def test_an_unknown_message_is_message_not_found(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "one")
        head = c.view(session).seq
        await c.fails("message_not_found", "prompt", session_id=session, text="x", replaces="msg_nowhere")
        await c.barrier()
        assert c.view(session).seq == head


async def test_a_busy_session_is_session_busy(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "one")
        first = (await agree(server, c, session))["messages"][0]
        await c.holding(session)
        await c.fails("session_busy", "prompt", session_id=session, text="x", replaces=first["id"])
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        assert "messages-removed" not in types(c.events(session))


async def test_an_aborted_turn_can_be_replaced(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        first = (await agree(server, c, session))["messages"][0]
        assert (await c.run(session, "other", replaces=first["id"]))["status"] == "completed"
        snapshot = await agree(server, c, session)
        assert (len(snapshot["messages"]), snapshot["resumable"]) == (2, False)
        check_log(c.events(session))
