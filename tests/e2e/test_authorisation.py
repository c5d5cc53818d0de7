"""Every command and every route, tried on somebody else's session: it is not there. New ones have to be listed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest
from starlette.routing import Route, WebSocketRoute

from gateway.app import Gateway
from protocol.commands import COMMAND_TYPES, Command
from tests.e2e.engines import director
from tests.e2e.support import Client, Server, fresh, text_of

if TYPE_CHECKING:
    from pathlib import Path

ARGS = ("--token", "alice,mallory")
ALICE = {"authorization": "Bearer alice"}
MALLORY = {"authorization": "Bearer mallory"}

NOT_FOUND = "session_not_found"

COMMANDS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "hello": [({"attach": [{"session_id": "S"}]}, "own connection: see the test below")],
    "prompt": [({"session_id": "S", "text": "mine"}, "own session: see the test below")],
    "resume": [({"session_id": "S"}, NOT_FOUND)],
    "abort": [
        ({"session_id": "S"}, NOT_FOUND),
        ({"session_id": "S", "run_id": "R"}, NOT_FOUND),
        ({"run_id": "R"}, "nothing"),
        ({"command_id": "C"}, "latched"),
        ({}, "nothing"),
    ],
    "attach": [
        ({"session_id": "S"}, NOT_FOUND),
        ({"session_id": "S", "role": "observer"}, NOT_FOUND),
        ({"session_id": "S", "seq": 0}, NOT_FOUND),
        ({"session_id": "S", "epoch": "E", "seq": 1}, NOT_FOUND),
    ],
    "detach": [({"session_id": "S"}, "not_attached"), ({"session_id": "S", "run": "abort"}, "not_attached")],
    "respond": [({"session_id": "S", "request_id": "Q", "decision": "allow"}, NOT_FOUND)],
    "history": [({"session_id": "S"}, NOT_FOUND), ({"session_id": "S", "before": "M"}, NOT_FOUND)],
    "watch": [({"on": True}, "own list: see the test below")],
    "ping": [({}, "of no session")],
}
"""For each command the ways to name a session, and what somebody else's answers. Capitals stand for what it has."""

OPEN = {"/healthz", "/readyz", "/ws", "/ai", "/"}
"""Routes that say nothing of any session and need no token."""

ROUTES: dict[tuple[str, str], tuple[Any, int]] = {
    ("GET", "/api/sessions"): (None, 200),
    ("GET", "/api/shared"): (None, 200),
    ("GET", "/api/me"): (None, 200),
    ("GET", "/api/sessions/{session_id}"): (None, 404),
    ("PATCH", "/api/sessions/{session_id}"): ({"title": "mine"}, 404),
    ("DELETE", "/api/sessions/{session_id}"): (None, 404),
    ("POST", "/api/sessions/{session_id}/prompt"): ({"text": "mine"}, 202),
    ("POST", "/api/sessions/{session_id}/abort"): ({}, 404),
    ("GET", "/api/sessions/{session_id}/shares"): (None, 404),
    ("PUT", "/api/sessions/{session_id}/shares/{principal:path}"): ({"role": "owner"}, 404),
    ("DELETE", "/api/sessions/{session_id}/shares/{principal:path}"): (None, 404),
    ("GET", "/ai/{session_id}"): (None, 404),
}
"""For each route a body and what it answers to somebody else: 404, or what is the caller's own."""


def test_every_command_has_a_row() -> None:
    assert set(COMMANDS) == set(COMMAND_TYPES) == {one.model_fields["type"].default for one in get_args(Command)}


def test_every_route_has_a_row_and_no_other_is_open(tmp_path: Path) -> None:
    application = Gateway(director, store=f"sqlite:///{tmp_path / 'g.db'}").asgi
    found = set()
    for route in application.routes:
        if isinstance(route, Route):
            methods = (route.methods or set()) - {"HEAD"}
            found |= {(method, route.path) for method in methods if route.path not in OPEN}
        else:
            assert isinstance(route, WebSocketRoute) or route.path == "", f"what is {route}?"  # type: ignore[attr-defined]
    assert found == set(ROUTES)


async def hold(c: Client) -> tuple[str, dict[str, str]]:
    """A session with a live run; what it has, by the capitals above."""
    session = fresh()
    ack = await c.holding(session)
    view = c.view(session)
    message = view.fold.messages[0]["id"]
    names = {"S": session, "R": ack["run_id"], "C": ack["id"], "E": str(view.epoch), "M": message, "Q": "call_1"}
    return session, names


def filled(fields: Any, names: dict[str, str]) -> Any:
    if isinstance(fields, dict):
        return {key: filled(value, names) for key, value in fields.items()}
    if isinstance(fields, list):
        return [filled(value, names) for value in fields]
    return names.get(fields, fields) if isinstance(fields, str) else fields


CASES = [
    (kind, fields, answer)
    for kind, rows in COMMANDS.items()
    for fields, answer in rows
    if answer in (NOT_FOUND, "not_attached", "nothing", "latched")
]


@pytest.mark.parametrize(("kind", "fields", "answer"), CASES)
async def test_no_command_reaches_somebody_elses_session(
    server: Server, kind: str, fields: dict[str, Any], answer: str
) -> None:
    async with server.client(token="alice") as alice, server.client(token="mallory") as mallory:
        session, names = await hold(alice)
        reply = await mallory.call(kind, **filled(fields, names))
        if answer == "nothing":
            assert reply["runs"] == []
        elif answer == "latched":
            assert [(run["state"], run["run_id"]) for run in reply["runs"]] == [("latched", None)]
        else:
            assert (reply["type"], reply["code"]) == ("error", answer)
            unknown = await mallory.call(kind, **filled(fields, names | {"S": fresh()}))
            assert unknown["code"] == answer, "as if it did not exist"
            assert unknown["message"].replace(unknown.get("session_id", ""), "") == reply["message"].replace(
                session, ""
            )
        await mallory.barrier()
        assert [f["type"] for f in mallory.frames if f.get("session_id") == session and f["type"] != "error"] == []
        done = await alice.ok("abort", session_id=session)
        assert [run["state"] for run in done["runs"]] == ["requested"], "still live"


async def test_a_hello_attaches_to_nobody_elses_session(server: Server) -> None:
    async with server.client(token="alice") as alice:
        session, names = await hold(alice)
        fields = COMMANDS["hello"][0][0]["attach"]
        async with server.client(token="mallory", attach=filled(fields, names)) as mallory:
            assert (await mallory.until("error", session_id=session))["code"] == NOT_FOUND
        await alice.ok("abort", session_id=session)


async def test_a_prompt_under_somebody_elses_id_is_a_session_of_ones_own(server: Server) -> None:
    async with server.client(token="alice") as alice, server.client(token="mallory") as mallory:
        session, names = await hold(alice)
        ack = await mallory.ok("prompt", id=names["C"], session_id=session, text="mine")
        assert ack["run_id"] != names["R"]
        assert "duplicate" not in ack
        await mallory.until("run-finish", run_id=ack["run_id"])
        theirs = await server.snapshot(session, **MALLORY)
        assert [text_of(m) for m in theirs["messages"] if m["role"] == "user"] == ["mine"]
        ours = await server.snapshot(session, **ALICE)
        assert (ours["status"], len(ours["messages"])) == ("running", 2)
        assert ours["epoch"] != theirs["epoch"]
        await mallory.fails("message_not_found", "prompt", session_id=session, text="x", replaces=names["M"])
        await alice.ok("abort", session_id=session)


async def test_a_watch_tells_of_ones_own_sessions_only(server: Server) -> None:
    async with server.client(token="alice") as alice, server.client(token="mallory") as mallory:
        await mallory.ok("watch", on=True)
        session, _ = await hold(alice)
        own = fresh()
        await mallory.prompt(own)
        await mallory.until("session-changed", session_id=own, status="idle")
        assert {f["session_id"] for f in mallory.frames if f["type"] == "session-changed"} == {own}
        await alice.ok("abort", session_id=session)


@pytest.mark.parametrize(("method", "path"), list(ROUTES))
async def test_no_route_reaches_somebody_elses_session(server: Server, method: str, path: str) -> None:
    body, status = ROUTES[method, path]
    async with server.client(token="alice") as alice:
        session, _ = await hold(alice)
        me = (await server.http("GET", "/api/me", headers=MALLORY)).body["principal"]
        where = path.replace("{session_id}", session).replace("{principal:path}", me)
        answer = await server.http(method, where, body, headers=MALLORY)
        assert answer.status == status
        if status == 404:
            assert answer.code == NOT_FOUND
            unknown = await server.http(method, where.replace(session, fresh()), body, headers=MALLORY)
            assert (unknown.status, unknown.code) == (404, NOT_FOUND)
        elif status == 200:
            assert session not in str(answer.body)
        assert (await server.http(method, where, body)).status == 401
        assert (await server.snapshot(session, **ALICE))["status"] == "running"
        await alice.ok("abort", session_id=session)
