"""Wherever the socket landed: every command and every route works for a session that another node owns."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from gateway.client import connect as dial
from tests.cluster.support import LONG, eventually
from tests.e2e.support import agree, check_log, fresh, of_run, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Launch
    from tests.cluster.support import Cluster, Node
    from tests.e2e.support import Client


def steps(count: int = 3, **more: object) -> str:
    return json.dumps({"steps": count, **more})


def held(gate: Path) -> str:
    """A prompt that says one word and goes on when the file is there."""
    return steps(2, gate=str(gate))


async def owned_by(node: Node) -> str:
    """A session that a node owns: it has run there."""
    session = fresh()
    async with node.client() as client:
        await client.run(session, steps())
    return session


async def running_at(client: Client, session: str, gate: Path, **fields: Any) -> dict[str, Any]:
    ack = await client.prompt(session, held(gate), **fields)
    await client.until("text-delta", session_id=session, run_id=ack["run_id"])
    return ack


async def test_a_prompt_runs_where_the_session_is_and_is_attached_before_its_events(pair: Cluster) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with there.client() as client:
        ack = await client.prompt(session, steps())
        await client.until("run-finish", run_id=ack["run_id"])
        kinds = [f["type"] for f in client.frames if f["type"] != "pong"]
        assert kinds[1:6] == ["ack", "attached", "snapshot", "message-added", "run-start"]
        attached = next(f for f in client.frames if f["type"] == "attached")
        first = next(f for f in client.frames if f["type"] == "message-added")
        assert (attached["role"], attached["recovery"]) == ("owner", "snapshot")
        assert attached["seq"] == first["seq"] - 1, "attached at the head from before the prompt"
        await agree(there, client, session)
    mine = [pid for what, at, _, pid, _ in pair.executed() if what == "start" and at == session]
    assert mine == [here.running.pid] * 2


async def test_two_tabs_on_different_nodes_see_the_same_log(pair: Cluster) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as one, there.client() as two:
        await one.ok("attach", session_id=session)
        await two.ok("attach", session_id=session)
        for client in (one, two, one):
            ack = await client.prompt(session, steps(4))
            for tab in (one, two):
                await tab.until("run-finish", run_id=ack["run_id"])
        assert await agree(here, one, session) == await agree(there, two, session)
        log = await there.log(session)
        check_log(log)
        assert log == await here.log(session)
        for tab in (one, two):
            assert text_of(tab.view(session).fold.messages[-1]) == "w0 w1 w2 w3 "


async def test_a_new_session_is_live_from_seq_0_on_any_node(pair: Cluster) -> None:
    for node in pair.nodes:
        async with node.client() as client:
            ack = await client.prompt(None, steps())
            attached = await client.until("attached")
            assert (attached["recovery"], attached["seq"]) == ("live", 0)
            await client.until("run-finish", run_id=ack["run_id"])


async def test_an_abort_on_another_node_stops_the_run(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, tmp_path / "gate")
        reply = await other.ok("abort", session_id=session, reason="enough")
        assert reply["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        finish = await owner.until("run-finish", run_id=ack["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "user")
        requested = next(f for f in owner.events(session) if f["type"] == "abort-requested")
        assert requested["detail"] == "enough"
        late = await other.ok("abort", session_id=session, run_id=ack["run_id"])
        assert [run["state"] for run in late["runs"]] == ["too_late"]
        idle = await other.ok("abort", session_id=session)
        assert idle["runs"] == []


@pytest.mark.parametrize("by", ["run_id", "command_id", "nothing"])
async def test_an_abort_finds_its_run_on_another_node_by(pair: Cluster, tmp_path: Path, by: str) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with there.client() as client:
        ack = await running_at(client, session, tmp_path / "gate", id=f"{session}-prompt")
        named = {"run_id": {"run_id": ack["run_id"]}, "command_id": {"command_id": ack["id"]}, "nothing": {}}[by]
        reply = await client.ok("abort", **named)
        assert reply["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        finish = await client.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "aborted"


async def test_an_abort_by_run_id_reaches_a_node_that_this_one_has_nothing_of(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, fresh(), tmp_path / "gate")
        reply = await other.ok("abort", run_id=ack["run_id"])
        assert [run["state"] for run in reply["runs"]] == ["requested"]
        assert (await owner.until("run-finish"))["status"] == "aborted"


async def test_an_abort_by_run_id_reaches_a_node_that_has_only_just_come(cluster: Launch, tmp_path: Path) -> None:
    both = cluster(start=False, lease_s=90)  # the first hears of the second by its next renewal, in half a minute
    here, there = both.nodes
    for node in both.nodes:
        node.spawn()
        node.await_ready()
    async with there.client() as owner, here.client() as other:
        ack = await running_at(owner, fresh(), tmp_path / "gate")
        reply = await other.ok("abort", run_id=ack["run_id"])
        assert [run["state"] for run in reply["runs"]] == ["requested"]
        assert (await owner.until("run-finish"))["status"] == "aborted"


async def test_an_abort_by_command_id_before_its_prompt_holds_on_every_node(pair: Cluster) -> None:
    here, there = pair.nodes
    for first, then in ((here, there), (there, here)):
        command = fresh("c")
        async with first.client() as hasty, then.client() as slow:
            reply = await hasty.ok("abort", command_id=command)
            assert [run["state"] for run in reply["runs"]] == ["latched"]
            ack = await slow.prompt(fresh(), steps(), id=command)
            finish = await slow.until("run-finish", run_id=ack["run_id"])
            assert finish["status"] == "aborted"


async def test_a_command_id_runs_once_whichever_node_it_is_sent_to_again(pair: Cluster) -> None:
    here, there = pair.nodes
    session, command = await owned_by(here), fresh("c")
    async with there.client() as one:
        first = await one.prompt(session, steps(), id=command)
        await one.until("run-finish", run_id=first["run_id"])
    for node in (here, there):
        async with node.client() as again:
            ack = await again.prompt(session, steps(), id=command)
            assert ack == {**first, "duplicate": True}
            await again.until("attached", session_id=session)
            refused = await again.fails("id_reuse", "prompt", session_id=session, text="other", id=command)
            assert not refused["retryable"]
    starts = [1 for what, at, *_ in pair.executed() if what == "start" and at == session]
    assert len(starts) == 2


async def test_the_same_prompt_without_a_session_on_all_nodes_at_once_makes_one_session(pair: Cluster) -> None:
    for _ in range(5):
        command = fresh("c")
        async with pair.nodes[0].client() as one, pair.nodes[1].client() as two:
            acks = await asyncio.gather(*(tab.prompt(None, steps(), id=command) for tab in (one, two)))
            assert len({(ack["session_id"], ack["run_id"]) for ack in acks}) == 1
            assert sorted(ack.get("duplicate", False) for ack in acks) == [False, True]
            for tab in (one, two):
                await tab.over(acks[0])
        started = [what for what, at, *_ in pair.executed() if at == acks[0]["session_id"] and what == "start"]
        assert started == ["start"]


async def test_the_same_new_session_on_all_nodes_at_once_has_one_owner(pair: Cluster) -> None:
    for _ in range(5):
        session = fresh()
        async with pair.nodes[0].client() as one, pair.nodes[1].client() as two:
            acks = await asyncio.gather(*(tab.prompt(session, steps(), on_busy="queue") for tab in (one, two)))
            for tab in (one, two):
                for ack in acks:
                    await tab.over(ack)
                await agree(pair.nodes[0], tab, session)
        check_log(await pair.nodes[1].log(session))
        pids = {pid for _, at, _, pid, _ in pair.executed() if at == session}
        assert len(pids) == 1


async def test_on_busy_holds_across_nodes(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as one, there.client() as two:
        running = await running_at(one, session, tmp_path / "gate")
        refused = await two.fails("session_busy", "prompt", session_id=session, text=steps())
        assert refused["retryable"]
        queued = await two.prompt(session, steps(), on_busy="queue")
        assert queued["queued"] == 1
        interrupting = await two.prompt(session, steps(), on_busy="interrupt")
        finish = await two.until("run-finish", run_id=running["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "superseded")
        await two.until("run-finish", run_id=interrupting["run_id"])
        await two.until("run-finish", run_id=queued["run_id"])
        await agree(here, one, session)
        await agree(there, two, session)


async def test_steering_reaches_the_running_agent_from_another_node(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session, gate = await owned_by(here), tmp_path / "gate"
    async with here.client() as one, there.client() as two:
        running = await running_at(one, session, gate)
        steered = await two.prompt(session, "listen", on_busy="steer")
        assert steered["run_id"] == running["run_id"]
        await two.until("message-added", run_id=running["run_id"])
        gate.touch()
        await two.until("run-finish", run_id=running["run_id"])
        await agree(there, two, session)


async def test_an_approval_is_answered_once_from_any_node(pair: Cluster) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as one, there.client() as two:
        ack = await one.prompt(session, steps(1, ask=True))
        await two.ok("attach", session_id=session)
        await two.reach(lambda: bool(two.view(session).fold.pending), "an open approval")
        request = two.view(session).fold.pending[0]["request_id"]
        await two.ok("respond", session_id=session, request_id=request, decision="allow")
        await one.fails("request_not_found", "respond", session_id=session, request_id=request, decision="deny")
        await two.fails("request_not_found", "respond", session_id=session, request_id=request, decision="deny")
        await two.over(ack)
        resolved = [f["decision"] for f in await there.log(session) if f["type"] == "approval-resolved"]
        assert resolved == ["allow"]


async def test_resume_history_detach_and_replaces_work_from_another_node(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with there.client() as client:
        await client.fails("not_resumable", "resume", session_id=session)
        ack = await running_at(client, session, tmp_path / "gate")
        await client.ok("abort", session_id=session)
        await client.until("run-finish", run_id=ack["run_id"])
        resumed = await client.ok("resume", session_id=session)
        await client.ok("abort", session_id=session)
        await client.until("run-finish", run_id=resumed["run_id"])
        page = await client.ok("history", session_id=session)
        assert [m["role"] for m in page["messages"]] == ["user", "assistant", "user", "assistant", "assistant"]
        older = await client.ok("history", session_id=session, before=page["messages"][2]["id"], limit=1)
        assert [m["id"] for m in older["messages"]] == [page["messages"][1]["id"]]
        replaced = await client.prompt(session, steps(), replaces=page["messages"][2]["id"])
        await client.until("run-finish", run_id=replaced["run_id"])
        snapshot = await agree(there, client, session)
        assert len(snapshot["messages"]) == 4
        assert await here.snapshot(session) == snapshot
        held_run = await running_at(client, session, tmp_path / "gate-2")
        await client.ok("detach", session_id=session, run="abort")
        log = await eventually(lambda: _ended(here, session, held_run["run_id"]), "the end of the run")
        assert of_run(log, held_run["run_id"])[-1]["status"] == "aborted"
        await client.fails("not_attached", "detach", session_id=session)


async def _ended(node: Node, session: str, run_id: str) -> list[dict[str, Any]]:
    log = await node.log(session)
    return log if "run-finish" in types(of_run(log, run_id)) else []


async def test_every_rest_route_works_on_every_node(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    path = f"/api/sessions/{session}"
    for node in (there, here):
        renamed = await node.http("PATCH", path, {"title": f"from {node.port}"})
        assert (renamed.status, renamed.body["title"]) == (200, f"from {node.port}")
        listed = await node.http("GET", "/api/sessions?limit=1")
        assert listed.body["sessions"][0]["session_id"] == session
        assert listed.body["sessions"][0]["title"] == f"from {node.port}"
    accepted = await there.http("POST", f"{path}/prompt", {"text": held(tmp_path / "gate")})
    assert accepted.status == 202
    busy = await there.http("POST", f"{path}/prompt", {"text": "no"})
    assert (busy.status, busy.code) == (409, "session_busy")
    stopped = await there.http("POST", f"{path}/abort", {})
    assert [run["run_id"] for run in stopped.body["runs"]] == [accepted.body["run_id"]]
    await eventually(lambda: _ended(there, session, accepted.body["run_id"]), "the end of the run")
    async with here.client() as one, there.client() as two:
        for tab in (one, two):
            await tab.ok("attach", session_id=session)
        assert (await there.http("DELETE", path)).status == 204
        for tab in (one, two):
            assert (await tab.until("detached", session_id=session))["reason"] == "deleted"
    for node in (here, there):
        assert (await node.http("GET", path)).status == 404
        assert (await node.http("DELETE", path)).status == 404
    async with there.client() as client:
        await client.run(session, steps())  # the id is free again


async def test_watchers_on_every_node_hear_of_changes_on_every_node(pair: Cluster) -> None:
    here, there = pair.nodes
    async with here.client() as one, there.client() as two:
        for tab in (one, two):
            await tab.ok("watch", on=True)
        for node in (here, there):
            session = await owned_by(node)
            await node.http("PATCH", f"/api/sessions/{session}", {"title": "seen"})
            for tab in (one, two):
                await tab.until("session-changed", session_id=session, title="seen", status="idle", timeout=LONG)
            await node.http("DELETE", f"/api/sessions/{session}")
            for tab in (one, two):
                await tab.until("session-changed", session_id=session, deleted=True, timeout=LONG)


async def test_the_last_owner_leaving_another_node_aborts_the_run(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as watcher:
        await watcher.ok("attach", session_id=session, role="observer")
        async with there.client() as owner:
            ack = await running_at(owner, session, tmp_path / "gate")
        finish = await watcher.until("run-finish", run_id=ack["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_an_owner_that_comes_back_on_another_node_in_time_keeps_the_run(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session, gate = await owned_by(here), tmp_path / "gate"
    owner = there.client()
    await owner.open()
    await owner.greet()
    ack = await running_at(owner, session, gate, grace_s=3)
    await owner.cut()
    async with here.client() as back:
        await back.ok("attach", session_id=session, epoch=owner.view(session).epoch, seq=owner.view(session).seq)
        await asyncio.sleep(4)  # the grace itself
        gate.touch()
        finish = await back.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "completed"


async def test_a_broken_owner_that_stays_away_ends_the_run_after_its_grace(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as watcher:
        await watcher.ok("attach", session_id=session, role="observer")
        owner = there.client()
        await owner.open()
        await owner.greet()
        ack = await running_at(owner, session, tmp_path / "gate", grace_s=0.5)
        await owner.cut()
        finish = await watcher.until("run-finish", run_id=ack["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_a_client_that_does_not_read_on_one_node_delays_nobody_on_another(pair: Cluster) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with there.client(slow=True) as stuck, here.client() as one, there.client() as two:
        await stuck.ok("attach", session_id=session, role="observer")
        await two.ok("attach", session_id=session, role="observer")
        ack = await one.prompt(session, steps(200, pause=0, pad=4000))
        for tab in (one, two):
            await tab.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        await agree(there, two, session)


async def test_a_seq_that_no_log_has_makes_a_new_epoch_for_every_node(pair: Cluster) -> None:
    here, there = pair.nodes
    session = await owned_by(here)
    async with here.client() as one, there.client() as two:
        old = await one.ok("attach", session_id=session)
        attached = await two.ok("attach", session_id=session, epoch=old["epoch"], seq=old["seq"] + 100)
        assert attached["recovery"] == "snapshot"
        assert attached["epoch"] != old["epoch"]
        again = await one.until("attached", session_id=session)
        assert again["epoch"] == attached["epoch"]
        ack = await two.prompt(session, steps())
        for tab in (one, two):
            await tab.until("run-finish", run_id=ack["run_id"])
        assert await agree(here, one, session) == await agree(there, two, session)


async def test_the_python_client_moves_between_nodes_and_misses_nothing(pair: Cluster) -> None:
    here, there = pair.nodes
    session_id = await owned_by(here)
    async with dial(f"ws://127.0.0.1:{there.port}/ws") as gateway:
        session = gateway.session(session_id)
        ack = await session.prompt(steps(5))
        words = [event["text"] async for event in session.events(until=ack["run_id"]) if event["type"] == "text-delta"]
        assert "".join(words) == "w0 w1 w2 w3 w4 "


async def test_strangers_commands_do_no_harm(pair: Cluster) -> None:
    there = pair.nodes[1]
    async with there.client() as client:
        await client.fails("session_not_found", "attach", session_id=fresh())
        await client.fails("session_not_found", "history", session_id=fresh())
        await client.fails("session_not_found", "resume", session_id=fresh())
        await client.fails("session_not_found", "abort", session_id=fresh())
        await client.fails("session_not_found", "respond", session_id=fresh(), request_id="r", decision="allow")
        assert (await client.ok("abort", run_id="none"))["runs"] == []
        assert (await client.ok("abort"))["runs"] == []
    async with connect(f"ws://127.0.0.1:{there.port}/ws", proxy=None) as raw:
        await raw.send("no json")
        assert json.loads(await raw.recv())["type"] in ("error", "welcome")
