"""Processes, Redis and the lines between them fail. Never two runners, nothing seen is lost, clients only reconnect."""

from __future__ import annotations

import asyncio
import functools
import json
from typing import TYPE_CHECKING, Any

from tests.cluster.support import LEASE_S, LONG, check_single_runner, eventually
from tests.e2e.support import agree, check_log, fresh, of_run, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Launch
    from tests.cluster.support import Node
    from tests.e2e.support import Client


def steps(count: int = 3, **more: object) -> str:
    return json.dumps({"steps": count, **more})


def held(gate: Path) -> str:
    return steps(2, gate=str(gate))


async def running_at(client: Client, session: str, text: str, **fields: Any) -> dict[str, Any]:
    fields.setdefault("on_disconnect", "continue")
    ack = await client.prompt(session, text, **fields)
    await client.until("text-delta", session_id=session, run_id=ack["run_id"], timeout=LONG)
    return ack


async def ended(node: Node, session: str, run_id: str) -> dict[str, Any]:
    """Wait for a run's end as the log has it; gives its ``run-finish``."""

    async def look() -> dict[str, Any] | None:
        own = of_run(await node.log(session), run_id)
        return own[-1] if own and own[-1]["type"] == "run-finish" else None

    found: dict[str, Any] = await eventually(look, f"the end of run {run_id}")
    return found


async def test_runs_of_a_killed_node_are_sealed_by_another_and_resumable(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, held(tmp_path / "gate"))
        await other.ok("attach", session_id=session)
        here.kill()
        finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "lost"
        assert "detached" not in [f["type"] for f in other.frames]
        resumed = await other.ok("resume", session_id=session)
        (tmp_path / "gate").touch()
        await other.until("run-finish", run_id=resumed["run_id"])
        await agree(there, other, session)
    check_log(await there.log(session))
    check_single_runner(both)


async def test_runs_of_a_killed_node_that_nobody_watches_are_sealed_too(cluster: Launch, tmp_path: Path) -> None:
    here, there = cluster().nodes
    session = fresh()
    async with here.client() as owner:
        ack = await running_at(owner, session, held(tmp_path / "gate"))
        queued = await owner.prompt(session, steps(), on_busy="queue")
        here.kill()

    async def listed() -> bool:
        rows = (await there.http("GET", "/api/sessions")).body["sessions"]
        return [row["status"] for row in rows if row["session_id"] == session] == ["idle"]

    await eventually(listed, "sealed")
    log = await there.log(session)
    check_log(log)
    assert of_run(log, ack["run_id"])[-1]["status"] == "lost"
    assert of_run(log, queued["run_id"])[-1]["reason"] == "lost"


async def test_a_prompt_that_said_resume_goes_on_at_another_node(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session, gate = fresh(), tmp_path / "gate"
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, held(gate), on_lost="resume")
        await other.ok("attach", session_id=session)
        here.kill()
        lost = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert lost["status"] == "lost"
        start = await other.until("run-start", timeout=LONG)
        assert start["mode"] == "resume"
        gate.touch()
        finish = await other.until("run-finish", run_id=start["run_id"])
        assert finish["status"] == "completed"
        await agree(there, other, session)
    check_single_runner(both)


async def test_a_client_that_reconnects_to_another_node_ends_with_the_same_transcript(
    cluster: Launch, tmp_path: Path
) -> None:
    here, there = cluster().nodes
    session = fresh()
    owner = here.client()
    await owner.open()
    await owner.greet()
    ack = await running_at(owner, session, steps(5000, pause=0.005))
    here.kill()
    await owner.closed()
    view = owner.view(session)
    again = there.client(views=owner.views, attach=[{"session_id": session, "epoch": view.epoch, "seq": view.seq}])
    async with again:
        attached = await again.until("attached", session_id=session)
        assert attached["recovery"] in ("replay", "live")
        await again.over(ack, timeout=LONG)
        await agree(there, again, session)
        command = fresh("c")
        prompt = await again.prompt(session, steps(), id=command)
        await again.over(prompt)


async def test_a_prompt_to_a_session_of_a_node_that_has_just_died_waits_for_its_lease(
    cluster: Launch, tmp_path: Path
) -> None:
    here, there = cluster().nodes
    session = fresh()
    async with here.client() as owner:
        await owner.run(session, steps())
        here.kill()
    async with there.client() as client:
        ack = await client.ok("prompt", session_id=session, text=steps(), timeout=LONG)
        await client.over(ack, timeout=LONG)
        await agree(there, client, session)


async def test_a_node_that_was_frozen_past_its_lease_runs_nothing_more_and_follows(
    cluster: Launch, tmp_path: Path
) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, steps(100_000, pause=0.01), on_lost="resume")
        await other.ok("attach", session_id=session)
        here.freeze()
        lost = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert lost["status"] == "lost"
        start = await other.until("run-start", timeout=LONG)
        here.thaw()
        # The old owner's own client, on the old owner, sees what the new owner does.
        await owner.until("run-start", run_id=start["run_id"], timeout=LONG)
        await owner.ok("abort", session_id=session, timeout=LONG)
        for client in (owner, other):
            await client.until("run-finish", run_id=start["run_id"], timeout=LONG)
        assert await agree(here, owner, session) == await agree(there, other, session)
        ack = await owner.prompt(session, steps(), timeout=LONG)
        await other.over(ack)
    check_log(await here.log(session))
    check_single_runner(both)


async def test_a_frozen_node_that_nobody_followed_takes_its_sessions_up_again(cluster: Launch, tmp_path: Path) -> None:
    one = cluster(1)
    node = one.nodes[0]
    session = fresh()
    async with node.client() as client:
        ack = await running_at(client, session, steps(100_000, pause=0.01))
        node.freeze()
        await asyncio.sleep(LEASE_S * 1.2)
        node.thaw()
        finish = await client.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "lost"
        assert (await client.ok("resume", session_id=session, timeout=LONG))["run_id"]
        await client.ok("abort", session_id=session)
        await client.idle(session)
        await agree(node, client, session)


async def test_a_frozen_node_learns_what_another_did_that_has_died_since(cluster: Launch) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as owner, there.client() as other:
        await owner.run(session, steps())
        here.freeze()
        ack = await other.prompt(session, steps(), timeout=LONG)
        await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        there.kill()
        await asyncio.sleep(LEASE_S * 1.2)  # nobody lives who owns it: it is the first one's again, and has grown
        here.thaw()
        await owner.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        await agree(here, owner, session)
        await owner.run(session, steps())
        await agree(here, owner, session)
    check_log(await here.log(session))
    check_single_runner(both)


async def test_without_redis_own_sessions_go_on_and_far_ones_fail_retryable_but_stop(
    cluster: Launch, tmp_path: Path
) -> None:
    both = cluster()
    here, there = both.nodes
    session, mine = fresh(), fresh()
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, held(tmp_path / "gate"))
        await other.ok("attach", session_id=session)
        await other.run(mine, steps())
        both.redis.stop()
        for node in (here, there):
            await eventually(functools.partial(_ready, node, "degraded: no bus"), "a node that knows")
        await other.run(mine, steps())
        refused = await other.fails("store_unavailable", "prompt", session_id=session, text="x", on_busy="queue")
        assert refused["retryable"]
        assert refused["retry_after_s"] > 0
        stopped = await other.ok("abort", session_id=session)
        assert stopped["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert (finish["status"], finish["reason"]) == ("aborted", "user")
        both.redis.start()
        for node in (here, there):
            await eventually(functools.partial(_ready, node, "ready"), "Redis again")
        ack = await other.ok("prompt", session_id=session, text=steps(), timeout=LONG)
        await other.over(ack, timeout=LONG)
        assert await agree(here, owner, session) == await agree(there, other, session)
    check_single_runner(both)


async def _ready(node: Node, status: str) -> bool:
    answer = await node.http("GET", "/readyz")
    return bool(answer.body["status"] == status)


async def test_a_redis_that_restarts_empty_loses_no_event(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, steps(400, pause=0.01))
        await other.ok("attach", session_id=session)
        for _ in range(3):
            both.redis.stop()
            await asyncio.to_thread(both.redis.start)
            await other.until("text-delta", session_id=session, timeout=LONG)
        for client in (owner, other):
            await client.over(ack, timeout=LONG)
        assert await agree(here, owner, session) == await agree(there, other, session)
        assert not other.view(session).gaps
    check_single_runner(both)


async def test_a_node_cut_off_from_redis_is_followed_through_the_store(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session, gate = fresh(), tmp_path / "gate"
    async with here.client() as owner, there.client() as other:
        await other.ok("watch", on=True)
        ack = await running_at(owner, session, held(gate))
        await other.ok("attach", session_id=session)
        for break_it in (here.to_redis.cut, here.to_redis.silence):
            break_it()
            await eventually(lambda: _ready(here, "degraded: no bus"), "the cut")
            gate.touch()
            finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
            assert finish["status"] == "completed"
            assert (await other.ok("history", session_id=session))["messages"]
            gate.unlink()
            here.to_redis.mend()
            await eventually(lambda: _ready(here, "ready"), "the line again")
            ack = await running_at(other, session, held(gate))
        gate.touch()
        await other.over(ack)
        assert await agree(here, owner, session) == await agree(there, other, session)
    check_single_runner(both)


async def test_a_disconnect_is_not_lost_with_redis(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as watcher:
        await watcher.run(session, steps())
        await watcher.ok("attach", session_id=session, role="observer")
        async with there.client() as owner:
            ack = await running_at(owner, session, held(tmp_path / "gate"), on_disconnect="abort")
            there.to_redis.cut()
            await eventually(lambda: _ready(there, "degraded: no bus"), "the cut")
        finish = await watcher.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_a_node_cut_off_from_the_database_stops_and_another_takes_over(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    for break_it in (here.to_database.cut, here.to_database.silence):
        session = fresh()
        async with here.client() as owner, there.client() as other:
            await owner.run(session, steps())
            ack = await running_at(owner, session, steps(100_000, pause=0.01), on_lost="resume")
            await other.ok("attach", session_id=session)
            break_it()
            await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
            start = await other.until("run-start", timeout=LONG)
            unready = await eventually(lambda: _unready(here), "a node that says that it cannot serve")
            assert unready.headers["retry-after"]
            assert (await here.http("GET", "/healthz")).status == 200
            here.to_database.mend()
            await eventually(lambda: _ready(here, "ready"), "the database again")
            await owner.until("run-start", run_id=start["run_id"], timeout=LONG)
            await eventually(functools.partial(_stopped, owner, session), "an abort from the node that was cut off")
            for client in (owner, other):
                await client.until("run-finish", run_id=start["run_id"], timeout=LONG)
            assert await agree(here, owner, session) == await agree(there, other, session)
        check_log(await there.log(session))
    check_single_runner(both)


async def _unready(node: Node) -> Any:
    answer = await node.http("GET", "/readyz")
    return answer if answer.status == 503 and answer.body["status"] == "store unavailable" else None


async def _stopped(client: Client, session: str) -> bool:
    reply = await client.call("abort", session_id=session)
    return bool(reply["type"] == "ack")


async def test_owners_of_a_node_that_died_count_as_lost_with_their_grace(cluster: Launch, tmp_path: Path) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as watcher:
        await watcher.run(session, steps())
        await watcher.ok("attach", session_id=session, role="observer")
    async with here.client() as watcher, there.client() as owner:
        await watcher.ok("attach", session_id=session, role="observer")
        ack = await running_at(owner, session, held(tmp_path / "gate"), on_disconnect="abort", grace_s=0.5)
        there.kill()
        finish = await watcher.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_a_stop_that_its_owner_did_not_live_to_hear_is_obeyed_by_the_next(
    cluster: Launch, tmp_path: Path
) -> None:
    both = cluster()
    here, there = both.nodes
    session = fresh()
    async with here.client() as owner, there.client() as other:
        ack = await running_at(owner, session, held(tmp_path / "gate"), on_lost="resume")
        await other.ok("attach", session_id=session)
        here.freeze()
        stopped = await other.ok("abort", session_id=session, timeout=LONG)
        assert [run["state"] for run in stopped["runs"]] == ["requested"]
        here.kill()
        finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "lost"
        snapshot = await agree(there, other, session)
        assert (snapshot["status"], snapshot["resumable"]) == ("idle", True)
    assert types(await there.log(session)).count("run-start") == 1, "what was stopped is not taken up again"
    check_single_runner(both)


async def test_nodes_agree_on_types_of_events_after_a_failover(cluster: Launch, tmp_path: Path) -> None:
    here, there = cluster().nodes
    session = fresh()
    async with here.client() as owner:
        await running_at(owner, session, held(tmp_path / "gate"))
        here.kill()
    async with there.client() as other:
        await other.ok("attach", session_id=session, timeout=LONG)
        await other.idle(session, timeout=LONG)
    kinds = types(await there.log(session))
    assert kinds[-3:] == ["text-end", "message-finish", "run-finish"]
