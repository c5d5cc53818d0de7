"""Abort: two phases, one order, one error, and a session that goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ABORT_ERROR, Server, after_abort, agree, check_log, fresh, of_run, spec, text_of, types

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {"abort_grace": 0.5}


async def test_an_abort_in_mid_text_keeps_the_text_and_closes_in_order(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("words", words=100_000, delay=0.002))
        for _ in range(5):
            await c.until("text-delta", session_id=session)
        done = await c.ok("abort", session_id=session, reason="changed my mind")
        assert done["command"] == "abort"
        assert done["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        finish = await c.until("run-finish", session_id=session)
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert (asked["reason"], asked["detail"]) == ("user", "changed my mind")
        closing = [t for t in types(after_abort(c.events(session), ack["run_id"])) if t != "step-finish"]
        assert closing == ["text-end", "message-finish", "run-finish"]
        assert finish == {**finish, "status": "aborted", "reason": "user", "error": ABORT_ERROR, "settled": True}
        snapshot = await agree(server, c, session)
        answer = snapshot["messages"][-1]
        assert answer["error"] == ABORT_ERROR
        assert answer["usage"] is None
        seen = "".join(e["text"] for e in c.events(session) if e["type"] == "text-delta")
        assert text_of(answer) == seen
        assert answer["parts"][0]["state"] == "done"
        assert snapshot["resumable"] is True
        check_log(c.events(session))


async def test_what_the_engine_yields_after_the_abort_is_dropped(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("late"))
        await c.until("text-delta", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        answer = (await agree(server, c, session))["messages"][-1]
        assert [(p["type"], p["text"]) for p in answer["parts"]] == [("text", "before")]
        assert "text-delta" not in types(after_abort(c.events(session), ack["run_id"]))
        check_log(c.events(session))


async def test_an_abort_of_an_idle_session_is_an_empty_ack(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        assert (await c.ok("abort", session_id=session))["runs"] == []


async def test_an_abort_of_everything_where_nothing_runs_is_an_empty_ack(server: Server) -> None:
    async with server.client() as c:
        ack = await c.ok("abort")
        assert (ack["type"], ack["runs"]) == ("ack", [])


async def test_an_abort_of_an_unknown_session_is_session_not_found(server: Server) -> None:
    async with server.client() as c:
        await c.fails("session_not_found", "abort", session_id=fresh())


async def test_a_repeated_abort_is_already_requested(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("stubborn"))
        await c.until("text-delta", session_id=session)
        assert [r["state"] for r in (await c.ok("abort", session_id=session))["runs"]] == ["requested"]
        again = await c.ok("abort", session_id=session)
        assert again["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "already_requested"}]
        await c.until("run-finish", session_id=session)
        assert types(c.events(session)).count("abort-requested") == 1
        check_log(c.events(session))


async def test_two_aborts_at_once_make_one(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.holding(session)
        await a.send({"type": "abort", "session_id": session, "id": "abort-a"})
        await b.send({"type": "abort", "session_id": session, "id": "abort-b"})
        replies = [await a.reply("abort-a"), await b.reply("abort-b")]
        states = [r["state"] for reply in replies for r in reply["runs"]]
        assert states.count("requested") == 1
        await a.until("run-finish", session_id=session)
        check_log(a.events(session))


async def test_an_abort_by_run_id_stops_that_run_only(server: Server) -> None:
    one, two = fresh(), fresh()
    async with server.client() as c:
        first = await c.holding(one)
        await c.holding(two)
        ack = await c.ok("abort", run_id=first["run_id"])
        assert ack["runs"] == [{"session_id": one, "run_id": first["run_id"], "state": "requested"}]
        await c.until("run-finish", session_id=one)
        await c.barrier()
        assert "abort-requested" not in types(c.events(two))
        await c.ok("abort", session_id=two)
        await c.until("run-finish", session_id=two)


async def test_an_abort_by_command_id_stops_that_prompts_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.holding(session, fields={"id": fresh("p")})
        done = await c.ok("abort", command_id=ack["id"])
        assert done["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        assert (await c.until("run-finish", session_id=session))["status"] == "aborted"


async def test_an_abort_by_a_command_id_not_seen_yet_is_latched(server: Server) -> None:
    session, prompt_id = fresh(), fresh("p")
    async with server.client() as c:
        done = await c.ok("abort", command_id=prompt_id)
        assert [r["state"] for r in done["runs"]] == ["latched"]
        ack = await c.prompt(session, spec("words", words=100_000, delay=0.002), id=prompt_id)
        finish = await c.until("run-finish", session_id=session)
        assert (finish["run_id"], finish["status"], finish["error"]) == (ack["run_id"], "aborted", ABORT_ERROR)
        check_log(c.events(session))
        snapshot = await agree(server, c, session)
        assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant"]
        assert (await c.run(session, "again"))["status"] == "completed", "the latch was for that prompt alone"


async def test_an_abort_after_the_end_is_too_late(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, id=(prompt_id := fresh("p")))
        by_run = await c.ok("abort", run_id=finish["run_id"])
        assert [(r["run_id"], r["state"]) for r in by_run["runs"]] == [(finish["run_id"], "too_late")]
        by_command = await c.ok("abort", command_id=prompt_id)
        assert [r["state"] for r in by_command["runs"]] == ["too_late"]
        await c.barrier()
        assert types(c.events(session))[-1] == "run-finish"


async def test_an_abort_with_nothing_stops_every_run_of_the_owned_sessions(server: Server, gate: Path) -> None:
    mine = [fresh() for _ in range(3)]
    other = fresh()
    async with server.client() as c, server.client() as d:
        runs = {s: (await c.holding(s))["run_id"] for s in mine}
        await d.holding(other, gate=str(gate))
        await c.ok("attach", session_id=other, role="observer")
        done = await c.ok("abort")
        assert {(r["session_id"], r["run_id"], r["state"]) for r in done["runs"]} == {
            (s, r, "requested") for s, r in runs.items()
        }
        for session in mine:
            await c.idle(session)
        gate.touch()
        assert (await d.until("run-finish", session_id=other))["status"] == "completed"


async def test_queued_prompts_go_with_the_session(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        queued = [await c.prompt(session, f"later {n}", on_busy="queue") for n in range(2)]
        done = await c.ok("abort", session_id=session)
        states = {r["run_id"]: r["state"] for r in done["runs"]}
        assert [states[q["run_id"]] for q in queued] == ["dequeued", "dequeued"]
        finish = await c.until("run-finish", session_id=session)
        assert finish["status"] == "aborted"
        gone = [e for e in c.events(session) if e["type"] == "dequeued"]
        assert [(e["run_id"], e["reason"]) for e in gone] == [(q["run_id"], "abort") for q in queued]
        snapshot = await agree(server, c, session)
        assert snapshot["queue"] == []
        assert len(snapshot["messages"]) == 2
        check_log(c.events(session))


async def test_one_queued_prompt_can_be_taken_out(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session, gate=str(gate))
        out = await c.prompt(session, "out", on_busy="queue")
        stays = await c.prompt(session, "stays", on_busy="queue")
        done = await c.ok("abort", command_id=out["id"])
        assert done["runs"] == [{"session_id": session, "run_id": out["run_id"], "state": "dequeued"}]
        assert (await c.until("dequeued", run_id=out["run_id"]))["reason"] == "abort"
        gate.touch()
        assert (await c.until("run-finish", run_id=stays["run_id"]))["status"] == "completed"
        assert "abort-requested" not in types(c.events(session))
        check_log(c.events(session))
        await agree(server, c, session)


async def test_an_abort_by_run_id_leaves_the_queue(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        live = await c.holding(session)
        later = await c.prompt(session, "later", on_busy="queue")
        await c.ok("abort", run_id=live["run_id"])
        assert (await c.until("run-finish", run_id=live["run_id"]))["status"] == "aborted"
        assert (await c.until("run-finish", run_id=later["run_id"]))["status"] == "completed"
        check_log(c.events(session))


@pytest.mark.parametrize("do", ["stubborn", "hang", "hanging"])
async def test_an_engine_that_ignores_abort_is_cancelled_after_the_grace(server: Server, do: str) -> None:
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec(do))
        await c.until("message-start", session_id=session)
        await c.ok("abort", session_id=session)
        finish = await c.until("run-finish", session_id=session, timeout=5)
        assert (finish["status"], finish["error"]) == ("aborted", ABORT_ERROR)
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert 400 <= finish["time"] - asked["time"] < 3000
        check_log(c.events(session))
        await agree(server, c, session)
        assert (await c.run(session, "again"))["status"] == "completed"


async def test_status_is_aborting_between_request_and_end(server: Server) -> None:
    session = fresh()
    async with server.client() as c, server.client() as d:
        await c.prompt(session, spec("stubborn"))
        await c.until("text-delta", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("abort-requested", session_id=session)  # from here on it is what everybody sees, wherever
        assert (await d.ok("attach", session_id=session, role="observer"))["status"] == "aborting"
        await c.until("run-finish", session_id=session)


async def test_a_running_tool_is_interrupted_and_a_finished_one_keeps_its_result(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("tool_running", text=True))
        await c.until("custom", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        errors = [e for e in after_abort(c.events(session), ack["run_id"]) if e["type"] == "tool-error"]
        assert [(e["interrupted"], e["outcome"]) for e in errors] in ([(True, "interrupted")], [(True, "unknown")])
        answer = (await agree(server, c, session))["messages"][-1]
        done, cut = (p for p in answer["parts"] if p["type"] == "tool")
        assert (done["state"], done["output"]) == ("output-available", "done")
        assert (cut["state"], cut["interrupted"]) == ("output-error", True)
        check_log(c.events(session))


@pytest.mark.parametrize("do", ["tool_called", "tool_input"])
async def test_a_tool_that_never_started_is_not_run(server: Server, do: str) -> None:
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec(do))
        await c.until("tool-call" if do == "tool_called" else "tool-input-delta", session_id=session)
        await c.ok("abort", session_id=session)
        await c.until("run-finish", session_id=session)
        tool = (await agree(server, c, session))["messages"][-1]["parts"][0]
        assert (tool["state"], tool["interrupted"], tool["outcome"]) == ("output-error", True, "not_run")
        if do == "tool_input":
            assert tool["raw_input"] == '{"half'
        check_log(c.events(session))


async def test_an_abort_needs_no_attachment(server: Server) -> None:
    session = fresh()
    async with server.client() as c, server.client() as d:
        ack = await c.holding(session)
        done = await d.ok("abort", session_id=session)
        assert done["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
        await c.until("run-finish", session_id=session, status="aborted")
        assert not [f for f in d.frames if f["type"] == "attached"]


async def test_after_an_abort_the_next_prompt_works(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        for _ in range(5):
            await c.holding(session)
            await c.ok("abort", session_id=session)
            await c.until("run-finish", session_id=session, status="aborted")
            assert (await c.run(session, "again"))["status"] == "completed"
        check_log(c.events(session))
        await agree(server, c, session)


async def test_an_abort_right_behind_its_prompt_never_hangs(server: Server) -> None:
    async with server.client() as c:
        for _ in range(20):
            session, prompt_id, abort_id = fresh(), fresh("p"), fresh("a")
            await c.send({"type": "prompt", "id": prompt_id, "session_id": session, "text": spec("hold")})
            await c.send({"type": "abort", "id": abort_id, "command_id": prompt_id})
            ack = await c.reply(prompt_id)
            done = await c.reply(abort_id)
            assert {r["state"] for r in done["runs"]} <= {"requested", "latched"}
            assert len(done["runs"]) == 1
            finish = await c.until("run-finish", run_id=ack["run_id"])
            assert (finish["status"], finish["error"]) == ("aborted", ABORT_ERROR)
            check_log(c.events(session))


async def test_racing_aborts_and_ends_give_exactly_one_verdict(server: Server) -> None:
    """Abort wins before the final commit, later it is too late: the ack's state and the run's end agree."""
    async with server.client() as c:
        for n in range(30):
            session = fresh()
            ack = await c.prompt(session, spec("words", words=5, delay=0.001))
            for _ in range(n % 10):
                await c.barrier()
            done = await c.ok("abort", run_id=ack["run_id"])
            [verdict] = done["runs"]
            finish = await c.until("run-finish", run_id=ack["run_id"])
            expected = {"requested": "aborted", "too_late": "completed"}[verdict["state"]]
            assert finish["status"] == expected, (verdict, json.dumps(of_run(c.events(session), ack["run_id"])))
            check_log(c.events(session))
