"""Tools that really stop: timeouts, results of any size, progress from anywhere."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from gateway.engine import Agent, ToolContext, ToolError, ToolMessage, tool, user_message
from gateway.engine.calls import _abandoned
from gateway.engine.models.scripted import Call, ScriptedModel
from tests.engine.support import SESSION, agent_for, assert_aborted, of, read, stored, text, types, when

SOON = 0.02


async def all_abandoned_ended() -> None:
    if _abandoned:
        await asyncio.wait(set(_abandoned), timeout=5)
    await asyncio.sleep(0)
    assert not _abandoned


async def test_a_tool_past_its_time_is_cancelled_cleans_up_and_has_failed() -> None:
    """The model is told and goes on: a slow tool is no end of a turn."""
    cleaned = []

    @tool(timeout_s=SOON)
    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.append(True)

    agent = agent_for([Call("slow")], "I see", tools=[slow])
    events = await read(agent)
    assert cleaned == [True]
    error = of(events, "tool-error")[0]
    assert (error["error"], error["outcome"], error["interrupted"]) == ("Timed out after 0.02 s", "failed", False)
    assert text(events) == "I see"
    assert (events[-1]["status"], events[-1]["settled"]) == ("completed", True)
    model: Any = agent._config.model
    assert model.requests[1].messages[-1] == ToolMessage("call_1", "slow", "Timed out after 0.02 s", is_error=True)


@pytest.mark.parametrize(("reads", "outcome"), [(False, "unknown"), (True, "failed")])
async def test_a_thread_past_its_time_is_left_behind_and_its_outcome_unknown(reads: bool, outcome: str) -> None:
    """Nobody can stop a thread: the run goes on without it, says so, and never hears of its result."""
    gate = threading.Event()

    @tool(timeout_s=SOON, reads=reads)
    def stuck() -> str:
        gate.wait(10)
        return "too late"

    try:
        events = await read(agent_for([Call("stuck")], "I see", tools=[stuck]))
    finally:
        gate.set()
    error = of(events, "tool-error")[0]
    assert error["outcome"] == outcome
    assert error["error"].startswith("Timed out after 0.02 s")
    assert ("may or may not" in error["error"]) is (outcome == "unknown")
    assert of(events, "tool-result") == []
    assert (events[-1]["status"], events[-1]["settled"]) == ("completed", False)
    await all_abandoned_ended()


async def test_a_thread_that_looks_at_its_context_returns_in_time_and_keeps_its_result() -> None:
    @tool(timeout_s=SOON)
    def polite(context: ToolContext) -> str:
        return "told" if context.wait_aborted(10) else "never told"

    events = await read(agent_for([Call("polite")], "ok", tools=[polite]))
    assert of(events, "tool-result")[0]["output"] == "told"
    assert events[-1]["settled"] is True


async def test_a_tool_deaf_to_its_cancellation_is_left_after_the_grace_and_never_heard_again() -> None:
    gate = asyncio.Event()

    @tool(timeout_s=SOON)
    async def deaf(context: ToolContext) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        context.progress("still here")
        return "too late"

    agent = agent_for([Call("deaf")], "I see", "Again", tools=[deaf], abort_grace_s=0.1)
    events = await read(agent)
    assert of(events, "tool-error")[0]["outcome"] == "unknown"
    assert events[-1]["settled"] is False
    before = await stored(agent)
    gate.set()
    await all_abandoned_ended()
    assert await stored(agent) == before
    assert text(await read(agent)) == "Again", "the session is usable"


async def test_only_the_slow_one_of_two_parallel_tools_times_out() -> None:
    both = asyncio.Barrier(2)

    @tool(timeout_s=SOON)
    async def slow() -> None:
        await both.wait()
        await asyncio.get_running_loop().create_future()

    @tool(timeout_s=60)
    async def quick() -> str:
        await both.wait()
        return "done"

    events = await read(agent_for([Call("slow", call_id="a"), Call("quick", call_id="b")], "ok", tools=[slow, quick]))
    assert [(e["call_id"], e["output"]) for e in of(events, "tool-result")] == [("b", "done")]
    assert [(e["call_id"], e["outcome"]) for e in of(events, "tool-error")] == [("a", "failed")]


async def test_an_abort_while_a_late_tool_cleans_up_is_an_abort() -> None:
    abort, cleaning = asyncio.Event(), asyncio.Event()

    @tool(timeout_s=SOON)
    async def slow() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaning.set()
            await abort.wait()

    task = asyncio.create_task(read(agent_for([Call("slow")], tools=[slow]), abort=abort))
    await cleaning.wait()
    abort.set()
    events = await task
    assert_aborted(events)
    assert of(events, "tool-error")[0]["outcome"] == "interrupted"


async def test_the_wait_for_a_person_does_not_count() -> None:
    @tool(policy="ask", timeout_s=SOON)
    async def quick() -> str:
        return "done"

    agent = agent_for([Call("quick")], "ok", tools=[quick])
    asked = asyncio.Event()
    task = asyncio.create_task(read(agent, on=when("approval-request", asked.set)))
    await asked.wait()
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(3 * SOON, done.set_result, None)
    await done  # longer than the tool itself may take
    run = agent._live[SESSION]
    assert run.calls is not None
    request = next(iter(run.calls._slots.values())).request_id
    await agent.respond(session_id=SESSION, run_id=run.context.run_id, request_id=request, decision="allow")
    assert of(await task, "tool-result")[0]["output"] == "done"


async def test_a_result_too_large_is_cut_marked_and_the_model_told() -> None:
    @tool(max_output_bytes=100)
    async def big() -> str:
        return "b" * 10_000_000

    @tool(max_output_bytes=100)
    def rows() -> Any:
        return ({"n": n} for n in range(10**12))

    model = ScriptedModel([[Call("big", call_id="a"), Call("rows", call_id="b")], "ok"])
    agent = Agent(model, tools=[big, rows])
    events = await read(agent)
    results = {event["call_id"]: event for event in of(events, "tool-result")}
    assert all(event["truncated"] is True for event in results.values())
    assert len(results["a"]["output"]) <= 100
    assert results["b"]["output"][:2] == [{"n": 0}, {"n": 1}]
    assert all(part["truncated"] for part in (await stored(agent))[-1]["parts"] if part["type"] == "tool")
    for message in model.requests[1].messages[-2:]:
        assert message.content.endswith("[truncated: this is only the beginning]")


async def test_a_result_within_the_limit_is_not_marked() -> None:
    @tool
    async def small() -> str:
        return "s"

    events = await read(agent_for([Call("small")], "ok", tools=[small]))
    assert of(events, "tool-result") == [{"type": "tool-result", "call_id": "call_1", "output": "s"}]


async def test_a_giant_error_is_cut() -> None:
    @tool
    async def loud() -> None:
        raise ToolError("no" * 1_000_000)

    error = of(await read(agent_for([Call("loud")], "ok", tools=[loud])), "tool-error")[0]["error"]
    assert len(error) < 10_000
    assert error.endswith("…")


async def test_progress_from_a_chatty_thread_reaches_the_reader_as_its_newest() -> None:
    """A thread may report a million times: what waits is one value, and it is bounded."""
    pending: list[int] = []

    @tool
    def chatty(context: ToolContext) -> None:
        context._loop.call_soon_threadsafe(gate.wait, 10)  # nothing is delivered while it reports
        for number in range(100_000):
            context.progress({"n": number, "pad": "p" * 20_000} if number == 99_999 else number)
        pending.append(len(context._newest))
        gate.set()

    gate = threading.Event()
    events = await read(agent_for([Call("chatty")], "ok", tools=[chatty]))
    assert pending == [1]
    shown = of(events, "tool-progress")[-1]["data"]
    assert shown["n"] == 99_999
    assert len(shown["pad"]) < 17_000


async def test_progress_is_a_copy() -> None:
    """A tool may go on changing what it has shown."""

    @tool
    async def counting(context: ToolContext) -> None:
        state = {"done": 1}
        context.progress(state)
        state["done"] = 2

    events = await read(agent_for([Call("counting")], "ok", tools=[counting]))
    assert of(events, "tool-progress")[0]["data"] == {"done": 1}


async def test_progress_after_the_result_is_dropped() -> None:
    kept: list[ToolContext] = []
    gate = asyncio.Event()

    @tool
    async def hasty(context: ToolContext) -> str:
        kept.append(context)
        return "done"

    @tool
    async def waits() -> None:
        await gate.wait()

    def late() -> None:
        kept[0].progress("late")
        gate.set()

    calls = [Call("hasty", call_id="a"), Call("waits", call_id="b")]
    events = await read(agent_for(calls, "ok", tools=[hasty, waits]), on=when("tool-result", late))
    assert "tool-progress" not in types(events)


async def test_tools_stop_also_where_somebody_else_cancels_the_run() -> None:
    """A library's cancel scope, or a stray ``cancel()``: the run has failed, and no tool works on behind its back."""
    cleaned = asyncio.Event()

    @tool
    async def working() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cleaned.set()

    agent = agent_for([Call("working")], tools=[working])
    events = []
    async for event in agent.stream(
        abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")]
    ):
        events.append(event)
        if event["type"] == "tool-start":
            for task in asyncio.all_tasks():
                if task.get_name().startswith("work "):
                    task.cancel()
    assert cleaned.is_set()
    assert (events[-1]["status"], events[-1]["settled"]) == ("failed", True)
    assert [event["outcome"] for event in of(events, "tool-error")] == ["failed"]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("tool ")]
