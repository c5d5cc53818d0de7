"""`on_busy: "steer"`: a prompt given to the running agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.e2e.support import fresh

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Client, Server


async def _waiting(c: Client, session: str) -> str:
    ack = await c.prompt(session, "wait")
    await c.until("text-delta", run_id=ack["run_id"])
    run_id: str = ack["run_id"]
    return run_id


def _roles(c: Client, session: str) -> list[tuple[str, str | None]]:
    return [(m["role"], m.get("finish_reason")) for m in c.view(session).fold.messages]


async def test_a_steered_prompt_ends_the_message_and_is_answered_in_a_new_one(launch: Launch) -> None:
    server, session = launch("steerable:takes"), fresh()
    async with server.client() as c:
        run_id = await _waiting(c, session)
        ack = await c.prompt(session, "north", on_busy="steer")
        assert ack["run_id"] == run_id
        assert (await c.until("run-finish", run_id=run_id))["status"] == "completed"
        kinds = [e["type"] for e in c.events(session)]
        at = kinds.index("message-finish")
        assert kinds[at : at + 3] == ["message-finish", "message-added", "message-start"]
        assert _roles(c, session) == [("user", None), ("assistant", "steered"), ("user", None), ("assistant", "stop")]
        assert c.view(session).fold.messages[-1]["parts"][0]["text"] == "steered to north"
        assert (await server.snapshot(session))["messages"] == c.view(session).fold.messages


async def test_a_steered_prompt_is_done_once(launch: Launch) -> None:
    server, session = launch("steerable:takes"), fresh()
    async with server.client() as c:
        run_id = await _waiting(c, session)
        await c.prompt(session, "north", on_busy="steer", id="once")
        again = await c.prompt(session, "north", on_busy="steer", id="once")
        assert (again["run_id"], again["duplicate"]) == (run_id, True)


async def test_a_declined_prompt_runs_like_a_queued_one(launch: Launch) -> None:
    server, session = launch("steerable:declines"), fresh()
    async with server.client() as c:
        run_id = await _waiting(c, session)
        ack = await c.prompt(session, "north", on_busy="steer")
        assert ack["run_id"] != run_id
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert _roles(c, session) == [("user", None), ("assistant", "stop")] * 2


async def test_while_a_prompt_waits_to_be_taken_other_commands_go_on(launch: Launch) -> None:
    server, session, other = launch("steerable:takes"), fresh(), fresh()
    async with server.client() as c:
        await _waiting(c, session)
        await c.send({"type": "prompt", "id": "hangs", "session_id": session, "text": "hang", "on_busy": "steer"})
        assert (await c.run(other, "hi"))["status"] == "completed"
        await c.ok("abort", session_id=session)
        refused = await c.until("error", id="hangs")
        assert refused["code"] == "session_busy"
        assert refused["retryable"] is True


async def test_a_prompt_whose_run_is_interrupted_first_still_runs(launch: Launch) -> None:
    server, session = launch("steerable:takes"), fresh()
    async with server.client() as c:
        await _waiting(c, session)
        await c.send({"type": "prompt", "id": "late", "session_id": session, "text": "hang", "on_busy": "steer"})
        first = await c.prompt(session, "now", on_busy="interrupt")
        ack = await c.until("ack", id="late")
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        finished = [e["run_id"] for e in c.events(session) if e["type"] == "run-finish"]
        assert finished.index(first["run_id"]) < finished.index(ack["run_id"])


async def test_the_default_agent_is_steered_between_two_steps(launch: Launch, tmp_path: Path) -> None:
    server: Server = launch("", store=f"sqlite:///{tmp_path / 'g.db'}", scripted_pace=0)
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, "Count to 2")
        await c.until("tool-start", run_id=ack["run_id"])
        steered = await c.prompt(session, "What time is it?", on_busy="steer")
        assert steered["run_id"] == ack["run_id"]
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "completed"
        assert _roles(c, session) == [("user", None), ("assistant", "steered"), ("user", None), ("assistant", "stop")]
        first, second = (m for m in c.view(session).fold.messages if m["role"] == "assistant")
        assert [p["state"] for p in first["parts"] if p["type"] == "tool"] == ["output-available"]
        assert [p["tool"] for p in second["parts"] if p["type"] == "tool"] == ["time"]
