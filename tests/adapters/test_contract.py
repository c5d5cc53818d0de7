"""What every engine owes the gateway, whoever wrote it: one suite, each framework's real package under it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import pytest

from gateway.engine import user_message
from protocol.messages import ABORT_ERROR
from tests.adapters.desk import Desk, desk, nothing_left, text_of, tools_of
from tests.adapters.script import PATIENCE_S, Call, Fail, Hold, Say, Script, Think

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from gateway.engine.port import Engine
    from tests.adapters.script import Item, Subject

LEAVES_TOOLS_BEHIND = frozenset({"openai_agents"}) if sys.version_info < (3, 12) else frozenset[str]()
"""Frameworks that cancel a tool and go, its clean-up still under way, in a task that cannot be found before 3.12."""

ENGINES = ["function", "agent", "pydantic_ai", "langgraph", "openai_agents", "zett"]


@pytest.fixture(params=ENGINES)
def engine_name(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    case = request.node.originalname.removeprefix("test_").replace("_", " ")
    request.node.user_properties.append(("contract", f"{name}/{case}"))
    return name


@pytest.fixture
def build(engine_name: str) -> Callable[[Script], Engine]:
    subject = cast("Subject", import_module(f"tests.adapters.subjects.{engine_name}"))
    return subject.build


def check(log: Desk) -> None:
    """Hold a session's log, every run of which has ended, to the protocol's invariants 1, 3 and 4."""
    assert [event["seq"] for event in log.events] == list(range(1, len(log.events) + 1))
    for start in log.of("run-start"):
        run = [event for event in log.events if event["run_id"] == start["run_id"]]
        kinds = [event["type"] for event in run]
        assert kinds.count("run-finish") == 1
        assert kinds[-1] == "run-finish"
        assert kinds.count("message-start") == kinds.count("message-finish") == 1
        assert kinds.count("step-start") == kinds.count("step-finish")
        for kind in ("text", "reasoning"):
            starts = [event["part_id"] for event in run if event["type"] == f"{kind}-start"]
            ends = [event["part_id"] for event in run if event["type"] == f"{kind}-end"]
            assert sorted(starts) == sorted(ends)
        called = {event["call_id"] for event in run if event["type"] in ("tool-input-start", "tool-call")}
        answered = [event["call_id"] for event in run if event["type"] in ("tool-result", "tool-error")]
        assert sorted(called) == sorted(answered)
    assert log.fold.status == "idle"
    assert all(part.get("state") in (None, "done", "output-available", "output-error") for part in log.last["parts"])


def without_system(request: list[Any]) -> list[Any]:
    return [turn for turn in request if turn[0] != "system"]


async def test_full_sequence(engine_name: str, build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """Thought, word, call with its arguments, result, answer; usage summed; a system prompt each time."""
    first: list[Item] = [Think("Hm. "), Say("Let me "), Say("look."), Call("call_1", "Rome")]
    script = Script([first, [Say("It is "), Say("clear.")], [Say("Bye.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt("How is Rome?")
        message = await log.ended()
        check(log)
        assert log.of("run-finish")[0]["status"] == "completed"
        assert (message["error"], message["finish_reason"]) == (None, "stop")
        assert [part["type"] for part in message["parts"]] == ["reasoning", "text", "tool", "text"]
        assert log.text("reasoning") == "Hm. "
        assert log.text() == "Let me look.It is clear."
        [tool] = tools_of(message)
        assert (tool["call_id"], tool["tool"], tool["input"]) == ("call_1", "look", {"city": "Rome"})
        assert (tool["state"], tool["output"]) == ("output-available", "Rome: clear")
        assert tool["started_at"] <= tool["ended_at"]
        assert [(step["finish_reason"], step["step"]) for step in log.of("step-finish")] == [
            ("tool-calls", 1),
            ("stop", 2),
        ]
        for step in log.of("step-finish"):
            assert step["usage"] is not None
            assert step["usage"]["output_tokens"] > 0
        steps = [step["usage"]["input_tokens"] for step in log.of("step-finish")]
        assert message["usage"]["input_tokens"] == sum(steps)
        kinds = [event["type"] for event in log.events]
        assert kinds.index("tool-call") < kinds.index("tool-start") < kinds.index("tool-result")
        assert kinds.index("tool-result") < kinds.index("step-finish")

        await log.prompt("Thanks")
        await log.ended(2)
        check(log)
    assert without_system(script.requests[2]) == [
        ("user", "How is Rome?"),
        ("assistant", "Let me look."),
        ("call", "call_1"),
        ("answer", "Rome: clear"),
        ("assistant", "It is clear."),
        ("user", "Thanks"),
    ]
    systems = [[text for role, text in request if role == "system"] for request in script.requests]
    assert systems[0] == systems[1] == systems[2]
    assert systems[0][:1] == ([] if engine_name == "function" else ["Be brief."])


async def test_two_calls_at_once(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """Each call has its own arguments, its own result, and its own part."""
    script = Script([[Call("call_1", "Rome"), Call("call_2", "Oslo")], [Say("Both clear.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
        check(log)
    outputs = {tool["call_id"]: (tool["input"], tool["output"]) for tool in tools_of(message)}
    assert outputs == {"call_1": ({"city": "Rome"}, "Rome: clear"), "call_2": ({"city": "Oslo"}, "Oslo: clear")}
    assert text_of(message) == "Both clear."


async def test_tool_error(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """A tool that fails ends as a failed call; the model is told and answers; the run completes."""
    script = Script([[Call("call_1", "Mordor")], [Say("I could not look.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
        check(log)
    [tool] = tools_of(message)
    assert (tool["state"], tool["outcome"], tool["interrupted"]) == ("output-error", "failed", False)
    assert "one does not simply look there" in tool["error"]
    assert log.of("run-finish")[0]["status"] == "completed"
    [answer] = [text for role, text in script.requests[1] if role == "answer"]
    assert "one does not simply look there" in answer


async def test_abort_mid_text(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """The provider is let go at once, the text stays, the error is AbortError; the next prompt is answered."""
    script = Script([[Say("Once upon "), Hold()], [Say("Hello.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        await log.until(lambda: log.fold.messages and log.text() == "Once upon ")
        await script.model.reached()
        await log.abort()
        message = await log.ended()
        assert script.model.left.is_set()
        check(log)
        assert log.of("run-finish")[0]["status"] == "aborted"
        assert log.of("run-finish")[0]["settled"] is True
        assert (message["error"], text_of(message)) == (ABORT_ERROR, "Once upon ")
        assert message["usage"] is None
        await log.prompt("Hi")
        await log.ended(2)
        check(log)
        assert log.text() == "Hello."
    assert without_system(script.requests[1]) == [("user", "Go"), ("assistant", "Once upon "), ("user", "Hi")]


async def test_abort_mid_tool(
    engine_name: str, build: Callable[[Script], Engine], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The tool is cancelled and has cleaned up before the run ends; the model is never asked again."""
    script = Script([[Say("Looking."), Call("call_1", "Bree")], [Say("Never said.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        await script.tool.reached()
        await log.until(lambda: log.of("tool-start"))
        await log.abort()
        message = await log.ended()
        if engine_name in LEAVES_TOOLS_BEHIND:
            request.node.user_properties.append(("reserve", "the tool is cancelled, its clean-up not waited for"))
            async with asyncio.timeout(PATIENCE_S):
                await script.tool.left.wait()
        assert script.tool.left.is_set()
        check(log)
    assert (message["error"], text_of(message)) == (ABORT_ERROR, "Looking.")
    [tool] = tools_of(message)
    assert (tool["state"], tool["outcome"], tool["interrupted"]) == ("output-error", "interrupted", True)
    assert len(script.requests) == 1


async def test_abort_before_the_start(build: Callable[[Script], Engine]) -> None:
    """An event that is set already: no model, no tool, nothing to close."""
    script = Script([])
    abort = asyncio.Event()
    abort.set()
    stream = build(script).stream(abort=abort, mode="prompt", session_id="s", messages=[user_message("Go")])
    events = [event async for event in stream if event["type"].endswith("-delta")]
    assert (events, script.requests) == ([], [])


async def test_close_early(build: Callable[[Script], Engine]) -> None:
    """A reader that leaves closes the provider's stream before ``aclose`` returns; nothing is left running."""
    script = Script([[Say("Once upon "), Hold()], [Say("Hello.")]])
    engine = build(script)
    before = asyncio.all_tasks()
    stream = engine.stream(abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message("Go")])
    async with aclosing(cast("AsyncGenerator[dict[str, Any], None]", stream)) as events:
        async for event in events:
            if event["type"] == "text-delta":
                break
    assert not script.model.entered.is_set() or script.model.left.is_set()
    await nothing_left(before)
    again = engine.stream(abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message("Again")])
    assert "".join([event["text"] async for event in again if event["type"] == "text-delta"]) == "Hello."


async def test_cancelled_while_it_waits(build: Callable[[Script], Engine]) -> None:
    """The reader's own task is cancelled in the middle of a step: the provider is let go, the cancel goes on."""
    script = Script([[Say("Once upon "), Hold()]])
    before = asyncio.all_tasks()

    async def read() -> None:
        stream = build(script).stream(
            abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message("Go")]
        )
        async with aclosing(cast("AsyncGenerator[dict[str, Any], None]", stream)) as events:
            async for _ in events:
                pass

    task = asyncio.create_task(read())
    await script.model.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert script.model.left.is_set()
    await nothing_left(before)


async def test_provider_error(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """A 429 in mid-answer is a RateLimitError with its status, retryable; what was said before stays."""
    script = Script([[Say("Once upon "), Fail()]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        await log.until(lambda: log.fold.messages and log.text() == "Once upon ")
        script.may_fail.set()
        message = await log.ended()
        check(log)
    assert log.of("run-finish")[0]["status"] == "failed"
    assert text_of(message) == "Once upon "
    error = message["error"]
    assert (error["reason"], error["status_code"], error["retryable"]) == ("RateLimitError", 429, True)
    assert error["message"] == "The provider asks to slow down"


async def test_resume_after_mid_text(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """The partial answer reaches the model, with word that it was interrupted, and a new message continues it."""
    script = Script([[Say("Once upon "), Hold()], [Say("a time.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt("A story")
        await log.until(lambda: log.fold.messages and log.text() == "Once upon ")
        await log.abort()
        await log.ended()
        await log.resume()
        await log.ended(2)
        check(log)
        assert log.text() == "a time."
        assert [message["role"] for message in log.fold.messages] == ["user", "assistant", "assistant"]
    user, partial, note = without_system(script.requests[1])
    assert (user, partial) == (("user", "A story"), ("assistant", "Once upon "))
    assert note[0] == "user"
    assert "interrupted" in note[1]


async def test_resume_after_mid_tool(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """The interrupted call is answered as such; the tool does not run again by itself."""
    script = Script([[Call("call_1", "Bree")], [Say("I stopped looking.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt()
        await script.tool.reached()
        await log.until(lambda: log.of("tool-start"))
        await log.abort()
        await log.ended()
        await log.resume()
        await log.ended(2)
        check(log)
        assert log.text() == "I stopped looking."
    assert script.calls == ["Bree"]
    roles = [role for role, _ in without_system(script.requests[1])]
    assert roles == ["user", "call", "answer", "user"]
    assert "may or may not have completed" in without_system(script.requests[1])[2][1]


async def test_resume_before_any_answer(build: Callable[[Script], Engine], tmp_path: Path) -> None:
    """Nothing had been said: the question is asked again, once."""
    script = Script([[Hold()], [Say("Here.")]])
    async with desk(build(script), tmp_path) as log:
        await log.prompt("Anybody?")
        await script.model.reached()
        await log.abort()
        await log.ended()
        await log.resume()
        await log.ended(2)
        check(log)
    assert without_system(script.requests[1]) == [("user", "Anybody?")]
