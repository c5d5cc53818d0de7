"""A run aborted at each of its events in turn: always a valid stream, always what the fold says, always resumable."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine import Agent, AssistantMessage, MemoryStore, ScriptedModel, ToolContext, ToolMessage, tool
from gateway.engine.history import model_messages, repair
from gateway.engine.models.scripted import Call, Reasoning
from protocol.transcript import Transcript
from tests.engine.support import SESSION, Event, assert_aborted, check, of, read, stored

TIMES = ("created_at", "completed_at", "started_at", "ended_at")


@tool
async def slow(context: ToolContext, n: int) -> str:
    context.progress({"at": n})
    for _ in range(n):
        await asyncio.sleep(0)
    return "done"


@tool
def threaded(context: ToolContext) -> str:
    return "aborted" if context.aborted else "done"


def script() -> list[Any]:
    return [
        [Reasoning("Let me see"), "Two tools", Call("slow", {"n": 3}, "a"), Call("threaded", call_id="b")],
        [Call("slow", raw="[", call_id="a"), "and"],
        ["All done", Reasoning("indeed"), "now"],
    ]


def agent() -> Agent:
    return Agent(ScriptedModel([*script(), *script()]), tools=[slow, threaded], store=MemoryStore(), queue_limit=2)


def folded(events: list[Event]) -> dict[str, Any]:
    """Fold the stream as a client would and give the assistant's message."""
    frames: list[dict[str, Any]] = [{"type": "run-start", "mode": "prompt"}, *events]
    transcript = Transcript()
    attached = {"epoch": "e", "seq": 0, "recovery": "live", "status": "idle", "role": "owner"}
    transcript.apply({"type": "attached", "session_id": SESSION, **attached})
    for seq, event in enumerate(frames, 1):
        frame = {"session_id": SESSION, "seq": seq, "run_id": "run_1", "time": 1, **event}
        assert transcript.apply(frame) == "applied"
    return timeless(transcript.messages[-1])


def timeless(message: Any) -> dict[str, Any]:
    """Leave out what depends on the clock or on the session."""
    bare = {name: value for name, value in message.items() if name not in (*TIMES, "run_id")}
    bare["parts"] = [{name: value for name, value in part.items() if name not in TIMES} for part in message["parts"]]
    return bare


async def test_a_whole_run_is_what_the_fold_says() -> None:
    runner = agent()
    events = await read(runner)
    assert events[-1]["status"] == "completed"
    assert folded(events) == timeless((await stored(runner))[-1])


async def test_aborted_at_every_event() -> None:
    total = len(await read(agent()))
    aborted = 0
    for index in range(total):
        runner, abort, count = agent(), asyncio.Event(), 0

        def on(event: Event, abort: asyncio.Event = abort, index: int = index) -> None:
            nonlocal count
            if count == index:
                abort.set()
            count += 1

        events = await read(runner, abort=abort, on=on)
        message = (await stored(runner))[-1]
        assert folded(events) == timeless(message)
        if events[-1]["status"] == "completed":
            continue
        aborted += 1
        assert_aborted(events)
        history = await stored(runner)
        assert repair(history) == history
        assert_valid(model_messages(history, resume=True))
        resumed = await read(runner, mode="resume")
        check(resumed)
        assert of(resumed, "run-finish")[0]["status"] == "completed"
    assert aborted > total * 0.8


def assert_valid(turns: list[Any]) -> None:
    """Hold a request to what every provider demands: each call answered, at once and only once."""
    open_calls: list[str] = []
    for turn in turns:
        if isinstance(turn, ToolMessage):
            open_calls.remove(turn.call_id)
            continue
        assert open_calls == []
        if isinstance(turn, AssistantMessage):
            open_calls = [call.call_id for call in turn.tool_calls]
    assert open_calls == []


@pytest.mark.parametrize("index", [0, 5, 12, 30])
async def test_closed_at_any_event_it_is_sealed_and_resumable(index: int) -> None:
    from contextlib import aclosing

    from gateway.engine import user_message

    runner = agent()
    messages = [user_message("Go")]
    stream = runner.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=messages)
    async with aclosing(stream):
        for _ in range(index + 1):
            await anext(stream)
    assert (await stored(runner))[-1]["error"]["reason"] == "AbortError"
    assert (await read(runner, mode="resume"))[-1]["status"] == "completed"
