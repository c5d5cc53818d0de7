"""``gateway chat`` against a server that the test plays; Ctrl-C is a real SIGINT."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from gateway.chat import Stdin, chat
from tests.client.scripted_server import Conversation, Frame, ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ABORT = {"reason": "AbortError", "message": "Aborted", "code": None, "status_code": None, "retryable": None}


class Screen(io.StringIO):
    """Says when something was written."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def write(self, text: str) -> int:
        self.changed.set()
        return super().write(text)


class Typist:
    """Types what the test says; shows what stands on the screen."""

    def __init__(self, *, terminal: bool = True) -> None:
        self._lines: asyncio.Queue[str | None] = asyncio.Queue(16)
        self._screen = Screen()
        self.console = Console(file=self._screen, width=100, height=40, force_terminal=terminal, color_system=None)
        self.asked = asyncio.Event()

    async def __call__(self) -> str | None:
        self.asked.set()
        line = await self._lines.get()
        self.asked.clear()
        return line

    def type(self, *lines: str | None) -> None:
        for line in lines:
            self._lines.put_nowait(line)

    @property
    def screen(self) -> str:
        return self._screen.getvalue()

    async def sees(self, text: str) -> None:
        """Wait until ``text`` is on the screen."""
        async with asyncio.timeout(5):
            while text not in self.screen:
                self._screen.changed.clear()
                await self._screen.changed.wait()


class Server:
    """Plays one session's server: acks the prompt, then sends events."""

    def __init__(self, conversation: Conversation) -> None:
        self.wire = conversation
        self.session_id = ""
        self.seq = 0

    async def take(self, type_: str) -> Frame:
        frame = await self.wire.recv()
        assert frame["type"] == type_
        self.session_id = frame.get("session_id", self.session_id)
        return frame

    async def ack(self, frame: Frame, **fields: object) -> None:
        await self.wire.send({"type": "ack", "id": frame["id"], "command": frame["type"], **fields})

    async def event(self, type_: str, **fields: object) -> None:
        self.seq += 1
        await self.wire.send(
            {"type": type_, "session_id": self.session_id, "seq": self.seq, "run_id": "r", "time": 1, **fields}
        )

    async def start(self, prompt: Frame) -> None:
        await self.ack(prompt, session_id=self.session_id, run_id="r")
        await self.wire.send(self.attached("live", "idle"))
        await self.event("run-start", mode="prompt")
        await self.event("message-start", message_id="m", role="assistant")

    def attached(self, recovery: str, status: str, **fields: object) -> Frame:
        return {
            "type": "attached",
            "session_id": self.session_id,
            "epoch": "e",
            "seq": self.seq,
            "recovery": recovery,
            "status": status,
            "role": "owner",
            **fields,
        }

    async def text(self, text: str) -> None:
        await self.event("text-start", message_id="m", part_id="p")
        await self.event("text-delta", message_id="m", part_id="p", text=text)

    async def finish(self, status: str = "completed") -> None:
        error = ABORT if status == "aborted" else None
        await self.event("message-finish", message_id="m", finish_reason="x", usage=None, error=error)
        await self.event("run-finish", status=status, reason=None, error=error, settled=True)


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as server:
        yield server


@pytest.fixture
def typist() -> Typist:
    return Typist()


async def talk(
    scripted: ScriptedServer, typist: Typist, session_id: str | None = None
) -> tuple[asyncio.Task[int], Server]:
    task = asyncio.create_task(chat(scripted.url, session_id, read=typist, console=typist.console))
    conversation = await scripted.accept()
    await conversation.welcome()
    return task, Server(conversation)


async def done(task: asyncio.Task[int]) -> int:
    async with asyncio.timeout(5):
        return await task


async def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


async def test_says_in_one_line_that_nobody_is_there(typist: Typist) -> None:
    assert await chat("ws://127.0.0.1:9/ws", read=typist, console=typist.console) == 1
    assert typist.screen.startswith("no gateway at ws://127.0.0.1:9/ws")
    assert len(typist.screen.strip().splitlines()) == 1


async def test_streams_an_answer_with_reasoning_and_a_tool(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Say **hello**")
    prompt = await server.take("prompt")
    assert prompt["text"] == "Say **hello**"
    await server.start(prompt)
    await server.event("reasoning-start", message_id="m", part_id="r")
    await server.event("reasoning-delta", message_id="m", part_id="r", text="thinking hard")
    await server.event("reasoning-end", message_id="m", part_id="r")
    await typist.sees("thinking hard")
    call = {"call_id": "c", "tool": "look"}
    await server.event("tool-call", message_id="m", part_id="t", **call, input={"at": "x"})
    await server.event("tool-start", call_id="c")
    await server.event("tool-progress", call_id="c", data="half")
    await typist.sees('look({"at":"x"}) running half…')
    await server.event("tool-result", call_id="c", output=["a"])
    await typist.sees('→ ["a"]')
    await server.text("Hello **you**")
    await typist.sees("Hello you")
    await server.finish()
    typist.type("/quit")
    assert await done(task) == 0


async def test_ctrl_c_stops_the_answer_and_the_conversation_goes_on(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Tell a story")
    await server.start(await server.take("prompt"))
    await server.text("Once")
    await typist.sees("Once")
    await ctrl_c()
    abort = await server.take("abort")
    await typist.sees("stopping…")
    await server.ack(abort, runs=[{"session_id": server.session_id, "run_id": "r", "state": "requested"}])
    await server.event("abort-requested", reason="user")
    await server.finish("aborted")
    await typist.sees("stopped")
    typist.type("/resume")
    resume = await server.take("resume")
    await server.wire.send(
        {"type": "error", "id": resume["id"], "code": "not_resumable", "message": "nothing to do", "retryable": False}
    )
    await typist.sees("not_resumable: nothing to do")
    typist.type(None)
    assert await done(task) == 0


async def test_a_second_ctrl_c_leaves_without_waiting(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Tell a story")
    await server.start(await server.take("prompt"))
    await server.text("Once")
    await typist.sees("Once")
    await ctrl_c()
    await server.take("abort")
    await ctrl_c()
    assert await done(task) == 130


async def test_ctrl_c_before_the_answer_begins_leaves(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Tell a story")
    await server.take("prompt")
    await ctrl_c()
    assert await done(task) == 130


async def test_ctrl_c_at_the_prompt_leaves(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    await typist.asked.wait()
    await ctrl_c()
    assert await done(task) == 0
    assert await server.wire.closed() == 1000


async def test_asks_for_approval(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Delete it")
    await server.start(await server.take("prompt"))
    call = {"call_id": "c", "tool": "delete", "input": {"path": "x"}}
    await server.event("tool-call", message_id="m", part_id="t", **call)
    await server.event("approval-request", request_id="q", **call)
    await typist.sees('allow delete({"path":"x"})? y/n')
    typist.type("what?", "y")
    respond = await server.take("respond")
    assert (respond["request_id"], respond["decision"]) == ("q", "allow")
    await server.ack(respond)
    await server.event("approval-resolved", request_id="q", decision="allow")
    await server.event("tool-error", call_id="c", error="no such file", interrupted=False, outcome="failed")
    await typist.sees("✗ failed: no such file")
    await server.finish()
    typist.type("/quit")
    assert await done(task) == 0


async def test_in_a_pipe_answers_end_their_line_and_a_question_is_seen(scripted: ScriptedServer) -> None:
    """And where the input ends, nobody says yes: the run goes on without the call."""
    typist = Typist(terminal=False)
    task, server = await talk(scripted, typist)
    typist.type("Delete it", None)
    await server.start(await server.take("prompt"))
    call = {"call_id": "c", "tool": "delete", "input": {"path": "x"}}
    await server.event("tool-call", message_id="m", part_id="t", **call)
    await server.event("approval-request", request_id="q", **call)
    await typist.sees('allow delete({"path":"x"})? y/n\n')
    respond = await server.take("respond")
    assert (respond["decision"], respond["value"]) == ("deny", "nobody was there to ask")
    await server.ack(respond)
    await server.event("approval-resolved", request_id="q", decision="deny")
    await server.event("tool-error", call_id="c", error="denied", interrupted=False, outcome="not_run")
    await server.finish()
    typist.type(None)
    assert await done(task) == 0
    assert "✗ not_run: denied\n› " in typist.screen


async def test_asks_one_question_at_a_time(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Delete both")
    prompt = await server.take("prompt")
    # All at once: the questions stand before the first of them is read.
    calls = [{"call_id": name, "tool": "delete", "input": name} for name in ("one", "two")]
    frames: list[Frame] = [
        {"type": "run-start", "mode": "prompt"},
        {"type": "message-start", "message_id": "m", "role": "assistant"},
        *({"type": "tool-call", "message_id": "m", "part_id": "p-" + call["call_id"], **call} for call in calls),
        *({"type": "approval-request", "request_id": "q-" + call["call_id"], **call} for call in calls),
    ]
    envelope = {"session_id": server.session_id, "run_id": "r", "time": 1}
    await server.wire.send(
        {"type": "ack", "id": prompt["id"], "command": "prompt", "session_id": server.session_id, "run_id": "r"},
        server.attached("live", "idle"),
        *(envelope | frame | {"seq": seq} for seq, frame in enumerate(frames, 1)),
    )
    server.seq = len(frames)
    for name, answer, decision in (("one", "y", "allow"), ("two", "n", "deny")):
        await typist.sees(f"allow delete({name})? y/n")
        typist.type(answer)
        respond = await server.take("respond")
        assert (respond["request_id"], respond["decision"]) == (f"q-{name}", decision)
        await server.ack(respond)
        await server.event("approval-resolved", request_id=f"q-{name}", decision=decision)
    await server.finish()
    typist.type("/quit")
    assert await done(task) == 0


async def test_shows_that_the_connection_is_lost_and_goes_on(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    typist.type("Tell a story")
    await server.start(await server.take("prompt"))
    await server.text("Once")
    await typist.sees("Once")
    server.wire.cut()
    await typist.sees("reconnecting…")
    server.wire = await scripted.accept()
    hello = await server.wire.welcome()
    assert hello["attach"][0]["seq"] == server.seq
    await server.wire.send(server.attached("live", "running"))
    await server.event("text-delta", message_id="m", part_id="p", text=" upon")
    await typist.sees("Once upon")
    await server.finish()
    typist.type("/quit")
    assert await done(task) == 0


async def test_a_final_close_is_told_in_one_line(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist)
    await typist.asked.wait()
    await server.wire.close(4403, "forbidden")
    assert await done(task) == 1
    assert "connection closed: 4403 forbidden" in typist.screen


async def test_continues_a_session_and_the_run_that_is_under_way(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist, "s")
    attach = await server.take("attach")
    server.seq = 7
    question = {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Go on?"}], "created_at": 1}
    part = {"type": "text", "part_id": "p", "text": "Once", "state": "streaming"}
    answer: Frame = {
        "id": "m",
        "role": "assistant",
        "run_id": "r",
        "parts": [part],
        "finish_reason": None,
        "usage": None,
    }
    answer |= {"error": None, "created_at": 1, "completed_at": None}
    await server.wire.send(
        server.attached("snapshot", "running", id=attach["id"]),
        {
            "type": "snapshot",
            "session_id": "s",
            "epoch": "e",
            "seq": 7,
            "status": "running",
            "run_id": "r",
            "resumable": False,
            "messages": [question, answer],
            "has_more": False,
            "pending": [],
            "queue": [],
        },
    )
    await typist.sees("› Go on?")
    await server.event("text-delta", message_id="m", part_id="p", text=" upon")
    await typist.sees("Once upon")
    await server.finish()
    typist.type("/history", "/quit")
    assert await done(task) == 0


async def test_continues_a_session_that_waits_for_a_person(scripted: ScriptedServer, typist: Typist) -> None:
    task, server = await talk(scripted, typist, "s")
    attach = await server.take("attach")
    server.seq = 7
    request = {"request_id": "q", "call_id": "c", "tool": "delete", "input": "x"}
    snapshot = {"type": "snapshot", "session_id": "s", "epoch": "e", "seq": 7, "status": "waiting", "run_id": "r"}
    snapshot |= {"resumable": False, "messages": [], "has_more": False, "pending": [request], "queue": []}
    await server.wire.send(server.attached("snapshot", "waiting", id=attach["id"]), snapshot)
    await typist.sees("allow delete(x)? y/n")
    await server.event("approval-resolved", request_id="q", decision="allow")  # by somebody else
    await server.finish()
    await typist.sees("› ")
    typist.type("/quit")
    assert await done(task) == 0


async def test_the_other_commands(scripted: ScriptedServer, typist: Typist) -> None:
    task, _ = await talk(scripted, typist)
    typist.type("", "/help", "/history", "/dance", "/new", "/quit")
    assert await done(task) == 0
    assert "/resume   continue" in typist.screen
    assert "nothing was said yet" in typist.screen
    assert "/dance: no such command" in typist.screen
    assert "new session ses_" in typist.screen


async def test_standard_input_gives_lines_and_ends() -> None:
    reading, writing = os.pipe()
    read = Stdin(reading)
    os.write(writing, b"eins\nzwei\r\nhalb")
    os.close(writing)
    assert [await read(), await read(), await read(), await read()] == ["eins", "zwei", "halb", None]
    os.close(reading)


async def test_standard_input_waits_without_blocking_the_loop() -> None:
    reading, writing = os.pipe()
    waiting = asyncio.create_task(Stdin(reading)())
    await asyncio.sleep(0)
    assert not waiting.done()
    os.write(writing, b"late\n")
    assert await waiting == "late"
    os.close(reading)
    os.close(writing)
