"""A session that is shared by role: what each may do, and that it ends on open sockets when it is taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support import Server, agree, fresh, spec
from tests.e2e.test_secrets import trail

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame

ARGS = ("--token", "alice,bob,carol")


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def principal(server: Server, name: str) -> str:
    found: str = (await server.http("GET", "/api/me", headers=bearer(name))).body["principal"]
    return found


async def share(server: Server, session: str, with_: str, role: str | None, *, by: str = "alice") -> Any:
    """Share, or with role None take it back; the status."""
    path = f"/api/sessions/{session}/shares/{await principal(server, with_)}"
    method, body = ("DELETE", None) if role is None else ("PUT", {"role": role})
    return (await server.http(method, path, body, headers=bearer(by))).status


@pytest.mark.parametrize("asked", ["observer", "owner"])
async def test_an_observer_reads_everything_and_is_told_its_role(server: Server, asked: str) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await bob.fails("session_not_found", "attach", session_id=session)
        assert await share(server, session, "bob", "observer") == 200
        attached = await bob.ok("attach", session_id=session, role=asked)
        assert attached["role"] == "observer"
        await alice.run(session, "again")
        await bob.idle(session)
        await bob.reach(lambda: len(bob.view(session).fold.messages) == 4, "the second turn")
        await agree(server, bob, session, **bearer("bob"))
        assert len((await bob.ok("history", session_id=session))["messages"]) == 4
        rows = (await server.http("GET", "/api/shared", headers=bearer("bob"))).body["sessions"]
        row = next(row for row in rows if row["session_id"] == session)
        assert (row["role"], row["owner"]) == ("observer", await principal(server, "alice"))


async def test_an_observer_does_nothing_and_its_connection_holds_no_run(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        ack = await alice.prompt(session, spec("hold"))
        await share(server, session, "bob", "observer")
        await bob.ok("attach", session_id=session, seq=0)
        path = f"/api/sessions/{session}"
        refused: list[tuple[str, Frame]] = [
            ("prompt", {"text": "Hi"}),
            ("prompt", {"text": "Hi", "on_busy": "steer"}),
            ("prompt", {"text": "Hi", "on_busy": "interrupt"}),
            ("resume", {}),
            ("abort", {}),
            ("abort", {"run_id": ack["run_id"]}),
            ("abort", {"command_id": fresh("unseen")}),
            ("respond", {"request_id": "r", "decision": "allow"}),
        ]
        for kind, fields in refused:
            await bob.fails("forbidden", kind, session_id=session, **fields)
        await bob.fails("not_attached", "detach", session_id=fresh(), run="abort")
        for fields in ({}, {"run_id": ack["run_id"]}):
            assert (await bob.ok("abort", **fields))["runs"] == []
        me = await principal(server, "bob")
        calls: list[tuple[str, str, Any]] = [
            ("POST", f"{path}/prompt", {"text": "Hi"}),
            ("POST", f"{path}/abort", {}),
            ("PATCH", path, {"title": "x"}),
            ("DELETE", path, None),
            ("GET", f"{path}/shares", None),
            ("PUT", f"{path}/shares/{me}", {"role": "owner"}),
            ("DELETE", f"{path}/shares/{await principal(server, 'carol')}", None),
        ]
        for method, where, body in calls:
            answer = await server.http(method, where, body, headers=bearer("bob"))
            assert (answer.status, answer.code) == (403, "forbidden"), (method, where)
        await bob.ok("detach", session_id=session, run="abort")
        assert (await server.snapshot(session, **bearer("alice")))["status"] == "running"
        await alice.ok("abort", session_id=session)
    events = [entry["event"] for entry in trail(server) if entry.get("session_id") == session]
    assert events[0] == "session-shared"
    assert "access-denied" in events


async def test_an_owner_by_share_prompts_aborts_and_answers_for_itself(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await share(server, session, "bob", "owner")
        ack = await bob.prompt(session, spec("hold"), id="of-bob")
        assert (await alice.until("run-start", session_id=session, run_id=ack["run_id"]))["command_id"] == "of-bob"
        again = await bob.ok("prompt", id="of-bob", session_id=session, text=spec("hold"))
        assert (again["run_id"], again["duplicate"]) == (ack["run_id"], True)
        waiting = await alice.prompt(session, "next", id="of-bob", on_busy="queue")  # ids are each principal's own
        assert waiting["queued"] == 1
        done = await bob.ok("abort", command_id="of-bob")
        assert [run["run_id"] for run in done["runs"]] == [ack["run_id"]]
        assert (await alice.until("run-finish", run_id=waiting["run_id"]))["status"] == "completed"
        await bob.until("run-finish", run_id=waiting["run_id"])
        await agree(server, bob, session, **bearer("bob"))
        assert (
            await server.http("PATCH", f"/api/sessions/{session}", {"title": "ours"}, headers=bearer("bob"))
        ).status == 200


@pytest.mark.parametrize("named_by", ["command_id", "run_id"])
@pytest.mark.parametrize("state", ["requested", "dequeued"])
async def test_an_owner_by_share_aborts_from_a_connection_that_holds_nothing(
    server: Server, named_by: str, state: str
) -> None:
    session, id_ = fresh(), fresh("p")
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await share(server, session, "bob", "owner")
        if state == "dequeued":
            await alice.holding(session)
        ack = await bob.prompt(session, spec("hold"), id=id_, on_busy="queue")
        run = {"session_id": session, "run_id": ack["run_id"]}
        name = {"command_id": id_} if named_by == "command_id" else {"run_id": ack["run_id"]}
        async with server.client(token="carol") as carol:  # to whom it is nothing
            assert run["run_id"] not in str((await carol.ok("abort", **name))["runs"])
        async with server.client(token="bob") as elsewhere:
            assert (await elsewhere.ok("abort", **name))["runs"] == [run | {"state": state}]
        if state == "requested":
            assert (await alice.until("run-finish", run_id=ack["run_id"]))["status"] == "aborted"
        else:
            assert (await alice.until("dequeued", run_id=ack["run_id"]))["reason"] == "abort"


@pytest.mark.parametrize(("role", "code"), [("observer", "forbidden"), (None, "session_not_found")])
async def test_what_one_started_is_not_ones_own_to_stop_when_the_share_has_ended(
    server: Server, role: str | None, code: str
) -> None:
    session, id_ = fresh(), fresh("p")
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await share(server, session, "bob", "owner")
        ack = await bob.prompt(session, spec("hold"), id=id_)
        await share(server, session, "bob", role)
        await bob.fails(code, "abort", command_id=id_)
        assert (await bob.ok("abort", run_id=ack["run_id"]))["runs"] == []
        again = await bob.ok("prompt", id=id_, session_id=session, text=spec("hold"))
        assert (again["run_id"], again["duplicate"]) == (ack["run_id"], True)
        done = await alice.ok("abort", session_id=session)
        assert [(run["run_id"], run["state"]) for run in done["runs"]] == [(ack["run_id"], "requested")]


async def test_a_share_taken_back_ends_it_on_open_sockets(server: Server) -> None:
    session = fresh()
    async with (
        server.client(token="alice") as alice,
        server.client(token="bob") as bob,
        server.client(token="carol") as carol,
    ):
        await alice.run(session)
        for name, role in (("bob", "observer"), ("carol", "owner")):
            await share(server, session, name, role)
        await bob.ok("attach", session_id=session)
        await carol.ok("attach", session_id=session)
        for name in ("bob", "carol"):
            assert await share(server, session, name, None) == 204
        for one in (bob, carol):
            assert (await one.until("detached", session_id=session))["reason"] == "forbidden"
            seen = len(one.events(session))
            await alice.run(session, "secret")
            await one.barrier()
            assert len(one.events(session)) == seen
            for kind in ("attach", "history", "resume", "abort"):
                await one.fails("session_not_found", kind, session_id=session)
        for name in ("bob", "carol"):
            assert (await server.http("GET", f"/api/sessions/{session}", headers=bearer(name))).status == 404
            assert await share(server, session, name, None) == 404
        own = await bob.prompt(session, "mine")
        assert own["session_id"] == session
        await bob.until("run-finish", run_id=own["run_id"])
        assert len((await server.snapshot(session, **bearer("bob")))["messages"]) == 2


async def test_an_owner_made_an_observer_stops_owning_and_may_look_on(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await share(server, session, "bob", "owner")
        ack = await bob.prompt(session, spec("hold"))
        await share(server, session, "bob", "observer")
        assert (await bob.until("detached", session_id=session))["reason"] == "forbidden"
        assert (await bob.ok("abort"))["runs"] == []
        await bob.fails("forbidden", "abort", session_id=session)
        assert (await bob.ok("attach", session_id=session))["role"] == "observer"
        done = await alice.ok("abort", session_id=session)
        assert [run["run_id"] for run in done["runs"]] == [ack["run_id"]]


async def test_ones_own_session_comes_before_one_that_was_shared_under_its_id(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session, "of alice")
        await bob.run(session, "of bob")
        assert await share(server, session, "bob", "owner") == 200
        await bob.run(session, "again")
        assert len((await server.snapshot(session, **bearer("bob")))["messages"]) == 4
        assert len((await server.snapshot(session, **bearer("alice")))["messages"]) == 2


async def test_who_does_not_want_a_share_gives_it_up(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.run(session)
        await share(server, session, "bob", "observer")
        await bob.fails("forbidden", "prompt", session_id=session, text="Hi")
        assert await share(server, session, "bob", None, by="bob") == 204
        assert (await bob.run(session))["status"] == "completed"


async def test_shares_outlive_the_server_and_go_with_the_session(launch: Launch) -> None:
    server = launch(args=ARGS)
    session = fresh()
    async with server.client(token="alice") as alice:
        await alice.run(session)
        await share(server, session, "bob", "observer")
    await server.crash()
    async with server.client(token="bob") as bob:
        assert (await bob.ok("attach", session_id=session))["role"] == "observer"
        listed = await server.http("GET", f"/api/sessions/{session}/shares", headers=bearer("alice"))
        assert [row["role"] for row in listed.body["shares"]] == ["observer"]
        assert (await server.http("DELETE", f"/api/sessions/{session}", headers=bearer("alice"))).status == 204
        assert (await bob.until("detached", session_id=session))["reason"] == "deleted"
        async with server.client(token="alice") as alice:
            await alice.run(session, "a new one")
        await bob.fails("session_not_found", "attach", session_id=session)


@pytest.mark.parametrize("body", [{"role": "admin"}, {"role": None}, {"role": ["owner"]}])
async def test_a_wrong_role_is_invalid(server: Server, body: Any) -> None:
    session = fresh()
    async with server.client(token="alice") as alice:
        await alice.run(session)
    path = f"/api/sessions/{session}/shares/{await principal(server, 'bob')}"
    answer = await server.http("PUT", path, body, headers=bearer("alice"))
    assert (answer.status, answer.code) == (422, "invalid")
    assert await share(server, session, "alice", "observer") == 422, "it is alice's already"
    for nobody in ("", "%00", "a%00b", "%1b", "x" * 257):
        answer = await server.http("PUT", f"/api/sessions/{session}/shares/{nobody}", {}, headers=bearer("alice"))
        assert (answer.status, answer.code) == (422, "invalid"), nobody
