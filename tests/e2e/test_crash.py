"""kill -9 in the middle: what any client has seen is still there, and nothing is left open."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ABORT_ERROR, CLOSING, agree, check_log, fresh, of_run, spec, text_of, types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame
    from tests.e2e.support import Server
    from tests.support_postgres import Postgres

STORES = ("sqlite", "postgresql")


def lost_error(error: Frame) -> None:
    """The error of a lost run; only its wording is free."""
    assert {k: v for k, v in error.items() if k != "message"} == {
        "reason": "InterruptedError",
        "code": None,
        "status_code": None,
        "retryable": True,
    }
    assert isinstance(error["message"], str)


async def test_all_that_was_seen_is_there_after_kill_9_time_after_time(launch: Launch) -> None:
    server = launch()
    session = fresh()
    for turn in range(4):
        async with server.client(batch=bool(turn % 2)) as c:
            ack = await c.prompt(session, spec("words", words=100_000, delay=0.001))
            for _ in range(10 + 30 * turn):
                await c.until("text-delta", run_id=ack["run_id"])
            server.kill()
            await c.closed()
            view = c.view(session)
            seen, epoch, seq = c.events(session), view.epoch, view.seq
            said = "".join(e["text"] for e in seen if e["type"] == "text-delta" and e["run_id"] == ack["run_id"])
        await server.restart()
        async with server.client() as again:
            again.views[session] = view
            attached = await again.ok("attach", session_id=session, epoch=epoch, seq=seq)
            assert (attached["epoch"], attached["recovery"]) == (epoch, "replay"), "the epoch stays"
            assert attached["status"] == "idle"
            finish = await again.until("run-finish", run_id=ack["run_id"])
            assert (finish["status"], finish["reason"]) == ("lost", None)
            lost_error(finish["error"])
            snapshot = await agree(server, again, session)
            assert snapshot["resumable"] is True
            answer = snapshot["messages"][-1]
            assert text_of(answer).startswith(said)
            assert answer["error"] == finish["error"]
            tail = [e for e in again.events(session) if e["type"] != "text-delta"]
            ranks = [CLOSING[e["type"]] for e in tail]
            assert ranks == sorted(ranks)
    log = await server.log(session)
    check_log(log)
    assert [e["status"] for e in log if e["type"] == "run-finish"] == ["lost"] * 4


async def test_tools_are_sealed_by_how_far_they_were(launch: Launch) -> None:
    server = launch()
    running, called = fresh(), fresh()
    async with server.client() as c:
        await c.prompt(running, spec("tool_running", text=True))
        await c.until("custom", session_id=running)
        await c.prompt(called, spec("tool_called"))
        await c.until("tool-call", session_id=called)
        server.kill()
        await c.closed()
    await server.restart()
    log = await server.log(running)
    check_log(log)
    closing = [t for t in types(log)[types(log).index("custom") + 1 :] if t != "step-finish"]
    assert closing == ["tool-error", "text-end", "message-finish", "run-finish"] or closing == [
        "tool-error",
        "message-finish",
        "run-finish",
    ]
    done, cut = (p for p in (await server.snapshot(running))["messages"][-1]["parts"] if p["type"] == "tool")
    assert done["output"] == "done"
    assert (cut["state"], cut["outcome"], cut["interrupted"]) == ("output-error", "unknown", True)
    check_log(await server.log(called))
    [never] = (p for p in (await server.snapshot(called))["messages"][-1]["parts"] if p["type"] == "tool")
    assert (never["state"], never["outcome"]) == ("output-error", "not_run")


async def test_an_open_approval_is_withdrawn(launch: Launch) -> None:
    server = launch("approver")
    session = fresh()
    async with server.client() as c:
        await c.prompt(session)
        asked = await c.until("approval-request", session_id=session)
        server.kill()
        await c.closed()
    await server.restart()
    log = await server.log(session)
    check_log(log)
    after = log[types(log).index("approval-request") + 1 :]
    assert (after[0]["type"], after[0]["request_id"], after[0]["decision"]) == (
        "approval-resolved",
        asked["request_id"],
        "withdrawn",
    )
    snapshot = await server.snapshot(session)
    assert (snapshot["pending"], snapshot["status"]) == ([], "idle")


async def test_queued_prompts_are_dequeued_as_lost(launch: Launch) -> None:
    server = launch()
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        queued = [await c.prompt(session, f"later {n}", on_busy="queue") for n in range(2)]
        server.kill()
        await c.closed()
        view = c.view(session)
    await server.restart()
    async with server.client() as c:
        c.views[session] = view
        await c.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        snapshot = await agree(server, c, session)
        assert snapshot["queue"] == []
        log = await server.log(session)
        gone = [e for e in log if e["type"] == "dequeued"]
        assert [(e["run_id"], e["reason"]) for e in gone] == [(q["run_id"], "lost") for q in queued]
        check_log(log)


async def test_a_lost_session_is_resumable_and_goes_on(launch: Launch) -> None:
    server = launch()
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        server.kill()
        await c.closed()
    await server.restart()
    async with server.client() as c:
        ack = await c.ok("resume", session_id=session)
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert (await c.run(session, "next"))["status"] == "completed"
        await agree(server, c, session)
    check_log(await server.log(session))


async def test_on_lost_resume_is_resumed_by_the_server_itself(launch: Launch) -> None:
    server = launch()
    session = fresh()
    async with server.client() as c:
        lost = await c.holding(session, fields={"on_lost": "resume", "on_disconnect": "continue"})
        server.kill()
        await c.closed()
    await server.restart()
    async with server.client() as c:
        await c.ok("attach", session_id=session, seq=0)
        end = await c.until("run-finish", status="completed")
        log = c.events(session)
        check_log(log)
        assert of_run(log, lost["run_id"])[-1]["status"] == "lost"
        resumed = of_run(log, end["run_id"])
        assert (resumed[0]["type"], resumed[0]["mode"]) == ("run-start", "resume")


async def test_on_lost_resume_is_tried_at_most_twice(launch: Launch) -> None:
    server = launch()
    session = fresh()
    again = {"do": "hold", "say": "again"}
    fields = {"on_lost": "resume", "on_disconnect": "continue"}
    async with server.client() as c:
        await c.holding(session, resume=again, fields=fields)
        server.kill()
        await c.closed()
    for runs in (2, 3):
        await server.restart()
        async with server.client() as c:
            await c.ok("attach", session_id=session, seq=0)
            await c.until("text-delta")
            while types(c.events(session)).count("run-start") < runs:
                await c.until("text-delta")
            server.kill()
            await c.closed()
    await server.restart()
    async with server.client() as c:
        await c.ok("attach", session_id=session, seq=0)
        await c.reach(lambda: types(c.events(session)).count("run-finish") == 3, "three ends")
        for _ in range(10):
            await c.barrier()
        assert types(c.events(session)).count("run-start") == 3
        snapshot = await agree(server, c, session)
        assert (snapshot["status"], snapshot["resumable"]) == ("idle", True)
        check_log(c.events(session))


@pytest.mark.parametrize("on_lost", ["seal", "resume"])
async def test_an_abort_that_was_acked_does_not_come_back_as_a_run(launch: Launch, on_lost: str) -> None:
    server = launch(abort_grace=30)
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec("stubborn"), on_lost=on_lost)
        await c.until("text-delta", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("abort-requested", session_id=session)
        server.kill()
        await c.closed()
    await server.restart()
    log = await server.log(session)
    check_log(log)
    assert types(log).count("run-start") == 1
    assert log[-1]["type"] == "run-finish"
    assert log[-1]["status"] in ("aborted", "lost")
    if log[-1]["status"] == "aborted":
        assert log[-1]["error"] == ABORT_ERROR


@pytest.mark.parametrize("restarts", [2])
async def test_a_restart_with_nothing_to_recover_changes_nothing(launch: Launch, restarts: int) -> None:
    server = launch()
    session, lost = fresh(), fresh()
    async with server.client() as c:
        await c.run(session)
        await c.holding(lost)
        server.kill()
        await c.closed()
    await server.restart()
    before = [await server.snapshot(s) for s in (session, lost)]
    for _ in range(restarts):
        await server.crash()
        assert [await server.snapshot(s) for s in (session, lost)] == before, "recovery is idempotent"


async def test_many_sessions_are_sealed_at_once(launch: Launch) -> None:
    server = launch()
    sessions = [fresh() for _ in range(20)]
    async with server.client() as c:
        for session in sessions:
            await c.prompt(session, spec("words", words=100_000, delay=0.002))
        for session in sessions:
            await c.caught_up(session, 6)
        server.kill()
        await c.closed()
        views = c.views
    await server.restart()
    async with server.client() as c:
        for session in sessions:
            c.views[session] = views[session]
            await c.ok("attach", session_id=session, epoch=views[session].epoch, seq=views[session].seq)
            snapshot = await agree(server, c, session)
            assert snapshot["resumable"] is True
    for session in sessions:
        check_log(await server.log(session))


def backup(server: Server, request: pytest.FixtureRequest) -> Callable[[], None]:
    """Copy the database of a server that is stopped; give what brings it back."""
    if server.store.startswith("postgresql"):
        postgres: Postgres = request.getfixturevalue("postgres")
        kept = postgres.copy(server.store)

        def restore_database() -> None:
            server.store = kept

        return restore_database
    folder = server.folder / "backup"
    folder.mkdir()
    for file in server.folder.glob("g.db*"):
        shutil.copy(file, folder)

    def restore() -> None:
        for file in server.folder.glob("g.db*"):
            file.unlink()
        for file in folder.iterdir():
            shutil.copy(file, server.folder)

    return restore


async def test_a_log_that_lost_its_tail_answers_its_owner_with_a_new_epoch(
    launch: Launch, request: pytest.FixtureRequest
) -> None:
    """The database of an hour ago comes back, as a restore from a backup would bring it."""
    server = launch()
    session = fresh()
    async with server.client() as c:
        await c.run(session, "kept")
        server.terminate()
        await c.closed(timeout=20)
        view = c.view(session)
    assert await server.exited() == 0
    restore = backup(server, request)
    await server.restart()
    async with server.client() as c:
        c.views[session] = view
        await c.ok("attach", session_id=session, epoch=view.epoch, seq=view.seq)
        await c.run(session, "lost")
        server.kill()
        await c.closed()
    restore()
    await server.restart()
    async with server.client() as c:
        c.views[session] = view
        old = view.epoch
        attached = await c.ok("attach", session_id=session, epoch=old, seq=view.seq)
        assert attached["recovery"] == "snapshot"
        assert attached["epoch"] != old
        await c.until("snapshot", session_id=session, epoch=attached["epoch"])
        snapshot = await agree(server, c, session)
        assert [text_of(m) for m in snapshot["messages"] if m["role"] == "user"] == ["kept"]
        assert (await c.run(session, "goes on"))["status"] == "completed"
        await agree(server, c, session)
        server.kill()
        await c.closed()
    await server.restart()
    assert (await server.snapshot(session))["epoch"] == attached["epoch"], "the new epoch was stored first"
