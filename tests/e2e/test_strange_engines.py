"""Engines as people write them, and worse: one id for everything, shared objects, strangers in every field."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support import ABORT_ERROR, agree, check_log, fresh, spec, types

if TYPE_CHECKING:
    from tests.e2e.support import Server

MIB = 1024 * 1024
TYPES = [
    "custom",
    "retry",
    "text-start",
    "text-delta",
    "text-end",
    "step-start",
    "tool-input-start",
    "tool-input-delta",
    "tool-call",
    "approval-request",
    "approval-resolved",
    "tool-start",
    "tool-progress",
    "tool-error",
    "tool-result",
    "step-finish",
    "message-finish",
]


async def test_one_id_for_a_call_its_part_and_its_approval(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("same_ids"))
        check_log(c.events(session))
        snapshot = await agree(server, c, session)
    said, tool = snapshot["messages"][-1]["parts"]
    assert (said["text"], said["state"]) == ("I look. ", "done")
    assert (tool["state"], tool["output"]) == ("output-available", "seen")
    assert tool["approval"]["decision"] == "allow"


async def test_events_without_ids_continue_what_is_open(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("no_ids"))
        check_log(c.events(session))
        snapshot = await agree(server, c, session)
    own, tool, counted = snapshot["messages"][-1]["parts"]
    assert (own["part_id"], own["text"]) == ("own", "of its own")
    assert (tool["state"], tool["output"]) == ("output-available", "seen")
    assert counted["text"] == "012"


async def test_what_was_said_does_not_change_with_the_engines_objects(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("changes"))
        events = c.events(session)
        assert [e["data"]["n"] for e in events if e["type"] == "tool-progress"] == [1, 2, 3]
        snapshot = await agree(server, c, session)
        user, assistant = snapshot["messages"]
        assert len(user["parts"]) == 1
        assert (assistant["parts"][0]["input"], assistant["parts"][0]["output"]) == ({"n": 0}, {"n": 3})
        history = await c.ok("history", session_id=session)
        assert history["messages"] == snapshot["messages"]


@pytest.mark.parametrize("kind", [*TYPES, "all"])
async def test_the_wrong_thing_in_every_field_breaks_nothing(server: Server, kind: str) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("strange", types=TYPES if kind == "all" else [kind]))
        events = c.events(session)
        check_log(events)
        await agree(server, c, session)
        assert (await c.ok("history", session_id=session))["messages"]
    for event in events:
        assert not [name for name in event if name.startswith("_")], event
        usage = event.get("usage")
        assert usage is None or all(type(usage[name]) is int for name in ("input_tokens", "output_tokens")), event
        error: Any = event.get("error")
        if isinstance(error, dict):
            assert error["reason"] == "UnknownError"
            assert isinstance(error["code"], str | None)
            assert isinstance(error["status_code"], int | None)
            assert isinstance(error["retryable"], bool | None)


@pytest.mark.parametrize("how", ["exit", "generator-exit"])
async def test_an_engine_that_exits_ends_its_run_and_nothing_else(server: Server, how: str) -> None:
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session, spec("ends", how=how)))["status"] == "failed"
        check_log(c.events(session))
        assert (await c.run(session))["status"] == "completed"


@pytest.mark.parametrize("how", ["own-abort", "abort-error"])
async def test_an_engine_that_aborts_itself(server: Server, how: str) -> None:
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, spec("ends", how=how))
        assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "policy", ABORT_ERROR)
        events = c.events(session)
        check_log(events)
        assert next(e for e in events if e["type"] == "message-finish")["error"] == ABORT_ERROR
        assert "abort-requested" in types(events)


async def test_deltas_close_together_stay_within_1_mib(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("close_together"))
        assert max(map(len, c.messages)) <= MIB
        deltas = [e for e in c.events(session) if e["type"] == "text-delta"]
        assert sum(len(e["text"]) for e in deltas) == 1_090_000
        assert not [e for e in deltas if "_size" in e], "nothing of the inside on the wire"


async def test_an_approval_stays_within_1_mib(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.prompt(session, spec("asks_much"))
        asked = await c.until("approval-request", session_id=session)
        assert asked["truncated"] is True
        await c.ok("attach", session_id=session)
        await c.until("snapshot", session_id=session)
        assert max(map(len, c.messages)) <= MIB
        await c.ok("abort", session_id=session)
        await c.idle(session)
        check_log(c.events(session))
