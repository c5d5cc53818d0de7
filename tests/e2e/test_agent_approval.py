"""The product's own agent asks through the real server: a second tab, a lost connection, kill -9, a late answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import Client, Server, agree, check_log, fresh, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame


@pytest.fixture
def receipts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "receipts"
    path.touch()
    monkeypatch.setenv("RECEIPTS", str(path))
    return path


@pytest.fixture
def cashier(launch: Launch, receipts: Path) -> Server:
    return launch("cashier:payer")


async def asked(client: Client, session: str, wish: str = "pay 5") -> Frame:
    await client.prompt(session, wish)
    return await client.until("approval-request", session_id=session)


async def test_two_tabs_see_the_question_one_answers_the_other_learns_it(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as a, cashier.client() as b:
        request = await asked(a, session)
        assert (request["tool"], request["input"]) == ("pay", {"amount": 5})
        assert 0 < request["expires_at"] - request["time"] <= 601_000
        await b.ok("attach", session_id=session)
        waiting = await b.until("snapshot", session_id=session)
        assert waiting["status"] == "waiting"
        assert waiting["pending"][0]["expires_at"] == request["expires_at"]
        answer = {"session_id": session, "request_id": request["request_id"]}
        await b.ok("respond", decision="allow", value={"note": "go"}, **answer)
        await a.fails("request_not_found", "respond", decision="deny", **answer)
        for tab in (a, b):
            resolved = await tab.until("approval-resolved", session_id=session)
            assert resolved["decision"] == "allow"
            assert (await tab.until("run-finish", session_id=session))["status"] == "completed"
        snapshot = await agree(cashier, a, session)
        assert snapshot["messages"][-1]["parts"][0]["output"] == {"paid": 5, "answer": {"note": "go"}}
        assert types(a.events(session)).count("approval-resolved") == 1
        check_log(await cashier.log(session))
    assert receipts.read_text() == f"{session} 5\n"


async def test_a_question_survives_its_readers_connection(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as c:
        request = await asked(c, session)
        view = c.view(session)
        await c.cut()
    async with cashier.client() as again:
        again.views[session] = view
        attached = await again.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        assert (attached["status"], attached["recovery"]) == ("waiting", "live")
        await again.ok("respond", session_id=session, request_id=request["request_id"], decision="allow")
        assert (await again.until("run-finish", session_id=session))["status"] == "completed"
        await agree(cashier, again, session)
    assert receipts.read_text() == f"{session} 5\n"


async def test_an_answer_sent_again_after_a_lost_reply_is_acked_again(cashier: Server, receipts: Path) -> None:
    """By its id, on another connection, also once the run is over; another's answer is still too late."""
    session, same = fresh(), fresh("r")
    async with cashier.client() as c:
        request = await asked(c, session)
        answer = {"session_id": session, "request_id": request["request_id"], "decision": "allow"}
        await c.ok("attach", session_id=session)
        assert "duplicate" not in await c.ok("respond", id=same, **answer)
        view = c.view(session)
        await c.cut()
    async with cashier.client() as again:
        again.views[session] = view
        ack = await again.ok("respond", id=same, **answer)
        assert (ack["command"], ack["session_id"], ack["duplicate"]) == ("respond", session, True)
        await again.barrier()
        assert not any(frame["type"] == "attached" for frame in again.frames), "an answer attaches nobody"
        await again.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        await again.idle(session)
        assert (await again.ok("respond", id=same, **answer))["duplicate"] is True
        await again.fails("id_reuse", "respond", id=same, **{**answer, "decision": "deny"})
        await again.fails("request_not_found", "respond", **answer)
        await agree(cashier, again, session)
    events = await cashier.log(session)
    assert [event["type"] for event in events].count("approval-resolved") == 1
    assert receipts.read_text() == f"{session} 5\n"


async def test_an_edited_input_runs_and_the_transcript_has_both(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as c:
        request = await asked(c, session)
        value = {"input": {"amount": 3}}
        await c.ok("respond", session_id=session, request_id=request["request_id"], decision="allow", value=value)
        await c.until("run-finish", session_id=session, status="completed")
        parts = (await agree(cashier, c, session))["messages"][-1]["parts"]
    tool, edited = (next(part for part in parts if part["type"] == kind) for kind in ("tool", "custom"))
    assert (tool["input"], tool["output"]["paid"]) == ({"amount": 5}, 3)
    assert edited["name"] == "tool-input-edited"
    assert edited["data"] == {"request_id": request["request_id"], "input": {"amount": 3}}
    assert receipts.read_text() == f"{session} 3\n"


async def test_a_denial_tells_the_model_why(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as c:
        request = await asked(c, session)
        answer = {"session_id": session, "request_id": request["request_id"]}
        await c.ok("respond", decision="deny", value="not today", **answer)
        await c.until("run-finish", session_id=session, status="completed")
        message = (await agree(cashier, c, session))["messages"][-1]
    assert text_of(message) == "The person did not allow this call: not today"
    assert (message["parts"][0]["outcome"], message["parts"][0]["interrupted"]) == ("not_run", False)
    assert receipts.read_text() == ""


async def test_a_question_that_nobody_answers_expires_for_everybody(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as c:
        request = await asked(c, session, "hurry 5")
        resolved = await c.until("approval-resolved", session_id=session)
        assert resolved["decision"] == "expired"
        assert resolved["time"] >= request["expires_at"]
        late = {"session_id": session, "request_id": request["request_id"], "decision": "allow"}
        await c.fails("request_not_found", "respond", **late)
        assert (await c.until("run-finish", session_id=session))["status"] == "completed"
        snapshot = await agree(cashier, c, session)
        assert snapshot["pending"] == []
        assert text_of(snapshot["messages"][-1]) == "Nobody allowed this call in time"
        check_log(c.events(session))
    assert receipts.read_text() == ""


async def test_a_tool_switched_off_is_not_run_and_nobody_is_asked(cashier: Server, receipts: Path) -> None:
    session = fresh()
    async with cashier.client() as c:
        assert (await c.run(session, "steal 5"))["status"] == "completed"
        assert "approval-request" not in types(c.events(session))
        assert text_of((await agree(cashier, c, session))["messages"][-1]) == "The tool steal is switched off"
    assert receipts.read_text() == ""


async def test_kill_9_while_a_question_is_open_withdraws_it(cashier: Server, receipts: Path) -> None:
    """Nobody may allow a call of a process that is gone; the tool never ran, and the turn can be resumed."""
    session = fresh()
    async with cashier.client() as c:
        request = await asked(c, session)
        cashier.kill()
        await c.closed()
        view = c.view(session)
    await cashier.restart()
    async with cashier.client() as again:
        again.views[session] = view
        await again.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        resolved = await again.until("approval-resolved", session_id=session)
        assert (resolved["request_id"], resolved["decision"]) == (request["request_id"], "withdrawn")
        error = await again.until("tool-error", session_id=session)
        assert error["outcome"] == "not_run"
        assert (await again.until("run-finish", session_id=session))["status"] == "lost"
        late = {"session_id": session, "request_id": request["request_id"], "decision": "allow"}
        await again.fails("request_not_found", "respond", **late)
        assert (await agree(cashier, again, session))["resumable"] is True
        ack = await again.ok("resume", session_id=session)
        assert (await again.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert text_of((await agree(cashier, again, session))["messages"][-1]) == "Shall I ask again?"
    check_log(await cashier.log(session))
    assert receipts.read_text() == ""


async def test_the_default_agents_shell_is_off_unless_switched_on_and_asks(launch: Launch, tmp_path: Path) -> None:
    """`gateway serve --shell`, offline: `$ command` asks for it, an answer runs it."""
    store = f"sqlite:///{tmp_path / 'g.db'}"
    server = launch("", args=["--shell", "--store", store], scripted_pace=0)
    session = fresh()
    async with server.client() as c:
        request = await asked(c, session, "$ echo $((6 * 7))")
        assert request["input"] == {"command": "echo $((6 * 7))"}
        await c.ok("respond", session_id=session, request_id=request["request_id"], decision="allow")
        assert (await c.until("tool-result", session_id=session))["output"]["stdout"] == "42\n"
        await c.until("run-finish", session_id=session, status="completed")
    server.close()
    server = launch("", args=["--store", store], scripted_pace=0)
    async with server.client() as c:
        await c.run(session, "$ echo hi")
        assert "approval-request" not in types(c.events(session))
