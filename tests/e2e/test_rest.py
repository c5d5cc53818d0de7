"""HTTP beside the socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support import ABORT_ERROR, Server, agree, check_log, fresh, spec, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame


def listed(body: Any) -> list[Frame]:
    rows: list[Frame] = body if isinstance(body, list) else body["sessions"]
    return rows


async def all_sessions(server: Server, limit: int) -> list[Frame]:
    rows: list[Frame] = []
    while True:
        before = f"&before={rows[-1]['session_id']}" if rows else ""
        answer = await server.http("GET", f"/api/sessions?limit={limit}{before}")
        assert answer.status == 200, answer
        page = listed(answer.body)
        assert len(page) <= limit
        if not page:
            return rows
        rows += page


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_health_and_readiness_answer_200_with_json(server: Server, path: str) -> None:
    answer = await server.http("GET", path)
    assert answer.status == 200
    assert "json" in answer.headers["content-type"]
    assert isinstance(answer.body, dict)


async def test_the_list_is_newest_first_and_pages(launch: Launch) -> None:
    server = launch()
    sessions = [fresh() for _ in range(5)]
    async with server.client() as c:
        for session in sessions:
            await c.run(session)
    rows = await all_sessions(server, 2)
    assert [r["session_id"] for r in rows] == sessions[::-1]
    for row in rows:
        assert {"session_id", "title", "status", "created_at", "updated_at", "message_count"} <= set(row)
        assert (row["status"], row["message_count"]) == ("idle", 2)
        assert type(row["created_at"]) is int
        assert row["created_at"] <= row["updated_at"]
    assert listed((await server.http("GET", "/api/sessions")).body) == rows


async def test_a_snapshot_is_the_folds_state(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("tools"))
        snapshot = await agree(server, c, session)
        assert snapshot["session_id"] == session
        assert (snapshot["has_more"], snapshot["resumable"]) == (False, False)


async def test_a_snapshot_in_mid_run_shows_the_open_part(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.holding(session)
        snapshot = await agree(server, c, session)
        assert (snapshot["status"], snapshot["run_id"]) == ("running", ack["run_id"])
        part = snapshot["messages"][-1]["parts"][0]
        assert (part["text"], part["state"]) == ("holding", "streaming")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)


async def test_a_title_can_be_set(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
    answer = await server.http("PATCH", f"/api/sessions/{session}", {"title": "My talk"})
    assert 200 <= answer.status < 300, answer
    row = next(
        r for r in listed((await server.http("GET", "/api/sessions?limit=200")).body) if r["session_id"] == session
    )
    assert row["title"] == "My talk"


async def test_delete_forgets_and_sends_detached(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        answer = await server.http("DELETE", f"/api/sessions/{session}")
        assert 200 <= answer.status < 300, answer
        assert (await c.until("detached", session_id=session))["reason"] == "deleted"
        gone = await server.http("GET", f"/api/sessions/{session}")
        assert (gone.status, gone.code) == (404, "session_not_found")
        await c.fails("session_not_found", "attach", session_id=session)
        assert session not in {r["session_id"] for r in listed((await server.http("GET", "/api/sessions")).body)}


async def test_delete_in_mid_run_aborts_and_detaches(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        answer = await server.http("DELETE", f"/api/sessions/{session}")
        assert 200 <= answer.status < 300, answer
        assert (await c.until("detached", session_id=session))["reason"] == "deleted"
        assert (await server.http("GET", f"/api/sessions/{session}")).status == 404
        await c.barrier()


async def test_a_prompt_is_accepted_with_the_ack(server: Server) -> None:
    session, same = fresh(), fresh("p")
    answer = await server.http("POST", f"/api/sessions/{session}/prompt", {"id": same, "text": "Hi"})
    assert answer.status == 202, answer
    assert (answer.body["command"], answer.body["session_id"]) == ("prompt", session)
    async with server.client() as c:
        await c.ok("attach", session_id=session, seq=0)
        await c.idle(session)
        log = c.events(session)
        assert log[-1]["run_id"] == answer.body["run_id"]
        check_log(log)
        snapshot = await agree(server, c, session)
        assert text_of(snapshot["messages"][-1]) == "Hello, world"
    again = await server.http("POST", f"/api/sessions/{session}/prompt", {"id": same, "text": "Hi"})
    assert again.body["run_id"] == answer.body["run_id"]
    assert again.body.get("duplicate") is True


async def test_an_abort_stops_the_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.holding(session)
        answer = await server.http("POST", f"/api/sessions/{session}/abort", {"reason": "by post"})
        assert 200 <= answer.status < 300, answer
        assert answer.body["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        finish = await c.until("run-finish", session_id=session)
        assert (finish["status"], finish["error"]) == ("aborted", ABORT_ERROR)
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert (asked["reason"], asked["detail"]) == ("user", "by post")


async def test_an_abort_of_an_idle_session_is_no_error(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
    answer = await server.http("POST", f"/api/sessions/{session}/abort", {})
    assert (200 <= answer.status < 300, answer.body["runs"]) == (True, [])


async def test_busy_is_an_error_with_its_code(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        answer = await server.http("POST", f"/api/sessions/{session}/prompt", {"text": "next"})
        assert (400 <= answer.status < 500, answer.code) == (True, "session_busy")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        assert types(c.events(session)).count("run-start") == 1


@pytest.mark.parametrize(
    ("method", "tail", "body"),
    [("GET", "", None), ("PATCH", "", {"title": "x"}), ("DELETE", "", None), ("POST", "/abort", {})],
)
async def test_an_unknown_session_is_404(server: Server, method: str, tail: str, body: Any) -> None:
    answer = await server.http(method, f"/api/sessions/{fresh()}{tail}", body)
    assert (answer.status, answer.code) == (404, "session_not_found")


async def test_an_unknown_path_is_404_in_json(server: Server) -> None:
    answer = await server.http("GET", "/api/nothing-here")
    assert answer.status == 404
    assert "json" in answer.headers["content-type"]


@pytest.mark.parametrize(("method", "path"), [("PUT", "/api/sessions/x"), ("DELETE", "/api/sessions")])
async def test_a_wrong_method_is_405_in_json(server: Server, method: str, path: str) -> None:
    answer = await server.http(method, path)
    assert answer.status == 405
    assert "json" in answer.headers["content-type"]


@pytest.mark.parametrize("body", [{}, {"text": 7}, {"text": "x", "on_busy": "perhaps"}])
async def test_a_wrong_body_is_422_invalid(server: Server, body: Any) -> None:
    answer = await server.http("POST", f"/api/sessions/{fresh()}/prompt", body)
    assert (answer.status, answer.code) == (422, "invalid")


@pytest.mark.parametrize("body", ["", "{", "[]", "7"])
async def test_a_body_that_is_no_json_object_is_an_error_with_a_code(server: Server, body: str) -> None:
    answer = await server.http("POST", f"/api/sessions/{fresh()}/prompt", body)
    assert 400 <= answer.status < 500
    assert answer.code in ("bad_frame", "invalid")


async def test_a_wrong_title_is_422_invalid(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
    answer = await server.http("PATCH", f"/api/sessions/{session}", {"title": 7})
    assert (answer.status, answer.code) == (422, "invalid")


async def test_a_bad_session_id_in_the_path_is_an_error(server: Server) -> None:
    answer = await server.http("POST", "/api/sessions/bad%20id/prompt", {"text": "Hi"})
    assert 400 <= answer.status < 500
    assert answer.code in ("invalid", "session_not_found")


async def test_a_wrong_query_is_422_invalid(server: Server) -> None:
    answer = await server.http("GET", "/api/sessions?limit=many")
    assert (answer.status, answer.code) == (422, "invalid")


async def test_a_socket_sees_what_rest_started(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        answer = await server.http("POST", f"/api/sessions/{session}/prompt", {"text": "from REST"})
        assert (await c.until("run-finish", run_id=answer.body["run_id"]))["status"] == "completed"
        await agree(server, c, session)


async def test_a_prompt_to_a_session_that_is_being_deleted_makes_a_new_one(launch: Launch) -> None:
    """The deletion waits for an engine that takes its whole grace to stop; the id is free after it."""
    server = launch(abort_grace=1)
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec("stubborn"))
        await c.until("text-delta", session_id=session)
        deleting = asyncio.create_task(server.http("DELETE", f"/api/sessions/{session}"))
        await c.until("abort-requested", session_id=session)
        ack = await c.prompt(session, "again")
        assert (await deleting).status == 204
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert len((await server.snapshot(session))["messages"]) == 2
