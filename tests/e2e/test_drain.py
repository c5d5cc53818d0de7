"""SIGTERM: the server says so, lets runs finish, seals the rest, and ends with 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.support import ABORT_ERROR, agree, check_log, fresh, spec, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch


async def test_an_idle_connection_gets_goaway_and_4100_and_the_exit_code_is_0(launch: Launch) -> None:
    server = launch()
    async with server.client() as c:
        await c.barrier()
        server.terminate()
        goaway = await c.until("goaway")
        assert isinstance(goaway["reason"], str)
        assert goaway["retry_after_s"] >= 0
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0


async def test_sigint_drains_too(launch: Launch) -> None:
    server = launch()
    async with server.client() as c:
        await c.barrier()
        server.running.send_signal(2)
        await c.until("goaway")
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0


async def test_while_a_run_lives_the_server_serves_it_and_takes_nothing_new(launch: Launch, gate: Path) -> None:
    server = launch(drain=20)
    session, other = fresh(), fresh()
    async with server.client() as c:
        await c.run(other)
        ack = await c.holding(session, gate=str(gate))
        server.terminate()
        await c.until("goaway")
        ready = await server.http("GET", "/readyz")
        assert ready.status == 503
        assert int(ready.headers["retry-after"]) >= 0
        assert (await server.http("GET", "/healthz")).status == 200
        with pytest.raises(InvalidStatus) as refused:
            await server.client().open()
        assert refused.value.response.status_code == 503
        assert "retry-after" in refused.value.response.headers
        for target in (session, other, fresh()):
            error = await c.fails("draining", "prompt", session_id=target, text="new", on_busy="queue")
            assert error["retryable"] is True
        assert (await c.ok("attach", session_id=other))["recovery"] == "snapshot"
        assert (await c.ok("history", session_id=other))["messages"]
        assert (await c.ok("abort", session_id=other))["runs"] == []
        gate.touch()
        finish = await c.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "completed"
        check_log(c.events(session))
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0


async def test_an_abort_works_while_draining(launch: Launch) -> None:
    server = launch(drain=20)
    session = fresh()
    async with server.client() as c:
        ack = await c.holding(session)
        server.terminate()
        await c.until("goaway")
        done = await c.ok("abort", session_id=session)
        assert [r["run_id"] for r in done["runs"]] == [ack["run_id"]]
        finish = await c.until("run-finish", session_id=session)
        assert (finish["status"], finish["reason"]) == ("aborted", "user")
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0


@pytest.mark.parametrize("do", ["hold", "hang"])
async def test_a_run_past_the_drain_is_aborted_with_shutdown_and_sealed(launch: Launch, do: str) -> None:
    server = launch(drain=0.5, abort_grace=0.5)
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec(do))
        await c.until("text-delta", session_id=session)
        later = await c.prompt(session, "later", on_busy="queue")
        server.terminate()
        await c.until("goaway")
        finish = await c.until("run-finish", session_id=session)
        assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "shutdown", ABORT_ERROR)
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert asked["reason"] == "shutdown"
        assert await c.closed(timeout=20) == 4100
        assert await server.exited() == 0
        view = c.view(session)
    await server.restart()
    async with server.client() as c:
        c.views[session] = view
        attached = await c.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        assert attached["epoch"] == view.epoch
        snapshot = await agree(server, c, session)
        assert (snapshot["queue"], snapshot["resumable"]) == ([], True)
        log = await server.log(session)
        check_log(log)
        gone = [e for e in log if e["type"] == "dequeued"]
        assert [(e["run_id"], e["reason"]) for e in gone] == [(later["run_id"], "shutdown")]


@pytest.mark.parametrize("how", ["close", "cut"])
async def test_after_goaway_no_disconnect_aborts(launch: Launch, gate: Path, how: str) -> None:
    server = launch(drain=20, disconnect_grace=0)
    session = fresh()
    async with server.client() as c, server.client() as other:
        await c.holding(session, gate=str(gate), fields={"grace_s": 0})
        server.terminate()
        await c.until("goaway")
        await (c.close() if how == "close" else c.cut())
        await other.until("goaway")
        for _ in range(20):
            await other.barrier()
        gate.touch()
        assert await server.exited() == 0
    await server.restart()
    answer = (await server.snapshot(session))["messages"][-1]
    assert text_of(answer) == "holding released"
    assert answer["error"] is None
    log = await server.log(session)
    check_log(log)
    assert "abort-requested" not in types(log)


async def test_a_second_sigterm_ends_at_once(launch: Launch) -> None:
    server = launch(drain=60)
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        server.terminate()
        await c.until("goaway")
        server.terminate()
        await server.exited(10)
    await server.restart()
    log = await server.log(session)
    check_log(log)
