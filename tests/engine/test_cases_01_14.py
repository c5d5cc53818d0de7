"""The contract's cases 1 to 14: where in a run an abort may strike."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine import (
    Agent,
    AgentExtension,
    AgentRunContext,
    APIError,
    MemoryStore,
    RetryOptions,
    ScriptedModel,
    ToolContext,
    tool,
    user_message,
)
from gateway.engine.messages import ToolMessage
from gateway.engine.models.scripted import Call, Do, Fail, Hang, Reasoning
from protocol.messages import ABORT_ERROR
from tests.engine.support import (
    SESSION,
    Clock,
    Tracker,
    agent_for,
    assert_aborted,
    check,
    of,
    read,
    stored,
    text,
    types,
    when,
)


async def test_case_01_event_set_before_stream() -> None:
    """A set event costs no model call, but what the person said is not lost."""
    tracker = Tracker()
    agent = agent_for("never said", extensions=[tracker])
    abort = asyncio.Event()
    abort.set()
    events = await read(agent, abort=abort, text="Remember me")
    assert types(events) == ["message-start", "message-finish", "run-finish"]
    assert_aborted(events)
    assert isinstance(agent._config.model, ScriptedModel)
    assert agent._config.model.requests == []
    user, assistant = await stored(agent)
    assert user["parts"][0]["text"] == "Remember me"
    assert assistant["error"] == ABORT_ERROR
    assert tracker.ends == ["cancelled"]


async def test_case_02_event_set_before_the_first_anext() -> None:
    """``stream()`` alone starts nothing, so an event set after it still comes before everything."""
    model = ScriptedModel(["never said"])
    agent = Agent(model)
    abort = asyncio.Event()
    stream = agent.stream(abort=abort, mode="prompt", session_id=SESSION, messages=[user_message("Hi")])
    abort.set()
    events = [event async for event in stream]
    check(events)
    assert_aborted(events)
    assert model.requests == []


async def test_case_03_during_history_load() -> None:
    """A store that hangs while loading does not keep Stop from working."""
    loading = asyncio.Event()

    class SlowStore(MemoryStore):
        async def load(self, session_id: str) -> list[Any]:
            loading.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    tracker, abort = Tracker(), asyncio.Event()
    agent = agent_for("never said", store=SlowStore(), extensions=[tracker])
    task = asyncio.create_task(read(agent, abort=abort))
    await loading.wait()
    abort.set()
    assert_aborted(await task)
    assert tracker.ends == ["cancelled"]


async def test_case_03_during_a_hook() -> None:
    """The clean-up hooks run although the hook itself was cancelled."""
    hooked = asyncio.Event()

    class Slow(AgentExtension):
        async def before_run(self, context: AgentRunContext) -> None:
            hooked.set()
            await asyncio.get_running_loop().create_future()

    tracker, abort = Tracker(), asyncio.Event()
    agent = agent_for("never said", extensions=[Slow(), tracker])
    task = asyncio.create_task(read(agent, abort=abort))
    await hooked.wait()
    abort.set()
    assert_aborted(await task)
    assert tracker.seen == ["cancelled"]


async def test_case_05_headers_but_no_delta() -> None:
    """A model that has said nothing leaves an empty message that says why."""
    hang, abort = Hang(), asyncio.Event()
    agent = agent_for([hang])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    events = await task
    assert types(events) == ["message-start", "step-start", "step-finish", "message-finish", "run-finish"]
    assert_aborted(events)
    assert hang.left.is_set()
    assert (await stored(agent))[-1]["parts"] == []


async def test_case_06_mid_text() -> None:
    """Text is kept to the letter; part, step, message and run close in this order."""
    hang, abort = Hang(), asyncio.Event()
    agent = agent_for(["The quick  brown\n", hang, "fox"])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    events = await task
    assert text(events) == "The quick  brown\n"
    assert types(events)[-4:] == ["text-end", "step-finish", "message-finish", "run-finish"]
    assert of(events, "step-finish")[0]["finish_reason"] == "aborted"
    assert_aborted(events)
    message = (await stored(agent))[-1]
    assert message["parts"][0]["text"] == "The quick  brown\n"
    assert message["parts"][0]["state"] == "done"
    assert message["completed_at"] >= message["created_at"]


async def test_case_07_mid_reasoning() -> None:
    """An unfinished, unsigned thought is kept for the reader and never sent to a model again."""
    hang, abort = Hang(), asyncio.Event()
    model = ScriptedModel([[Reasoning("Let me see "), hang], "Done"])
    agent = Agent(model)
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    events = await task
    assert text(events, "reasoning") == "Let me see "
    assert_aborted(events)
    await read(agent, mode="resume")
    assert "Let me see" not in repr(model.requests[-1])


async def test_case_08_mid_tool_arguments() -> None:
    """Half an argument list is kept raw, and the tool never runs."""
    ran: list[int] = []

    @tool
    async def write(n: int) -> None:
        ran.append(n)

    hang, abort = Hang(), asyncio.Event()
    agent = agent_for([Call("write", {"n": 17}, "call_a", cut=5), hang], tools=[write])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    events = await task
    assert_aborted(events)
    assert of(events, "tool-error")[0]["outcome"] == "not_run"
    assert (await stored(agent))[-1]["parts"][0]["raw_input"] == '{"n":'
    assert ran == []


async def test_case_09_call_complete_but_not_started() -> None:
    """A complete call that nobody has started is ``not_run``: certain, so that it may be made again."""
    ran: list[int] = []

    @tool
    async def write(n: int) -> None:
        ran.append(n)

    abort = asyncio.Event()
    agent = agent_for([Call("write", {"n": 1})], tools=[write])
    events = await read(agent, abort=abort, on=when("tool-call", abort.set))
    assert_aborted(events)
    assert of(events, "tool-error")[0]["outcome"] == "not_run"
    assert of(events, "tool-error")[0]["interrupted"] is True
    assert ran == []


async def test_case_10_async_tool_running() -> None:
    """A running tool is cancelled and its clean-up awaited, also where that takes several turns of the loop."""
    cleaned: list[str] = []

    @tool
    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(3):
                await asyncio.sleep(0)
            cleaned.append("cleaned")

    abort = asyncio.Event()
    agent = agent_for([Call("work")], tools=[work])
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events)
    assert cleaned == ["cleaned"]
    assert of(events, "tool-error")[0] == {
        "type": "tool-error",
        "call_id": "call_1",
        "error": "Tool execution aborted",
        "interrupted": True,
        "outcome": "interrupted",
    }


async def test_case_11_tool_returns_during_the_cancel() -> None:
    """What a tool returns on its way out is real, and kept."""

    @tool
    async def work() -> str:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            return "half of it"
        return "all of it"

    abort = asyncio.Event()
    agent = agent_for([Call("work")], tools=[work])
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events)
    assert of(events, "tool-result")[0]["output"] == "half of it"


async def test_case_12_one_of_two_parallel_tools_done() -> None:
    """Each call gets its own truth."""

    @tool
    async def quick() -> str:
        return "done"

    @tool
    async def slow() -> None:
        await asyncio.get_running_loop().create_future()

    abort = asyncio.Event()
    agent = agent_for([Call("quick", call_id="a"), Call("slow", call_id="b")], tools=[quick, slow])
    events = await read(agent, abort=abort, on=when("tool-result", abort.set))
    assert_aborted(events)
    assert [(e["call_id"], e["output"]) for e in of(events, "tool-result")] == [("a", "done")]
    assert [(e["call_id"], e["outcome"]) for e in of(events, "tool-error")] == [("b", "interrupted")]


async def test_case_13_tool_done_but_not_yet_published() -> None:
    """A result that waits for a hook to be published is a result."""
    hooked = asyncio.Event()

    class Slow(AgentExtension):
        async def after_tool(self, context: AgentRunContext, call: object, output: Any) -> None:
            hooked.set()
            await asyncio.get_running_loop().create_future()

    @tool
    async def quick() -> str:
        return "done"

    abort = asyncio.Event()
    agent = agent_for([Call("quick")], tools=[quick], extensions=[Slow()])
    task = asyncio.create_task(read(agent, abort=abort))
    await hooked.wait()
    abort.set()
    events = await task
    assert_aborted(events)
    assert of(events, "tool-result")[0]["output"] == "done"


async def test_case_14_in_retry_backoff() -> None:
    """Stop does not wait for a backoff to pass."""
    clock, abort = Clock(), asyncio.Event()
    model = ScriptedModel([[Fail(APIError("down"))], "never said"], retry=RetryOptions(max_retries=2))
    agent = Agent(model, sleep=clock.sleep)
    task = asyncio.create_task(read(agent, abort=abort))
    await clock.asleep.wait()
    abort.set()
    events = await task
    assert_aborted(events)
    assert clock.slept == [2.0]
    assert of(events, "retry")[0]["error"]["reason"] == "APIError"
    assert len(model.requests) == 1


async def test_case_15_in_compaction() -> None:
    """A compaction that is cut off leaves the history as it was."""
    compacting = asyncio.Event()
    first = True

    async def compact(turns: Any) -> Any:
        nonlocal first
        if first:
            first = False
            return turns
        compacting.set()
        return await asyncio.get_running_loop().create_future()

    agent = agent_for("First answer", "never said", compact=compact)
    await read(agent)
    before = await stored(agent)
    abort = asyncio.Event()
    task = asyncio.create_task(read(agent, abort=abort))
    await compacting.wait()
    abort.set()
    assert_aborted(await task)
    assert (await stored(agent))[: len(before)] == before


async def test_case_16_waiting_for_an_approval() -> None:
    """A question that nobody needs answered any more is withdrawn, and a late answer refused."""
    ran: list[str] = []

    @tool(approval=True)
    async def wipe() -> None:
        ran.append("wiped")

    abort = asyncio.Event()
    agent = agent_for([Call("wipe")], tools=[wipe])
    events = await read(agent, abort=abort, on=when("approval-request", abort.set))
    assert_aborted(events)
    assert of(events, "approval-resolved")[0]["decision"] == "withdrawn"
    assert of(events, "tool-error")[0]["outcome"] == "not_run"
    request_id = of(events, "approval-request")[0]["request_id"]
    assert not await agent.respond(session_id=SESSION, run_id="any", request_id=request_id, decision="allow")
    assert ran == []


async def test_case_17_sub_agent_running() -> None:
    """A child is sealed before its parent: the parent waits for the clean-up of the tool that runs it."""
    order: list[str] = []
    hang = Hang()
    child = agent_for(["Child says ", hang])

    @tool
    async def delegate(context: ToolContext) -> str:
        stream = child.stream(abort=asyncio.Event(), mode="prompt", session_id="child", messages=[user_message("Go")])
        try:
            async for _ in stream:
                pass
        finally:
            await stream.aclose()
            order.append((await stored(child, "child"))[-1]["error"]["reason"])
        return "done"

    abort = asyncio.Event()
    agent = agent_for([Call("delegate")], tools=[delegate])
    task = asyncio.create_task(read(agent, abort=abort, on=when("run-finish", lambda: order.append("parent"))))
    await hang.reached.wait()
    abort.set()
    assert_aborted(await task)
    assert order == ["AbortError", "parent"]


async def test_case_56_resume_after_mid_tool_does_not_rerun_it() -> None:
    """Only the model may decide to call a tool again; it is told that the first call may have happened."""
    ran: list[str] = []

    @tool
    async def pay() -> None:
        ran.append("paid")
        await asyncio.get_running_loop().create_future()

    abort = asyncio.Event()
    model = ScriptedModel([[Call("pay")], "I do not know whether it was paid."])
    agent = Agent(model, tools=[pay])
    assert_aborted(await read(agent, abort=abort, on=when("tool-start", abort.set)))
    events = await read(agent, mode="resume")
    assert ran == ["paid"]
    assert text(events) == "I do not know whether it was paid."
    answers = [turn for turn in model.requests[-1].messages if isinstance(turn, ToolMessage)]
    assert answers == [ToolMessage("call_1", "pay", "interrupted: may or may not have completed", is_error=True)]


@pytest.mark.parametrize("at", ["before", "after"])
async def test_case_20_same_tick_as_the_last_event(at: str) -> None:
    """An event that has arrived is kept, whichever of the two came first within the tick, and there is one end."""
    abort = asyncio.Event()
    last = [Do(abort.set), "last ", "never"] if at == "before" else ["last ", Do(abort.set)]
    events = await read(agent_for(["first ", *last]), abort=abort)
    assert_aborted(events)
    assert text(events) == "first last "
