"""The port, the errors, the phases, the agent in the gateway and the client: what others build on."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine import (
    AbortError,
    Agent,
    AgentEventType,
    AgentPhase,
    AgentState,
    APIError,
    AssistantMessageError,
    IllegalTransition,
    MessageErrorBuilder,
    NotResumable,
    RateLimitError,
    Responds,
    RetryOptions,
    RunContext,
    ScriptedModel,
    Steers,
    ToolError,
    WantsHistory,
    as_engine,
    create_agent,
    run_context,
    tool,
    user_message,
)
from gateway.engine.calls import _abandoned
from gateway.engine.messages import UserMessage
from gateway.engine.models.scripted import Call, Fail, Hang
from protocol.messages import ABORT_ERROR
from tests.engine.support import SESSION, agent_for, assert_aborted, no_sleep, of, read, stored, text, when

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def echo(*, abort: asyncio.Event, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "text-delta", "text": session_id}


async def test_a_bare_async_generator_function_is_an_engine() -> None:
    engine = as_engine(echo)
    events = [e async for e in engine.stream(abort=asyncio.Event(), mode="prompt", session_id="s", messages=[])]
    assert events == [{"type": "text-delta", "text": "s"}]


def test_an_object_with_stream_is_an_engine_as_it_is() -> None:
    agent = agent_for()
    assert as_engine(agent) is agent
    assert isinstance(agent, WantsHistory)
    assert isinstance(agent, Responds)
    assert isinstance(agent, Steers)
    assert not isinstance(as_engine(echo), Responds)


def plain(*, abort: asyncio.Event, mode: str, session_id: str, messages: list[Any]) -> str:
    return ""


async def coroutine(*, abort: asyncio.Event, mode: str, session_id: str, messages: list[Any]) -> str:
    return ""


async def short(*, abort: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
    yield {}


@pytest.mark.parametrize(
    ("candidate", "says"),
    [
        (3, "^int is no engine"),
        (short, "^short lacks the keyword parameters"),
        (plain, "^plain is no engine: it has to be an async generator"),
        (coroutine, "^coroutine is no engine: it has to be an async generator"),
        (Agent, "is a class"),
        (print, "is no engine"),
    ],
)
def test_anything_else_is_refused_in_one_line(candidate: object, says: str) -> None:
    with pytest.raises(TypeError, match=says) as caught:
        as_engine(candidate)
    assert "\n" not in str(caught.value)


def test_a_coroutine_is_refused_with_the_hint_to_await_it() -> None:
    with pytest.raises(TypeError, match="await it first"):
        as_engine(create_agent(ScriptedModel([])))


def test_an_abort_is_never_explained_by_an_exception() -> None:
    built = MessageErrorBuilder.build(APIError("boom", status_code=500), aborted=True)
    assert built == AssistantMessageError(reason="AbortError", message="Aborted")
    assert built.to_dict() == ABORT_ERROR
    assert MessageErrorBuilder.build(AbortError()).to_dict() == ABORT_ERROR


def test_an_error_keeps_its_fields_and_an_unknown_one_only_its_name() -> None:
    limited = RateLimitError("slow", code="rate", status_code=429, retry_after=3)
    assert MessageErrorBuilder.build(limited).to_dict() == {
        "reason": "RateLimitError",
        "message": "slow",
        "code": "rate",
        "status_code": 429,
        "retryable": True,
    }
    unknown = MessageErrorBuilder.build(KeyError("password"))
    assert (unknown.reason, unknown.message, unknown.retryable) == ("UnknownError", "KeyError", None)
    assert MessageErrorBuilder.build(ToolError("no")).reason == "ToolError"


def test_phases_follow_each_other_or_raise() -> None:
    state = AgentState()
    for phase in ("loading_context", "ready", "generating", "ready", "running_tool", "ready", "completed"):
        state.enter(AgentPhase(phase))
    for phase in AgentPhase:
        with pytest.raises(IllegalTransition):
            state.enter(phase)
    with pytest.raises(IllegalTransition):
        AgentState().enter(AgentPhase.GENERATING)


def test_backoff_doubles_up_to_its_limit_and_honours_the_provider() -> None:
    retry = RetryOptions()
    assert [retry.delay(attempt) for attempt in (1, 2, 3, 4, 5, 6)] == [2, 4, 8, 16, 30, 30]
    assert retry.delay(1, retry_after=60) == 60
    assert retry.delay(1, retry_after=1) == 2


@pytest.mark.parametrize(
    ("error", "requests"), [(APIError("x"), 3), (APIError("x", retryable=False), 1), (ValueError("x"), 1)]
)
async def test_only_what_may_pass_is_retried(error: Exception, requests: int) -> None:
    model = ScriptedModel([[Fail(error)]] * 9, retry=RetryOptions(max_retries=2))
    events = await read(Agent(model, sleep=no_sleep))
    assert len(model.requests) == requests
    assert [event["attempt"] for event in of(events, "retry")] == list(range(1, requests))
    assert events[-1]["status"] == "failed"


async def test_nothing_is_retried_once_something_was_seen() -> None:
    model = ScriptedModel([["Half ", Fail(APIError("x"))], "never"], retry=RetryOptions())
    assert of(await read(Agent(model, sleep=no_sleep)), "retry") == []
    assert len(model.requests) == 1


async def test_in_the_gateway_the_given_history_is_the_only_truth() -> None:
    model = ScriptedModel(["Second"])
    agent = Agent(model)
    history: list[Any] = [
        user_message("First"),
        {
            "id": "a1",
            "role": "assistant",
            "run_id": "run_1",
            "parts": [{"type": "text", "part_id": "p", "text": "Answer", "state": "done"}],
            "finish_reason": "stop",
            "usage": None,
            "error": None,
            "created_at": 1,
            "completed_at": 2,
        },
        user_message("More"),
    ]
    token = run_context.set(RunContext("ada", SESSION, "run_2"))
    try:
        stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=history)
        events = [event async for event in stream]
    finally:
        run_context.reset(token)
    assert text(events) == "Second"
    assert [turn.content for turn in model.requests[0].messages] == ["First", "Answer", "More"]
    assert await stored(agent) == []
    assert agent._live == {}


async def test_in_the_gateway_the_engine_is_done_before_the_sessions_grace_ends() -> None:
    release = asyncio.Event()

    @tool
    async def immortal() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    abort, grace_s = asyncio.Event(), 0.1
    agent = agent_for([Call("immortal")], tools=[immortal], abort_grace_s=60)
    token = run_context.set(RunContext("ada", SESSION, "run_2", abort_grace_s=grace_s))
    try:
        events = await asyncio.wait_for(read(agent, abort=abort, on=when("tool-start", abort.set)), 10)
    finally:
        run_context.reset(token)
        release.set()
    assert_aborted(events, settled=False)
    await asyncio.wait(set(_abandoned), timeout=5)


async def test_build_request_gives_the_next_request_and_does_nothing() -> None:
    model = ScriptedModel(["Done"])
    agent = Agent(model, system_prompt="Be brief")
    request = await agent.build_request(
        abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Hi")]
    )
    assert request.messages == [UserMessage("Hi")]
    assert request.system_prompt == "Be brief"
    assert model.requests == []
    assert await stored(agent) == []
    abort = asyncio.Event()
    abort.set()
    with pytest.raises(AbortError):
        await agent.build_request(abort=abort, mode="prompt", session_id=SESSION, messages=[])
    with pytest.raises(NotResumable):
        await agent.build_request(abort=asyncio.Event(), mode="resume", session_id=SESSION, messages=[])


@pytest.mark.parametrize("method", ["stream", "invoke", "build_request"])
def test_abort_is_a_required_keyword_everywhere(method: str) -> None:
    with pytest.raises(TypeError, match="abort"):
        getattr(agent_for(), method)(mode="prompt", session_id=SESSION, messages=[])


async def test_invoke_gives_the_assistant_message_with_its_error() -> None:
    hang, abort = Hang(), asyncio.Event()
    agent = agent_for(["Half ", hang], "Whole")
    call = agent.invoke(abort=abort, mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    task = asyncio.create_task(call)
    await hang.reached.wait()
    abort.set()
    stopped = await task
    assert stopped.content == "Half "
    assert stopped.error == AssistantMessageError(reason="AbortError", message="Aborted")
    whole = await agent.invoke(abort=asyncio.Event(), mode="resume", session_id=SESSION)
    assert (whole.content, whole.error, whole.finish_reason) == ("Whole", None, "stop")


async def test_the_client_streams_objects_keeps_its_conversation_and_raises_errors() -> None:
    model = ScriptedModel(["One two", "Three", [Fail(APIError("down", status_code=500))]])
    client = await create_agent(model)
    events = [event async for event in client.stream("Hi")]
    assert [event.text for event in events if event.type == AgentEventType.TEXT_DELTA] == ["One ", "two"]
    with pytest.raises(AttributeError, match="no field text"):
        _ = events[-1].text
    assert (await client.run("More")).content == "Three"
    assert [turn.content for turn in model.requests[1].messages] == ["Hi", "One two", "More"]
    with pytest.raises(APIError, match="down"):
        await client.run("Again")
    assert client.agent.state.phase is AgentPhase.FAILED


async def test_the_client_runs_again_after_its_stream_was_left() -> None:
    client = await create_agent(ScriptedModel(["One two", "three"]))
    async with aclosing(client.stream("Hi")) as events:
        async for event in events:
            if event.type == AgentEventType.TEXT_DELTA:
                break
    assert client.agent.state.phase is AgentPhase.CANCELLED
    assert (await client.resume()).content == "three"


async def test_in_the_gateway_two_principals_may_use_one_session_id_at_once() -> None:
    """Session ids are scoped to the principal; the engine hears only the id."""
    agent = Agent(ScriptedModel(["Hello", "Hello"]))

    async def run_for(principal: str) -> list[str]:
        run_context.set(RunContext(principal, "chat", f"run_{principal}"))
        messages = [user_message("Hi")]
        stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id="chat", messages=messages)
        return [event["type"] async for event in stream]

    first, second = await asyncio.gather(run_for("alice"), run_for("bob"))
    assert first[-1] == second[-1] == "run-finish"
