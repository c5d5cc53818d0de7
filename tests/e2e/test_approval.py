"""Approvals: a person is asked, the first answer wins, an abort withdraws the question."""

from __future__ import annotations

import pytest

from tests.e2e.support import Server, after_abort, agree, check_log, fresh, types

ENGINE = "approver"


@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_the_first_answer_wins_and_a_later_one_is_request_not_found(server: Server, decision: str) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.prompt(session)
        asked = await a.until("approval-request", session_id=session)
        assert (asked["tool"], asked["input"]) == ("delete", {"path": "x"})
        attached = await b.ok("attach", session_id=session)
        assert attached["status"] == "waiting"
        waiting = await b.until("snapshot", session_id=session)
        assert (waiting["status"], waiting["resumable"]) == ("waiting", False)
        assert [p["request_id"] for p in waiting["pending"]] == [asked["request_id"]]
        answer = {"session_id": session, "request_id": asked["request_id"]}
        ack = await b.ok("respond", decision=decision, **answer)
        assert (ack["type"], ack["command"]) == ("ack", "respond")
        await a.fails("request_not_found", "respond", decision="deny", **answer)
        resolved = await a.until("approval-resolved", session_id=session)
        assert (resolved["request_id"], resolved["decision"]) == (asked["request_id"], decision)
        assert (await a.until("run-finish", session_id=session))["status"] == "completed"
        assert types(a.events(session)).count("approval-resolved") == 1
        snapshot = await agree(server, a, session)
        tool = snapshot["messages"][-1]["parts"][0]
        assert tool["approval"] == {"request_id": asked["request_id"], "decision": decision}
        assert tool["state"] == ("output-available" if decision == "allow" else "output-error")
        check_log(a.events(session))


async def test_an_unknown_request_is_request_not_found(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.prompt(session)
        await c.until("approval-request", session_id=session)
        await c.fails("request_not_found", "respond", session_id=session, request_id="req_none", decision="allow")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)


async def test_an_abort_withdraws_it_and_a_late_answer_is_refused(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session)
        asked = await c.until("approval-request", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session, status="aborted")
        closing = after_abort(c.events(session), ack["run_id"])
        assert [t for t in types(closing) if t != "step-finish"] == [
            "approval-resolved",
            "tool-error",
            "message-finish",
            "run-finish",
        ]
        assert (closing[0]["request_id"], closing[0]["decision"]) == (asked["request_id"], "withdrawn")
        assert closing[1]["outcome"] == "not_run"
        late = {"session_id": session, "request_id": asked["request_id"], "decision": "allow"}
        await c.fails("request_not_found", "respond", **late)
        assert (await agree(server, c, session))["pending"] == []
        check_log(c.events(session))
