"""Tools: schema, checks, threads, errors, approvals, and the demonstration tools' confinement."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Annotated, Any

import pydantic
import pytest

from gateway.engine import Agent, RunContext, Tool, ToolContext, ToolError, current_run, run_context, tool
from gateway.engine.models.scripted import Call
from tests.engine.support import SESSION, agent_for, assert_aborted, of, read, text, types, when


class Point(pydantic.BaseModel):
    x: int
    y: int = 0


@tool
def locate(
    context: ToolContext, point: Point, label: Annotated[str, pydantic.Field(description="A name")] = "p"
) -> str:
    """Say where a point is."""
    return f"{label}={point.x},{point.y}"


def test_the_schema_comes_from_the_annotations() -> None:
    assert locate.spec.name == "locate"
    assert locate.spec.description == "Say where a point is."
    schema = locate.spec.schema
    assert set(schema["properties"]) == {"point", "label"}
    assert schema["properties"]["label"] == {"default": "p", "description": "A name", "type": "string"}
    assert schema["required"] == ["point"]
    assert schema["additionalProperties"] is False


def test_a_tool_is_still_the_function() -> None:
    @tool(name="double", reads=True)
    def twice(n: int) -> int:
        return 2 * n

    assert twice(2) == 4
    assert isinstance(twice, Tool)
    assert (twice.name, twice.reads) == ("double", True)


def test_a_tool_takes_named_parameters_only() -> None:
    def loose(*values: int) -> None: ...

    with pytest.raises(TypeError, match="plain named"):
        tool(loose)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="same name"):
        agent_for(tools=[locate, locate])


async def test_arguments_are_checked_and_keep_their_types() -> None:
    events = await read(agent_for([Call("locate", {"point": {"x": 1}})], "ok", tools=[locate]))
    assert of(events, "tool-result")[0]["output"] == "p=1,0"


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (Call("locate", {"point": {"x": "far"}}), "point.x"),
        (Call("locate", {"point": {"x": 1}, "more": 1}), "more"),
        (Call("nowhere"), "There is no tool named nowhere"),
        (Call("locate", raw="[1,"), "not a JSON object"),
        (Call("locate", raw="[1]"), "not a JSON object"),
    ],
)
async def test_a_wrong_call_is_answered_and_the_model_asked_again(call: Call, error: str) -> None:
    events = await read(agent_for([call], "I see", tools=[locate]))
    assert error in of(events, "tool-error")[0]["error"]
    assert of(events, "tool-error")[0]["outcome"] == "failed"
    assert of(events, "tool-error")[0]["interrupted"] is False
    assert of(events, "tool-start") == []
    assert text(events) == "I see"


async def test_a_tool_error_is_told_word_for_word_and_any_other_by_its_name_only() -> None:
    @tool
    async def polite() -> None:
        raise ToolError("The file is too old")

    @tool
    def rude() -> None:
        raise ValueError("postgres://me:secret@host")

    events = await read(agent_for([Call("polite", call_id="a"), Call("rude", call_id="b")], "ok", tools=[polite, rude]))
    errors = {event["call_id"]: event["error"] for event in of(events, "tool-error")}
    assert errors == {"a": "The file is too old", "b": "ValueError"}
    assert "secret" not in repr(events)


async def test_parallel_tools_run_at_the_same_time() -> None:
    both = asyncio.Barrier(2)

    @tool
    async def meet(n: int) -> int:
        await both.wait()
        return n

    events = await read(agent_for([Call("meet", {"n": 1}, "a"), Call("meet", {"n": 2}, "b")], "ok", tools=[meet]))
    assert sorted(event["output"] for event in of(events, "tool-result")) == [1, 2]


async def test_a_sync_tool_runs_in_a_thread_with_the_runs_context_and_reports_progress() -> None:
    seen: list[Any] = []

    @tool
    def work(context: ToolContext) -> str:
        seen.extend([threading.current_thread() is threading.main_thread(), current_run()])
        context.progress({"done": 1})
        return context.call_id

    token = run_context.set(RunContext("ada", SESSION, "run_7"))
    try:
        events = await read(agent_for([Call("work")], "ok", tools=[work]))
    finally:
        run_context.reset(token)
    assert seen == [False, RunContext("ada", SESSION, "run_7")]
    assert of(events, "tool-progress")[0]["data"] == {"done": 1}
    assert of(events, "tool-result")[0]["output"] == "call_1"


async def test_results_become_json() -> None:
    @tool
    async def give() -> Any:
        return {"path": Path("/x"), "point": Point(x=1), "odd": object}

    events = await read(agent_for([Call("give")], "ok", tools=[give]))
    output = of(events, "tool-result")[0]["output"]
    assert (output["path"], output["point"]) == ("/x", {"x": 1, "y": 0})


async def test_unread_progress_is_replaced_not_queued() -> None:
    @tool
    async def chatty(context: ToolContext) -> None:
        for number in range(10_000):
            context.progress(number)

    events = await read(agent_for([Call("chatty")], "ok", tools=[chatty]))
    assert [event["data"] for event in of(events, "tool-progress")] == [9999]


async def test_repeated_call_ids_of_a_provider_are_made_unique() -> None:
    @tool
    async def give() -> int:
        return 1

    events = await read(agent_for([Call("give", call_id="0")], [Call("give", call_id="0")], "ok", tools=[give]))
    ids = [event["call_id"] for event in of(events, "tool-call")]
    assert len(set(ids)) == 2
    assert [event["call_id"] for event in of(events, "tool-result")] == ids


@pytest.mark.parametrize(("decision", "ran"), [("allow", True), ("deny", False)])
async def test_an_approval_decides_whether_the_tool_runs(decision: Any, ran: bool) -> None:
    wiped: list[bool] = []

    @tool(approval=True)
    async def wipe() -> str:
        wiped.append(True)
        return "wiped"

    agent = agent_for([Call("wipe")], "ok", tools=[wipe])
    asked: asyncio.Queue[Any] = asyncio.Queue()

    def ask(event: Any) -> None:
        if event["type"] == "approval-request":
            asked.put_nowait(event)

    task = asyncio.create_task(read(agent, on=ask))
    request = await asked.get()
    run_id = agent._live[SESSION].context.run_id
    answer = {"session_id": SESSION, "run_id": run_id, "request_id": request["request_id"], "decision": decision}
    assert await agent.respond(**answer) is True
    assert await agent.respond(**answer) is False
    events = await task
    assert bool(wiped) is ran
    assert types(events).count("tool-result") == int(ran)
    assert of(events, "approval-resolved")[0]["decision"] == decision


async def test_steering_ends_the_message_and_answers_in_a_new_one() -> None:
    gate = asyncio.Event()

    @tool
    async def wait() -> str:
        await gate.wait()
        return "waited"

    agent = agent_for([Call("wait")], "As you wish", tools=[wait])
    started = asyncio.Event()
    task = asyncio.create_task(read(agent, on=when("tool-start", started.set)))
    await started.wait()
    message: Any = {"role": "user", "parts": [{"type": "text", "text": "Rather in French"}]}
    run_id = agent._live[SESSION].context.run_id
    steer = asyncio.create_task(agent.steer(session_id=SESSION, run_id=run_id, messages=[message]))
    await asyncio.sleep(0)
    gate.set()
    events = await task
    assert await steer is True
    assert [event["finish_reason"] for event in of(events, "message-finish")] == ["steered", "stop"]
    kinds = types(events)
    added = kinds.index("message-added")
    assert kinds[added - 1 : added + 2] == ["message-finish", "message-added", "message-start"]
    assert not await agent.steer(session_id=SESSION, run_id=run_id, messages=[message])


async def test_steering_of_a_run_that_ends_first_is_refused() -> None:
    abort, started = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    agent = agent_for([Call("wait")], tools=[wait])
    task = asyncio.create_task(read(agent, abort=abort, on=when("tool-start", started.set)))
    await started.wait()
    run_id = agent._live[SESSION].context.run_id
    message: Any = {"role": "user", "parts": [{"type": "text", "text": "Too late"}]}
    steer = asyncio.create_task(agent.steer(session_id=SESSION, run_id=run_id, messages=[message]))
    await asyncio.sleep(0)
    abort.set()
    assert_aborted(await task)
    assert await steer is False


async def test_a_run_that_needs_too_many_steps_ends_with_max_steps() -> None:
    @tool
    async def again() -> None: ...

    agent = Agent(agent_for(*[[Call("again")]] * 5)._config.model, tools=[again], max_steps=2)
    events = await read(agent)
    assert of(events, "message-finish")[0]["finish_reason"] == "max-steps"
    assert types(events).count("step-start") == 2
