"""Frames, good and bad: a wrong command gets an error and the connection stays."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.support import Server, fresh


@pytest.mark.parametrize(
    "raw",
    ["", "{", "nonsense", "[]", '[{"type":"ping"}]', "7", '"ping"', "null", "true", b"\x00\x01", b'{"type":"ping"}'],
    ids=repr,
)
async def test_what_is_no_json_object_is_a_bad_frame(server: Server, raw: str | bytes) -> None:
    async with server.client() as c:
        await c.send_raw(raw)
        error = await c.until("error")
        assert error["code"] == "bad_frame"
        await c.barrier()


@pytest.mark.parametrize("raw", ["[" * 100_000, '{"type":' * 20_000, '{"type":"ping","x":NaN}', '{"type":"ping"} x'])
async def test_hostile_json_gets_an_error_and_nothing_breaks(server: Server, raw: str) -> None:
    async with server.client() as c:
        await c.send_raw(raw)
        await c.until("error")
        await c.barrier()


@pytest.mark.parametrize("kind", ["no-such-command", "welcome", "text-delta", ""])
async def test_an_unknown_type_is_named_so(server: Server, kind: str) -> None:
    async with server.client() as c:
        await c.fails("unknown_type", kind)
        await c.barrier()


@pytest.mark.parametrize("frame", [{}, {"type": 7}, {"type": None}])
async def test_an_object_without_a_proper_type_gets_an_error(server: Server, frame: dict[str, Any]) -> None:
    async with server.client() as c:
        await c.send({**frame, "id": "x-1"})
        assert (await c.until("error"))["code"] in ("unknown_type", "invalid", "bad_frame")
        await c.barrier()


@pytest.mark.parametrize(
    ("kind", "fields", "field"),
    [
        ("prompt", {"text": 7}, "text"),
        ("prompt", {"text": "x", "on_busy": "perhaps"}, "on_busy"),
        ("prompt", {"text": "x", "on_disconnect": 1}, "on_disconnect"),
        ("prompt", {"text": "x", "grace_s": "soon"}, "grace_s"),
        ("prompt", {"text": "x", "deadline_s": "never"}, "deadline_s"),
        ("prompt", {"text": "x", "on_lost": "find"}, "on_lost"),
        ("prompt", {"messages": "x"}, "messages"),
        ("prompt", {"text": "x", "session_id": "bad id"}, "session_id"),
        ("resume", {}, "session_id"),
        ("attach", {}, "session_id"),
        ("attach", {"session_id": "s", "role": "king"}, "role"),
        ("attach", {"session_id": "s", "seq": "first"}, "seq"),
        ("attach", {"session_id": "s", "seq": -1}, "seq"),
        ("detach", {}, "session_id"),
        ("detach", {"session_id": "s", "run": "maybe"}, "run"),
        ("respond", {"session_id": "s", "request_id": "r"}, "decision"),
        ("respond", {"session_id": "s", "decision": "allow"}, "request_id"),
        ("respond", {"session_id": "s", "request_id": "r", "decision": "later"}, "decision"),
        ("history", {}, "session_id"),
        ("history", {"session_id": "s", "limit": "all"}, "limit"),
        ("watch", {}, "on"),
        ("watch", {"on": "loudly"}, "on"),
        ("abort", {"session_id": 7}, "session_id"),
    ],
)
async def test_a_wrong_field_is_invalid_and_named(
    server: Server, kind: str, fields: dict[str, Any], field: str
) -> None:
    async with server.client() as c:
        error = await c.fails("invalid", kind, **fields)
        assert field in error["message"]
        assert error["retryable"] is False
        await c.barrier()


async def test_a_frame_over_the_limit_is_too_large_and_the_connection_stays(server: Server) -> None:
    async with server.client() as c:
        limit = c.welcome["limits"]["max_frame_bytes"]
        await c.send({"type": "prompt", "text": "x" * (limit + 1)})
        assert (await c.until("error"))["code"] == "too_large"
        await c.barrier()


async def test_a_frame_just_under_the_limit_is_served(server: Server) -> None:
    async with server.client() as c:
        limit = c.welcome["limits"]["max_frame_bytes"]
        frame = {"type": "prompt", "id": fresh(), "text": ""}
        frame["text"] = "x" * (limit - len(json.dumps(frame)) - 1)
        await c.send(frame)
        assert (await c.reply(frame["id"]))["type"] == "ack"


async def test_twenty_bad_frames_in_a_row_close_with_4400(server: Server) -> None:
    async with server.client() as c:
        for _ in range(20):
            await c.send_raw("nonsense")
        assert await c.closed() == 4400
        assert {f["code"] for f in c.frames if f["type"] == "error"} == {"bad_frame"}


async def test_nineteen_bad_frames_and_a_good_one_begin_the_count_anew(server: Server) -> None:
    async with server.client() as c:
        for _ in range(3):
            for _ in range(19):
                await c.send_raw("nonsense")
            await c.barrier()
        assert sum(f["type"] == "error" for f in c.frames) == 57


@pytest.mark.parametrize("command_id", ["a", "ü" * 64, "x" * 128])
async def test_the_reply_echoes_the_id(server: Server, command_id: str) -> None:
    async with server.client() as c:
        assert (await c.ok("ping", id=command_id)) == {"type": "pong", "id": command_id}


@pytest.mark.parametrize("command_id", ["", "x" * 129, 7, None, ["a"]])
async def test_an_id_that_is_no_string_of_1_to_128_is_invalid(server: Server, command_id: Any) -> None:
    async with server.client() as c:
        await c.send({"type": "history", "session_id": fresh(), "id": command_id})
        error = await c.until("error")
        if command_id is not None:
            assert error["code"] == "invalid"
            assert "id" in error["message"]
        await c.barrier()


async def test_an_error_echoes_the_id(server: Server) -> None:
    async with server.client() as c:
        assert (await c.fails("session_not_found", "attach", session_id=fresh(), id="mine"))["id"] == "mine"


async def test_ping_without_an_id_gets_a_pong_without_one(server: Server) -> None:
    async with server.client() as c:
        await c.send({"type": "ping"})
        assert (await c.until("pong")).get("id") is None


async def test_every_server_message_is_one_json_text_object(server: Server) -> None:
    async with server.client() as c:
        await c.run(fresh())
        assert all(isinstance(m, str) and json.loads(m)["type"] for m in c.messages)


async def test_bad_frames_of_one_connection_do_not_touch_another(server: Server) -> None:
    session = fresh()
    async with server.client() as good, server.client() as bad:
        await good.holding(session)
        for _ in range(20):
            await bad.send_raw(b"\xff\xfe")
        assert await bad.closed() == 4400
        await good.ok("abort", session_id=session)
        await good.until("run-finish", session_id=session, status="aborted")


async def test_unknown_commands_before_any_hello_do_not_end_the_connection(server: Server) -> None:
    async with server.client(hello=False) as c:
        await c.send_raw("nonsense")
        assert (await c.until("error"))["code"] == "bad_frame"
        await c.barrier()
