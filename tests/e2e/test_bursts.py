"""What arrives together: an abort right behind its prompt, a close right behind an abort, very many attaches."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ABORT_ERROR, fresh, spec

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.support import Server

MIB = 1024 * 1024


@pytest.mark.parametrize("scope", ["everything", "session"])
async def test_an_abort_behind_its_prompt_stops_it_in_an_old_session_too(server: Server, scope: str) -> None:
    async with server.client() as c:
        for _ in range(10):
            session, prompt_id, abort_id = fresh(), fresh("p"), fresh("a")
            await c.run(session)
            await c.send({"type": "prompt", "id": prompt_id, "session_id": session, "text": spec("hold")})
            await c.send({"type": "abort", "id": abort_id, **({"session_id": session} if scope == "session" else {})})
            ack = await c.reply(prompt_id)
            done = await c.reply(abort_id)
            assert done["runs"] == [{"session_id": session, "run_id": ack["run_id"], "state": "requested"}]
            finish = await c.until("run-finish", run_id=ack["run_id"])
            assert (finish["status"], finish["error"]) == ("aborted", ABORT_ERROR)


async def test_an_abort_behind_another_prompt_stops_what_runs_once(server: Server) -> None:
    first, second = fresh(), fresh()
    async with server.client() as c:
        running = await c.holding(first)
        prompt_id, abort_id = fresh("p"), fresh("a")
        await c.send({"type": "prompt", "id": prompt_id, "session_id": second, "text": spec("hold")})
        await c.send({"type": "abort", "id": abort_id})
        ack, done = await c.reply(prompt_id), await c.reply(abort_id)
        assert [(r["run_id"], r["state"]) for r in done["runs"]] == [
            (running["run_id"], "requested"),
            (ack["run_id"], "requested"),
        ]


async def test_an_abort_takes_effect_although_its_sender_leaves_at_once(server: Server) -> None:
    session = fresh()
    async with server.client() as watcher:
        async with server.client() as c:
            await c.prompt(session, spec("words", words=100_000), on_disconnect="continue")
            await c.until("text-delta", session_id=session)
            await watcher.ok("attach", session_id=session, role="observer")
            c.ws.protocol.send_text(json.dumps({"type": "abort", "session_id": session}).encode())
            c.ws.protocol.send_close(1000)
            c.ws.send_data()
            await c.closed()
        await watcher.idle(session)
        assert watcher.view(session).fold.messages[-1]["error"] == ABORT_ERROR
        snapshot = await server.snapshot(session)
        assert snapshot["resumable"] is True


async def test_a_latched_abort_outlives_a_refusal_of_its_prompt(server: Server) -> None:
    session, prompt_id = fresh(), fresh("p")
    async with server.client() as c:
        await c.holding(session)
        await c.ok("abort", command_id=prompt_id)
        await c.fails("session_busy", "prompt", id=prompt_id, session_id=session, text=spec("hold"))
        await c.ok("abort", session_id=session)
        await c.idle(session)
        ack = await c.prompt(session, spec("hold"), id=prompt_id)
        finish = await c.until("run-finish", run_id=ack["run_id"])
        assert finish["status"] == "aborted"


async def test_no_abort_of_a_flood_is_refused(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session)
        names = [fresh("unseen") for _ in range(2000)]
        for name in names:
            await c.send({"type": "abort", "id": name, "command_id": name})
        await c.send({"type": "abort", "id": "last", "session_id": session})
        for name in names:
            assert [run["state"] for run in (await c.reply(name))["runs"]] == ["latched"]
        assert [run["state"] for run in (await c.reply("last"))["runs"]] == ["requested"]
        await c.idle(session)


async def test_a_hello_with_thousands_of_attaches_is_answered(server: Server) -> None:
    sessions = [fresh() for _ in range(3)]
    async with server.client() as c:
        for session in sessions:
            await c.run(session)
    wanted = [{"session_id": sessions[n % 3]} for n in range(3000)]
    async with server.client(attach=wanted) as c:

        def answered() -> int:
            return sum(f["type"] == "attached" for f in c.frames)

        await c.reach(lambda: answered() == len(wanted), "every attach answered", timeout=30)


async def test_who_has_not_said_hello_hears_of_the_drain_after_the_welcome(launch: Launch) -> None:
    server = launch(args=["--drain", "30"])
    session = fresh()
    async with server.client() as c, server.client(hello=False) as silent:
        await c.holding(session)
        server.terminate()
        await c.until("goaway")
        await silent.greet()
        await silent.until("goaway")
        assert [f["type"] for f in silent.frames] == ["welcome", "goaway"]
        await c.ok("abort", session_id=session)
        assert await silent.closed() == 4100


async def test_a_prompt_at_the_limit_gives_events_within_1_mib(server: Server) -> None:
    session, prompt_id = fresh(), fresh("p")
    frame = {"type": "prompt", "id": prompt_id, "session_id": session, "text": ""}
    frame["text"] = "x" * (MIB - len(json.dumps(frame)))
    async with server.client() as c:
        await c.send(frame)
        assert (await c.reply(prompt_id))["type"] == "ack"
        await c.until("run-finish", session_id=session)
        assert max(map(len, c.messages)) <= MIB


async def test_a_snapshot_with_a_long_queue_stays_within_1_mib(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, "y" * 1_000_000)
        await c.holding(session)
        for _ in range(5):
            await c.prompt(session, "q" * 900_000, on_busy="queue")
        await c.ok("attach", session_id=session)
        snapshot = await c.until("snapshot", session_id=session)
        assert len(snapshot["queue"]) == 5
        assert len(c.messages[-1]) <= MIB
        await c.ok("abort", session_id=session)


@pytest.mark.parametrize("sent", [r'"\ud83d"', r'"half \udE00 an emoji, NaN"', r'"\\ud83d \ud83d"'])
async def test_half_an_emoji_is_replaced_not_refused(server: Server, sent: str) -> None:
    session, prompt_id = fresh(), fresh("p")
    async with server.client() as c:
        await c.send_raw(f'{{"type":"prompt","id":"{prompt_id}","session_id":"{session}","text":{sent}}}')
        assert (await c.reply(prompt_id))["type"] == "ack"
        added = await c.until("message-added", session_id=session)
        expected = json.loads(sent).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert added["message"]["parts"][0]["text"] == expected


async def test_a_body_that_is_nested_too_deeply_is_refused_as_such(server: Server) -> None:
    body = '{"text":"x","metadata":{"a":' + "[" * 300 + "]" * 300 + "}}"
    answer = await server.http("POST", f"/api/sessions/{fresh()}/prompt", body)
    assert (answer.status, answer.code) == (400, "bad_frame")


async def test_a_limit_with_leading_zeros_is_no_way_around_it(server: Server) -> None:
    answer = await server.http("GET", "/api/sessions?limit=000001000000")
    assert (answer.status, answer.code) == (422, "invalid")
