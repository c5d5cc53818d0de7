"""A prompt to a busy session: reject, queue, interrupt, steer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.support import ABORT_ERROR, Server, agree, check_log, fresh, spec, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {"queue_limit": 3, "abort_grace": 0.5}


async def test_reject_is_the_default(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        await c.fails("session_busy", "prompt", session_id=session, text="next")
        await c.fails("session_busy", "prompt", session_id=session, text="next", on_busy="reject")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        assert types(c.events(session)).count("run-start") == 1


async def test_a_queue_runs_in_its_order(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session, gate=str(gate))
        acks = [await c.prompt(session, f"later {n}", on_busy="queue", id=fresh("p")) for n in range(3)]
        positions = [a["queued"] for a in acks]
        assert positions == [positions[0] + n for n in range(3)]
        queued = [await c.until("queued", run_id=a["run_id"]) for a in acks]
        assert [q["command_id"] for q in queued] == [a["id"] for a in acks]
        assert [text_of(q["message"]) for q in queued] == ["later 0", "later 1", "later 2"]
        waiting = await agree(server, c, session)
        assert [q["run_id"] for q in waiting["queue"]] == [a["run_id"] for a in acks]
        assert [text_of(q["message"]) for q in waiting["queue"]] == ["later 0", "later 1", "later 2"]
        assert len(waiting["messages"]) == 2
        gate.touch()
        for ack in acks:
            assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert "dequeued" not in types(c.events(session)), "a start removes it without a dequeued"
        starts = [e["run_id"] for e in c.events(session) if e["type"] == "run-start"]
        assert starts[1:] == [a["run_id"] for a in acks]
        final = await agree(server, c, session)
        assert final["queue"] == []
        assert [text_of(m) for m in final["messages"] if m["role"] == "user"][1:] == ["later 0", "later 1", "later 2"]
        check_log(c.events(session))


async def test_a_queue_prompt_to_an_idle_session_runs_at_once(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        ack = await c.prompt(session, "now", on_busy="queue")
        assert not ack.get("queued")
        await c.until("run-finish", run_id=ack["run_id"])
        assert "queued" not in types(c.events(session))


async def test_a_full_queue_is_queue_full(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        for n in range(3):
            await c.prompt(session, f"later {n}", on_busy="queue")
        await c.fails("queue_full", "prompt", session_id=session, text="too many", on_busy="queue")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        await agree(server, c, session)


async def test_interrupt_aborts_as_superseded_and_runs_next(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        old = await c.holding(session)
        new = await c.prompt(session, "instead", on_busy="interrupt")
        end = await c.until("run-finish", run_id=old["run_id"])
        assert (end["status"], end["reason"], end["error"]) == ("aborted", "superseded", ABORT_ERROR)
        assert (await c.until("run-finish", run_id=new["run_id"]))["status"] == "completed"
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert (asked["run_id"], asked["reason"]) == (old["run_id"], "superseded")
        order = [(e["type"], e["run_id"]) for e in c.events(session)]
        assert order.index(("run-finish", old["run_id"])) < order.index(("run-start", new["run_id"]))
        check_log(c.events(session))
        await agree(server, c, session)


async def test_interrupts_run_before_what_is_queued_in_their_order(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        first = await c.prompt(session, spec("stubborn"))
        await c.until("text-delta", session_id=session)
        later = await c.prompt(session, "queued", on_busy="queue")
        one = await c.prompt(session, "interrupt one", on_busy="interrupt")
        two = await c.prompt(session, "interrupt two", on_busy="interrupt")
        assert (await c.until("run-finish", run_id=later["run_id"], timeout=20))["status"] == "completed"
        starts = [e["run_id"] for e in c.events(session) if e["type"] == "run-start"]
        assert starts == [a["run_id"] for a in (first, one, two, later)]
        check_log(c.events(session))
        await agree(server, c, session)


async def test_interrupt_of_an_idle_session_just_runs(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        assert (await c.run(session, "now", on_busy="interrupt"))["status"] == "completed"
        assert "abort-requested" not in types(c.events(session))


async def test_steer_is_unsupported_where_the_agent_cannot(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        await c.fails("unsupported", "prompt", session_id=session, text="left!", on_busy="steer")
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        check_log(c.events(session))
