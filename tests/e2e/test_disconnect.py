"""The end of a connection is an abort, by the owners' rule."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ABORT_ERROR, Server, agree, check_log, fresh, spec, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.support import Client

SETTINGS = {"disconnect_grace": 0.6}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def watch(observer: Client, session: str) -> None:
    await observer.ok("attach", session_id=session, role="observer")


async def ended_by_disconnect(observer: Client, session: str) -> int:
    """Wait for the end; gives back when the abort was asked for."""
    finish = await observer.until("run-finish", session_id=session)
    assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "disconnect", ABORT_ERROR)
    asked = next(e for e in observer.events(session) if e["type"] == "abort-requested")
    assert asked["reason"] == "disconnect"
    return int(asked["time"])


@pytest.mark.parametrize("how", ["1000", "1005"])
async def test_a_close_on_purpose_aborts_at_once(server: Server, how: str) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session, fields={"grace_s": 30})
            await watch(observer, session)
            left = now_ms()
            await (c.close() if how == "1000" else c.close_without_code())
        asked = await ended_by_disconnect(observer, session)
        assert asked - left < 2000, "at once, whatever the grace"
        await agree(server, observer, session)
    check_log(await server.log(session))


@pytest.mark.parametrize("how", ["reset", "fin", "1001", "4321"])
async def test_any_other_end_counts_for_the_grace(server: Server, how: str) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session)
            await watch(observer, session)
            left = now_ms()
            await {"reset": c.cut, "fin": c.hang_up}.get(how, lambda: c.close(int(how)))()
        asked = await ended_by_disconnect(observer, session)
        assert 500 <= asked - left < 4000, "after the server's grace"


async def test_the_prompts_own_grace_counts(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session, fields={"grace_s": 1.2})
            await watch(observer, session)
            left = now_ms()
            await c.cut()
        assert 1100 <= await ended_by_disconnect(observer, session) - left < 5000


async def test_a_grace_of_0_is_at_once(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session, fields={"grace_s": 0})
            await watch(observer, session)
            left = now_ms()
            await c.cut()
        assert await ended_by_disconnect(observer, session) - left < 500


async def test_a_re_attach_within_the_grace_keeps_the_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("words", words=400, delay=0.005), grace_s=0.5)
        await c.until("text-delta", session_id=session)
        view = c.view(session)
        await c.cut()
    async with server.client() as again:
        again.views[session] = view
        await again.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        finish = await again.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "completed", "it ran well past the grace"
        await agree(server, again, session)


async def test_a_re_attach_as_observer_does_not(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session)
            await c.cut()
        await watch(observer, session)
        await ended_by_disconnect(observer, session)


async def test_on_disconnect_continue_leaves_the_run_going(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session, gate=str(gate), fields={"on_disconnect": "continue", "grace_s": 0})
            await watch(observer, session)
        for _ in range(20):
            await observer.barrier()
        gate.touch()
        assert (await observer.until("run-finish", session_id=session))["status"] == "completed"


async def test_a_resume_has_its_own_disconnect_rule(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session, resume={"do": "hold", "gate": str(gate)})
            await watch(observer, session)
            await c.ok("abort", session_id=session)
            await c.until("run-finish", session_id=session)
            ack = await c.ok("resume", session_id=session, on_disconnect="continue")
            await c.until("text-delta", run_id=ack["run_id"])
        for _ in range(20):
            await observer.barrier()
        gate.touch()
        assert (await observer.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"


async def test_an_observer_that_leaves_stops_nothing(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as owner:
        await owner.holding(session, gate=str(gate), fields={"grace_s": 0})
        async with server.client() as observer:
            await watch(observer, session)
        async with server.client() as observer:
            await watch(observer, session)
            await observer.cut()
        for _ in range(20):
            await owner.barrier()
        gate.touch()
        assert (await owner.until("run-finish", session_id=session))["status"] == "completed"


async def test_one_of_two_owners_is_enough(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as observer:
        second = server.client()
        async with server.client() as first:
            await first.holding(session, gate=str(gate))
            await watch(observer, session)
            await second.__aenter__()
            await second.ok("attach", session_id=session, role="owner")
        for _ in range(20):
            await second.barrier()
        assert "abort-requested" not in types(observer.events(session))
        await second.close()
        await ended_by_disconnect(observer, session)


async def test_the_second_owner_keeps_the_run_to_its_end(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as second:
        async with server.client() as first:
            await first.holding(session, gate=str(gate), fields={"grace_s": 0})
            await second.ok("attach", session_id=session)
        for _ in range(20):
            await second.barrier()
        gate.touch()
        assert (await second.until("run-finish", session_id=session))["status"] == "completed"


async def test_a_lost_owner_and_a_leaving_one_wait_for_the_lost_ones_grace(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as first:
            await first.holding(session, fields={"grace_s": 1.5})
            await watch(observer, session)
            async with server.client() as second:
                await second.ok("attach", session_id=session)
                left = now_ms()
                await first.cut()
        asked = await ended_by_disconnect(observer, session)
        assert asked - left >= 1300, "the lost owner still counted when the other left"


async def test_ownership_outlives_a_detach(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session)
            await watch(observer, session)
            await c.ok("detach", session_id=session)
            for _ in range(10):
                await observer.barrier()
            assert "abort-requested" not in types(observer.events(session))
        await ended_by_disconnect(observer, session)


async def test_queued_prompts_go_with_the_run(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session)
            later = await c.prompt(session, "later", on_busy="queue")
            await watch(observer, session)
        await ended_by_disconnect(observer, session)
        gone = next(e for e in observer.events(session) if e["type"] == "dequeued")
        assert (gone["run_id"], gone["reason"]) == (later["run_id"], "disconnect")
        assert (await agree(server, observer, session))["queue"] == []
    check_log(await server.log(session))


async def test_every_run_of_the_connection_goes(server: Server) -> None:
    sessions = [fresh() for _ in range(3)]
    async with server.client() as observer:
        async with server.client() as c:
            for session in sessions:
                await c.holding(session)
                await watch(observer, session)
        for session in sessions:
            await observer.idle(session)
            await agree(server, observer, session)


async def test_a_run_that_rest_started_has_no_owner_to_lose(server: Server, gate: Path) -> None:
    session = fresh()
    body = {"text": spec("hold", gate=str(gate))}
    assert (await server.http("POST", f"/api/sessions/{session}/prompt", body)).status == 202
    async with server.client() as observer:
        await watch(observer, session)
        for _ in range(20):
            await observer.barrier()
        gate.touch()
        assert (await observer.until("run-finish", session_id=session))["status"] == "completed"


async def test_the_session_is_resumable_after_a_disconnect(server: Server) -> None:
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.holding(session)
            await watch(observer, session)
        await ended_by_disconnect(observer, session)
        ack = await observer.ok("resume", session_id=session)
        assert (await observer.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"


async def test_a_queued_prompt_whose_owner_has_left_is_stopped_when_its_turn_comes(server: Server, gate: Path) -> None:
    """The run before it goes on without anybody; the queued one never asked to."""
    session = fresh()
    async with server.client() as watching:
        async with server.client() as c:
            ack = await c.holding(session, gate=str(gate), fields={"on_disconnect": "continue"})
            queued = await c.prompt(session, "after", on_busy="queue")
            await watching.ok("attach", session_id=session, role="observer")
            await c.close(1000)
        gate.touch()
        assert (await watching.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        finish = await watching.until("run-finish", run_id=queued["run_id"])
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")
