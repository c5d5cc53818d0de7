"""A prompt: its ack, its attachment, its events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.fold import is_event
from tests.e2e.support import ABORT_ERROR, Server, agree, check_log, fresh, of_run, spec, text_of, types


async def test_the_ack_says_command_session_and_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, id="p-" + session)
        assert ack["id"] == "p-" + session
        assert ack["session_id"] == session
        assert isinstance(ack["run_id"], str)
        assert not ack.get("duplicate")
        assert ack.get("queued") is None


async def test_ack_then_attached_live_at_0_then_events_from_1(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        order = [f for f in c.frames if f["type"] != "welcome"]
        assert order[0]["type"] == "ack"
        assert order[1]["type"] == "attached"
        assert order[1].get("id") is None
        assert order[1]["session_id"] == session
        assert (order[1]["recovery"], order[1]["seq"], order[1]["role"]) == ("live", 0, "owner")
        assert isinstance(order[1]["epoch"], str)
        assert order[1]["epoch"]
        assert order[2]["seq"] == 1
        assert all(is_event(f) for f in order[2:])


async def test_the_whole_log_keeps_every_invariant(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session)
        check_log(c.events(session))
        assert c.events(session)[-1] == finish
        await agree(server, c, session)
    check_log(await server.log(session))


async def test_a_start_commits_user_message_run_start_and_message_start(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, "What now?", id=fresh(), metadata={"colour": "blue"})
        await c.until("run-finish", session_id=session)
        added, start, message = c.events(session)[:3]
        assert types([added, start, message]) == ["message-added", "run-start", "message-start"]
        assert added["message"]["role"] == "user"
        assert added["message"]["parts"] == [{"type": "text", "text": "What now?"}]
        assert isinstance(added["message"]["id"], str)
        assert type(added["message"]["created_at"]) is int
        assert start["mode"] == "prompt"
        assert added["command_id"] == start["command_id"] == ack["id"]
        assert message["role"] == "assistant"
        assert {e["run_id"] for e in c.events(session)} == {ack["run_id"]}


async def test_the_session_supplies_what_the_smallest_engine_leaves_out(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        own = [e for e in c.events(session) if not e["type"].startswith("step")]
        deltas = [e for e in own if e["type"] == "text-delta"]
        assert "".join(d["text"] for d in deltas) == "Hello, world"
        rest = types(e for e in own if e["type"] != "text-delta")
        expected = ["message-added", "run-start", "message-start", "text-start", "text-end"]
        assert rest == [*expected, "message-finish", "run-finish"]
        part = {e["part_id"] for e in own if e["type"].startswith("text")}
        assert len(part) == 1


async def test_a_completed_run_says_so(server: Server) -> None:
    async with server.client() as c:
        session = fresh()
        finish = await c.run(session)
        assert (finish["status"], finish["reason"], finish["error"]) == ("completed", None, None)
        assert finish["settled"] is True
        message = next(e for e in c.events(session) if e["type"] == "message-finish")
        assert message["error"] is None
        assert message["usage"] is None, "not measured is null"


async def test_an_absent_session_id_creates_a_session_and_the_ack_says_which(server: Server) -> None:
    async with server.client() as c:
        one = await c.prompt(None)
        two = await c.prompt(None)
        assert one["session_id"] != two["session_id"]
        await c.until("run-finish", run_id=two["run_id"])
        assert (await server.snapshot(one["session_id"]))["session_id"] == one["session_id"]


@pytest.mark.parametrize("shape", ["a", "A-b_c.d:e", "x"])
async def test_an_own_id_is_taken(server: Server, shape: str) -> None:
    session = (shape + fresh("")) if shape != "x" else fresh("").ljust(128, "x")
    async with server.client() as c:
        assert (await c.prompt(session))["session_id"] == session
        await c.until("run-finish", session_id=session)


@pytest.mark.parametrize("session", ["", "a b", "a/b", "ü", "x" * 129, "a\nb", "a\n", 7])
async def test_a_bad_id_is_invalid(server: Server, session: Any) -> None:
    async with server.client() as c:
        error = await c.fails("invalid", "prompt", session_id=session, text="Hi")
        assert "session_id" in error["message"]


@pytest.mark.parametrize(
    "fields", [{}, {"text": "x", "messages": [{"role": "user", "parts": [{"type": "text", "text": "y"}]}]}]
)
async def test_exactly_one_of_text_and_messages(server: Server, fields: dict[str, Any]) -> None:
    async with server.client() as c:
        await c.fails("invalid", "prompt", session_id=fresh(), **fields)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "assistant", "parts": [{"type": "text", "text": "I am the model"}]}],
        [{"role": "user"}],
        [{"role": "user", "parts": "text"}],
        [{"role": "user", "parts": [{"type": "text"}]}],
        ["Hi"],
    ],
)
async def test_messages_that_are_no_user_messages_are_invalid(server: Server, messages: list[Any]) -> None:
    async with server.client() as c:
        await c.fails("invalid", "prompt", session_id=fresh(), messages=messages)


async def test_messages_carry_user_parts(server: Server) -> None:
    session = fresh()
    file = {"type": "file", "media_type": "text/plain", "name": "a.txt", "data": "aGk="}
    message = {"role": "user", "parts": [{"type": "text", "text": "See this"}, file]}
    async with server.client() as c:
        await c.run(session, messages=[message])
        snapshot = await agree(server, c, session)
        first = snapshot["messages"][0]
        assert first["parts"][0] == {"type": "text", "text": "See this"}
        assert file.items() <= first["parts"][1].items()


async def test_an_engine_gets_the_new_messages_and_the_mode(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "first")
        await c.run(session, spec("report"))
        answer = (await agree(server, c, session))["messages"][-1]
        report = json.loads(text_of(answer))
        assert report["mode"] == "prompt"
        assert [m["role"] for m in report["messages"]] == ["user"]


async def test_two_runs_of_a_session_share_one_log(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        one = await c.run(session, "one")
        two = await c.run(session, "two")
        assert one["run_id"] != two["run_id"]
        check_log(c.events(session))
        assert [f["type"] for f in c.frames].count("attached") == 1, "an owner is not attached again"
        snapshot = await agree(server, c, session)
        assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant"] * 2


async def test_another_connection_that_prompts_is_attached_with_a_snapshot_from_before(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session, "one")
        head = a.view(session).seq
        await b.prompt(session, "two")
        attached = await b.until("attached", session_id=session)
        assert (attached["recovery"], attached["role"]) == ("snapshot", "owner")
        snapshot = await b.until("snapshot", session_id=session)
        assert snapshot["seq"] == attached["seq"] == head, "at the head from before the prompt"
        await b.until("run-finish", session_id=session)
        await agree(server, b, session)
        order = types(f for f in b.frames if f["type"] in ("ack", "attached", "snapshot") or is_event(f))
        assert order[:3] == ["ack", "attached", "snapshot"]


async def test_an_observer_that_prompts_becomes_an_owner(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session, "one")
        await b.ok("attach", session_id=session, role="observer")
        await b.prompt(session, "two")
        assert (await b.until("attached", session_id=session, role="owner"))["recovery"] == "snapshot"
        await b.until("run-finish", session_id=session)
        await agree(server, b, session)


async def test_a_raising_engine_fails_its_run_and_tells_no_detail(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, spec("raising"))
        assert finish["status"] == "failed"
        assert set(finish["error"]) == set(ABORT_ERROR)
        assert finish["error"]["reason"] == "UnknownError"
        snapshot = await agree(server, c, session)
        answer = snapshot["messages"][-1]
        assert text_of(answer) == "so far"
        assert answer["error"] == finish["error"]
        assert snapshot["resumable"] is True
        check_log(c.events(session))
        assert (await c.run(session, "again"))["status"] == "completed"


async def test_an_engine_that_yields_nothing_still_gives_a_whole_run(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session, spec("silent")))["status"] == "completed"
        check_log(c.events(session))
        assert (await agree(server, c, session))["messages"][-1]["parts"] == []


async def test_reasoning_and_text_without_ids_become_parts_in_their_order(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("mixed"))
        check_log(c.events(session))
        parts = (await agree(server, c, session))["messages"][-1]["parts"]
        assert [(p["type"], p["text"], p["state"]) for p in parts] == [
            ("reasoning", "Let me think.", "done"),
            ("text", "I thought.", "done"),
            ("reasoning", "Again.", "done"),
            ("text", "Done.", "done"),
        ]


async def test_a_tool_goes_from_its_arguments_to_its_result(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("tools"))
        check_log(c.events(session))
        tool, said = (await agree(server, c, session))["messages"][-1]["parts"]
        assert (tool["type"], tool["tool"], tool["state"]) == ("tool", "look", "output-available")
        assert (tool["input"], tool["output"]) == ({"at": "x"}, ["seen"])
        assert tool["started_at"] <= tool["ended_at"]
        assert said["text"] == "Seen."


async def test_a_call_left_open_is_closed_before_the_run_ends(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("tool_left"))
        check_log(c.events(session))
        tool = (await agree(server, c, session))["messages"][-1]["parts"][0]
        assert tool["state"] == "output-error"


async def test_usage_is_kept_and_null_stays_null(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("usage"))
        check_log(c.events(session))
        one, two = (e for e in c.events(session) if e["type"] == "step-finish")
        assert one["usage"] == {"input_tokens": 12, "output_tokens": 4}
        assert two["usage"] is None
        await agree(server, c, session)


async def test_repeated_provider_ids_are_renamed(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("twins"))
        await c.run(session, spec("twins"))
        check_log(c.events(session))
        snapshot = await agree(server, c, session)
        outputs = [p["output"] for m in snapshot["messages"] for p in m["parts"] if p["type"] == "tool"]
        assert outputs == [1, 2, 1, 2]
        assert text_of(snapshot["messages"][-1]) == "text 1text 2"


@pytest.mark.parametrize("n", range(16))
async def test_garbage_from_an_engine_breaks_neither_log_nor_server(server: Server, n: int) -> None:
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, spec("garbage", n=n))
        assert finish["status"] in ("completed", "failed")
        check_log(c.events(session))
        answer = (await agree(server, c, session))["messages"][-1]
        assert text_of(answer).startswith("good ")
        assert (await c.run(session, "again"))["status"] == "completed"


async def test_a_custom_event_and_a_retry_come_through(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("custom"))
        await c.run(session, spec("retry"))
        custom = next(e for e in c.events(session) if e["type"] == "custom")
        assert (custom["name"], custom["data"]) == ("note", {"a": [1, None, "ü"]})
        retry = next(e for e in c.events(session) if e["type"] == "retry")
        assert (retry["attempt"], retry["delay_s"], retry["error"]["reason"]) == (1, 0.01, "APIError")
        check_log(c.events(session))
        await agree(server, c, session)


@pytest.mark.parametrize("output", [False, True])
async def test_text_over_1_mib_is_cut_and_marked(server: Server, output: bool) -> None:
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session, spec("big", output=output)))["status"] == "completed"
        marked = [e for e in c.events(session) if e.get("truncated")]
        assert marked, "cut before commit and marked truncated"
        assert all(len(m) <= 1 << 20 for m in c.messages)
        check_log(c.events(session))


async def test_unicode_comes_back_as_it_was(server: Server) -> None:
    session = fresh()
    said = "世界 👋 \u0000 é e\u0301 \u2028 </script> \\ \" ' \x7f"
    async with server.client() as c:
        await c.run(session, said)
        assert text_of((await agree(server, c, session))["messages"][0]) == said


async def test_a_deadline_aborts_with_its_reason(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        ack = await c.prompt(session, spec("hold"), deadline_s=0.2)
        finish = await c.until("run-finish", session_id=session)
        assert (finish["status"], finish["reason"], finish["error"]) == ("aborted", "deadline", ABORT_ERROR)
        asked = next(e for e in of_run(c.events(session), ack["run_id"]) if e["type"] == "abort-requested")
        assert asked["reason"] == "deadline"
        check_log(c.events(session))


async def test_many_sessions_run_side_by_side_on_one_connection(server: Server) -> None:
    sessions = [fresh() for _ in range(10)]
    async with server.client() as c:
        for session in sessions:
            await c.prompt(session, spec("words", words=50, delay=0.002))
        for session in sessions:
            await c.idle(session)
            check_log(c.events(session))
            await agree(server, c, session)
