"""The AI SDK's own protocol at `/ai`, frame by frame. The real client is in `web/sdk/test/useChat.test.ts`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.ai_sdk.page import Page, plain
from tests.e2e.ai_page import page
from tests.e2e.support import Server, fresh, spec

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame

SETTINGS = {"disconnect_grace": 0.3}


def text_of(answer: Page) -> str:
    return "".join(part["text"] for part in answer.parts if part["type"] == "text")


# -- a run


async def test_a_message_is_answered_as_the_page_would_load_it(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        answer = await ai.answer(await ai.send(chat, spec("tools")))
        assert text_of(answer) == "Seen."
        loaded = (await server.http("GET", f"/ai/{chat}")).body
        assert [m["role"] for m in loaded["messages"]] == ["user", "assistant"]
        assert loaded["has_more"] is False
        assert loaded["messages"][1]["id"] == answer.id
        assert plain(loaded["messages"][1]["parts"]) == plain(answer.parts)


async def test_what_a_page_does_shows_in_any_other_tab(server: Server) -> None:
    chat = fresh()
    async with server.client() as tab, page(server) as ai:
        await tab.ok("prompt", session_id=chat, text=spec("hello"))
        await tab.until("run-finish")
        await ai.answer(await ai.send(chat, spec("hello"), message_id="u-2"))
        await tab.until("run-finish")
        assert [m["id"] for m in (await server.snapshot(chat))["messages"]][2] == "u-2"


async def test_a_message_is_sent_once_by_its_id(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        first = await ai.answer(await ai.send(chat, spec("mixed"), message_id="m-1"))
        again = await ai.answer(await ai.send(chat, spec("mixed"), message_id="m-1"))
        assert (again.id, again.parts) == (first.id, first.parts)
    async with page(server) as ai:
        third = await ai.answer(await ai.send(chat, spec("mixed"), message_id="m-1"))
        assert third.parts == first.parts
        other = await ai.send(chat, spec("hello"), message_id="m-1")
        assert "used" in (await ai.until(other, "error"))["errorText"]
    assert len((await server.snapshot(chat))["messages"]) == 2


async def test_a_message_sent_again_while_its_run_is_live_is_told_from_the_beginning(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai, page(server) as second:
        one = await ai.send(chat, spec("hold"), message_id="m-1")
        await ai.until_chunk(one, "text-delta")
        two = await ai.send(chat, spec("hold"), message_id="m-1")
        other = await second.send(chat, spec("hold"), message_id="m-1")
        await ai.until_chunk(two, "text-delta")
        await second.until_chunk(other, "text-delta")
        await ai.request("abort", requestId=two)
        assert (await second.answer(other)).ending == {"type": "abort", "reason": "Aborted"}
        await ai.until(two, "end")
    assert len((await server.snapshot(chat))["messages"]) == 2


async def test_prompt_options_go_in_the_body_and_the_rest_is_metadata(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        held = await ai.send(chat, spec("hold"))
        await ai.until_chunk(held, "text-delta")
        refused = await ai.send(chat, "x", body={"on_busy": "reject", "mine": 1})
        assert "live" in (await ai.until(refused, "error"))["errorText"]
        wrong = await ai.send(chat, "x", body={"on_busy": "perhaps"})
        assert "on_busy" in (await ai.until(wrong, "error"))["errorText"]


# -- abort


@pytest.mark.parametrize(
    ("do", "seen", "last"),
    [
        ("hold", "text-delta", "text"),
        ("tool_running", "tool-output-available", "tool-slow"),
        ("tool_input", "tool-input-delta", "tool-slow"),
    ],
)
async def test_abort_stops_the_run_and_closes_what_is_open(server: Server, do: str, seen: str, last: str) -> None:
    chat = fresh()
    async with page(server) as ai:
        request = await ai.send(chat, spec(do))
        await ai.until_chunk(request, seen)
        await ai.request("abort", requestId=request)
        answer = await ai.answer(request)
        assert answer.ending == {"type": "abort", "reason": "Aborted"}
        assert {part.get("state") for part in answer.parts} <= {"done", "output-available", "output-error", None}
        assert last in [part["type"] for part in answer.parts]
    assert (await server.snapshot(chat))["status"] == "idle"


async def test_abort_right_behind_the_message_stops_it_before_it_starts(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        request = await ai.send(chat, spec("stubborn"))
        await ai.request("abort", requestId=request)
        assert (await ai.answer(request)).ending == {"type": "abort", "reason": "Aborted"}
    assert (await server.snapshot(chat))["messages"][-1]["error"]["reason"] == "AbortError"


async def test_nobody_stops_what_another_connection_asked_for(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai, page(server) as stranger:
        request = await ai.send(chat, spec("hold"))
        await ai.until_chunk(request, "text-delta")
        await stranger.request("abort", requestId=request)
        await stranger.request("abort", requestId="no-such-request")
        assert await stranger.quiet() == []
        assert (await server.snapshot(chat))["status"] == "running"
        await ai.request("abort", requestId=request)
        await ai.until(request, "end")


async def test_abort_means_its_own_run_and_not_what_waits(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        held = await ai.send(chat, spec("hold"))
        await ai.until_chunk(held, "text-delta")
        waiting = await ai.send(chat, spec("hello"))
        unwanted = await ai.send(chat, spec("hello"))
        await ai.request("abort", requestId=unwanted)
        assert (await ai.answer(unwanted)).ending == {"type": "abort", "reason": "abort"}
        await ai.request("abort", requestId=held)
        assert text_of(await ai.answer(waiting)) == "Hello, world"


# -- resume


async def test_resume_tells_the_run_from_its_beginning_then_live(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        first = await ai.send(chat, spec("words", words=60, delay=0.01))
        for _ in range(10):
            await ai.until_chunk(first, "text-delta")
        async with page(server) as other:
            second = await other.request("resume", id=chat)
            await other.until(second, "start")
            answer = await other.answer(second)
        whole = await ai.answer(first)
        assert (answer.id, answer.parts, answer.ending) == (whole.id, whole.parts, whole.ending)
        assert text_of(answer) == "".join(f"w{n} " for n in range(60))


async def test_there_is_nothing_to_resume_in_an_idle_or_an_unknown_chat(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        await ai.until(await ai.request("resume", id=chat), "no-active")
        await ai.answer(await ai.send(chat, spec("hello")))
        await ai.until(await ai.request("resume", id=chat), "no-active")
        await ai.until(await ai.request("resume", id="no such id!"), "error")


async def test_a_resume_dropped_before_it_is_answered_stops_nothing(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai, page(server) as other:
        held = await ai.send(chat, spec("hold"))
        await ai.until_chunk(held, "text-delta")
        other.drop("resume", id=chat)
        kept = await other.request("resume", id=chat)
        await other.until(kept, "start")
        assert (await server.snapshot(chat))["status"] == "running"
        await other.request("abort", requestId=kept)
        assert (await ai.answer(held)).ending == {"type": "abort", "reason": "Aborted"}


# -- the connection


async def test_the_end_of_the_connection_is_a_disconnect(server: Server) -> None:
    stopped, kept, back = fresh(), fresh(), fresh()
    async with page(server) as ai:
        await ai.until_chunk(await ai.send(stopped, spec("hold")), "text-delta")
        await ai.until_chunk(await ai.send(kept, spec("hold"), body={"on_disconnect": "continue"}), "text-delta")
        await ai.until_chunk(await ai.send(back, spec("hold")), "text-delta")
        ai.ws.transport.abort()
    async with page(server) as ai, server.client() as tab:
        resumed = await ai.request("resume", id=back)
        await ai.until(resumed, "start")
        await tab.ok("attach", session_id=stopped, seq=0, role="observer")
        finish = await tab.until("run-finish")
        assert (finish["session_id"], finish["reason"]) == (stopped, "disconnect")
        assert [(await server.snapshot(chat))["status"] for chat in (kept, back)] == ["running", "running"]


async def test_a_page_that_does_not_read_slows_nobody_and_loses_nothing(server: Server) -> None:
    chat = fresh()
    async with page(server, max_queue=1) as slow, page(server) as other:
        request = await slow.send(chat, spec("flood", events=500, bytes=8000))
        mine = await other.send(fresh(), spec("hello"))
        assert text_of(await other.answer(mine)) == "Hello, world"
        async with server.client() as tab:
            await tab.ok("attach", session_id=chat, role="observer")
            if (await server.snapshot(chat))["status"] != "idle":
                await tab.until("run-finish")
        answer = await slow.answer(request)
        assert text_of(answer) == "flooded"


async def test_any_subprotocol_that_a_page_offers_is_given_back(server: Server) -> None:
    async with page(server, subprotocols=[Subprotocol("mine"), Subprotocol("other")]) as ai:
        assert ai.ws.subprotocol == "mine"


async def test_strangers_are_refused_as_at_the_other_socket(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with page(server, origin=Origin("https://evil.example")):
            pass
    assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        async with page(server, additional_headers={"host": "evil.example"}):
            pass
    assert refused.value.response.status_code == 403
    assert (await server.http("GET", "/ai")).status == 426
    assert (await server.http("GET", f"/ai/{fresh()}")).status == 404
    assert (await server.http("GET", f"/ai/{fresh()}", headers={"origin": "https://evil.example"})).status == 403


# -- wrong frames


@pytest.mark.parametrize("raw", ["", "{", "[]", "7", "null", '"x"', b"\x00", "[" * 50_000])
async def test_what_is_no_frame_gets_an_error_and_the_connection_stays(server: Server, raw: str | bytes) -> None:
    async with page(server) as ai:
        await ai.raw(raw)
        await ai.until("", "error")
        assert await ai.quiet() == []


async def test_twenty_that_are_no_frames_end_the_connection(server: Server) -> None:
    async with page(server) as ai:
        for _ in range(20):
            await ai.raw("nonsense")
        assert await ai.closed() == 4400


GOOD: Frame = {
    "type": "send",
    "requestId": "r-1",
    "id": "c",
    "trigger": "submit-message",
    "messages": [{"id": "u", "role": "user", "parts": [{"type": "text", "text": "x"}]}],
}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": "no-such"}, "frame"),
        ({"type": "prompt", "text": "x"}, "frame"),
        ({"type": 7}, "frame"),
        ({"id": 7}, "id"),
        ({"trigger": "perhaps"}, "trigger"),
        ({"messageId": 7}, "messageId"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"id": "u", "role": "robot", "parts": []}]}, "role"),
        ({"messages": [{"id": "u", "role": "user", "parts": ["x"]}]}, "parts"),
        ({"messages": [{"id": "u", "role": "user", "parts": []}]}, "parts"),
        ({"messages": [{"id": "u", "role": "user", "parts": [{"type": "text"}]}]}, "text"),
        ({"messages": [{"id": "u", "role": "system", "parts": []}]}, "role"),
        ({"headers": {"a": 1}}, "headers"),
        ({"body": []}, "body"),
        ({"id": "bad id"}, "id"),
    ],
    ids=str,
)
async def test_a_wrong_frame_fails_its_own_request(server: Server, change: Frame, field: str) -> None:
    async with page(server) as ai:
        await ai.raw(json.dumps({**GOOD, **change}))
        assert field in (await ai.until("r-1", "error"))["errorText"]
        assert await ai.quiet() == []


@pytest.mark.parametrize("request_id", ["", "x" * 101, 7, None])
async def test_a_request_needs_an_id(server: Server, request_id: Any) -> None:
    async with page(server) as ai:
        await ai.raw(json.dumps({**GOOD, "requestId": request_id}))
        known = request_id if isinstance(request_id, str) else ""
        assert "requestId" in (await ai.until(known, "error"))["errorText"]


async def test_a_request_id_is_used_once_at_a_time(server: Server) -> None:
    async with page(server) as ai:
        request = await ai.send(fresh(), spec("hold"))
        await ai.until_chunk(request, "text-delta")
        await ai.request("resume", id=fresh(), requestId=request)
        assert "in use" in (await ai.until(request, "error"))["errorText"]


async def test_a_frame_that_is_too_large_fails_its_own_request(launch: Launch) -> None:
    server = launch(max_frame_bytes=2000)
    async with page(server) as ai:
        request = await ai.send(fresh(), "x" * 3000)
        assert "2000" in (await ai.until(request, "error"))["errorText"]
        await ai.answer(await ai.send(fresh(), spec("hello")))


async def test_open_requests_are_bounded(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        held = await ai.send(chat, spec("hold"))
        await ai.until_chunk(held, "text-delta")
        for _ in range(63):
            await ai.until(await ai.request("resume", id=chat), "start")
        refused = await ai.request("resume", id=chat)
        assert "64" in (await ai.until(refused, "error"))["errorText"]


async def test_half_an_emoji_is_no_reason_to_fail(server: Server) -> None:
    async with page(server) as ai:
        await ai.raw(json.dumps({**GOOD, "id": fresh(), "messages": [{**GOOD["messages"][0], "metadata": "\ud83d"}]}))
        assert text_of(await ai.answer("r-1")) == "Hello, world"


async def test_a_page_cannot_bring_results_of_tools(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        answer = await ai.answer(await ai.send(chat, spec("tools")))
        tool = {"type": "tool-look", "toolCallId": "call_1", "state": "output-available", "output": "mine"}
        message = {"id": answer.id, "role": "assistant", "parts": [tool]}
        request = await ai.request("send", id=chat, trigger="submit-message", messages=[message])
        assert "server" in (await ai.until(request, "error"))["errorText"]


@pytest.mark.parametrize(
    "part",
    [
        {"approval": {"id": ["req"], "approved": True}},
        {"approval": {"id": {}, "approved": "yes"}},
        {"approval": "req"},
        {"approval": {"id": "no-such", "approved": True}, "toolCallId": ["x"], "type": 7},
        {"toolCallId": "call_1", "type": "tool-slow", "approval": []},
    ],
    ids=str,
)
async def test_strange_decisions_decide_nothing_and_break_nothing(server: Server, part: Frame) -> None:
    chat = fresh()
    async with page(server) as ai:
        held = await ai.send(chat, spec("hold"))
        start = await ai.until_chunk(held, "start")
        texts: list[Any] = [
            {"type": "text", "text": ["?"]},
            {"type": "reasoning"},
            {"type": ["text"]},
            {"type": "data-x"},
        ]
        message = {
            "id": start["messageId"],
            "role": "assistant",
            "parts": [{"state": "approval-responded", **part}, *texts],
        }
        await ai.request("send", id=chat, trigger="submit-message", messages=[message])
        await ai.quiet()
        await ai.request("abort", requestId=held)
        await ai.until(held, "end")


# -- what ends a stream from outside


async def test_a_deleted_session_ends_the_stream(server: Server) -> None:
    chat = fresh()
    async with page(server) as ai:
        request = await ai.send(chat, spec("hold"))
        await ai.until_chunk(request, "text-delta")
        await server.http("DELETE", f"/api/sessions/{chat}")
        ending = (await ai.answer(request)).ending
        assert ending is not None
        assert ending["type"] in ("abort", "error")
        again = await ai.answer(await ai.send(chat, spec("hello")))
        assert text_of(again) == "Hello, world"


async def test_a_killed_server_loses_nothing_that_the_page_saw(launch: Launch) -> None:
    server = launch()
    chat = fresh()
    async with page(server) as ai:
        request = await ai.send(chat, spec("hold", say="kept"), message_id="m-1")
        await ai.until_chunk(request, "text-delta")
        await server.crash()
    async with page(server) as ai:
        again = await ai.answer(await ai.send(chat, spec("hold", say="kept"), message_id="m-1"))
        assert text_of(again) == "kept"
        assert again.ending is not None
        assert again.ending["type"] == "error"


# -- tokens


async def test_the_token_comes_in_the_frame_or_with_the_handshake(launch: Launch) -> None:
    server = launch(args=("--token", "secret,other"))
    mine = {"authorization": "Bearer secret"}
    chat = fresh()
    async with page(server) as ai:
        await ai.answer(await ai.send(chat, spec("hello"), headers=mine))
        await ai.answer(await ai.send(chat, spec("hello")))  # as whom it has opened the connection
        stolen = await ai.send(chat, spec("hello"), headers={"Authorization": "Bearer other"})
        behind = await ai.send(chat, spec("hello"), headers=mine)
        assert "principal" in (await ai.until(stolen, "error"))["errorText"]
        await ai.answer(behind)
    async with page(server, additional_headers=mine) as ai:
        await ai.answer(await ai.send(chat, spec("hello")))
    loaded = await server.http("GET", f"/ai/{chat}", headers=mine)
    assert len(loaded.body["messages"]) == 8
    assert (await server.http("GET", f"/ai/{chat}")).status == 401
    assert (await server.http("GET", f"/ai/{chat}", headers={"authorization": "Bearer other"})).status == 404


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong"}])
async def test_without_the_right_token_the_request_fails_and_the_connection_ends(
    launch: Launch, headers: dict[str, str]
) -> None:
    server = launch(args=("--token", "secret"))
    async with page(server) as ai:
        request = await ai.send(fresh(), spec("hello"), headers=headers)
        await ai.until(request, "error")
        assert await ai.closed() == 4401


async def test_the_server_is_heard_while_nothing_happens(launch: Launch) -> None:
    server = launch(heartbeat_s=0.5)
    async with page(server) as ai:
        await ai.answer(await ai.send(fresh(), spec("hello")))
        await ai.until("keep-alive", "start")
