"""The offline model: the same words for the same question, and a resume that goes on where it stopped."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from gateway.engine import Agent, ModelRequest, ScriptedModel, ToolError, default_agent, tool, user_message
from gateway.engine.default import count_tool, time_tool
from gateway.engine.messages import UserMessage
from gateway.engine.models.answers import FAILING, RECOVERED, SHOWN, WELCOME, Answer
from gateway.engine.models.scripted import words
from tests.engine.support import assert_aborted, of, read, text, when


def demo(**options: Any) -> Agent:
    return Agent(ScriptedModel(pace_s=0), tools=[count_tool(0), time_tool], **options)


@pytest.mark.parametrize("said", ["", " ", "one", "one  two\n\n three ", WELCOME])
def test_words_joined_are_the_text_again(said: str) -> None:
    assert "".join(words(said)) == said


async def test_says_the_same_thing_twice() -> None:
    first, second = await read(demo(), text="Hello"), await read(demo(), text="Hello")
    assert text(first) == text(second) == WELCOME
    assert len(of(first, "text-delta")) > 50
    usage = of(first, "message-finish")[0]["usage"]
    assert usage["input_tokens"] == 1
    assert usage["output_tokens"] == len(words(WELCOME))


async def test_thinks_when_asked_to() -> None:
    events = await read(demo(), text="Please think about it")
    assert text(events, "reasoning")
    assert text(events)
    assert of(events, "message-finish")[0]["usage"]["reasoning_tokens"] > 0


async def test_counts_with_the_tool_and_shows_its_progress() -> None:
    events = await read(demo(), text="count to 3")
    assert of(events, "tool-call")[0]["input"] == {"n": 3}
    assert of(events, "tool-result")[0]["output"] == [1, 2, 3]
    assert of(events, "tool-progress")[-1]["data"] == {"done": 3, "of": 3}
    assert "counted to 3" in text(events)


async def test_asks_the_clock() -> None:
    events = await read(demo(), text="What time is it?")
    assert of(events, "tool-call")[0]["tool"] == "time"
    assert of(events, "tool-result")[0]["output"] in text(events)


async def test_lists_the_working_directory() -> None:
    agent = default_agent()
    assert isinstance(agent._config.model, ScriptedModel)
    agent._config.model.pace_s = 0
    events = await read(agent, text="Which files are here?")
    assert "pyproject.toml" in of(events, "tool-result")[0]["output"]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("some code", "```python"),
        ("a table please", "|---|"),
        ("a table and code", "|---|"),
        ("a table and code", "```python"),
        ("tell me a long story", "lighthouse"),
    ],
)
async def test_shows_what_is_asked_for(asked: str, found: str) -> None:
    assert found in text(await read(demo(), text=asked))


async def test_tells_a_long_story() -> None:
    assert len(text(await read(demo(), text="story")).split()) > 300


async def test_fails_on_request_and_goes_on_after_a_resume() -> None:
    agent = demo()
    events = await read(agent, text="Now fail")
    assert events[-1]["error"]["reason"] == "APIError"
    assert events[-1]["error"]["status_code"] == 503
    assert text(events) == FAILING
    resumed = await read(agent, mode="resume")
    assert resumed[-1]["status"] == "completed"
    assert text(resumed) == RECOVERED


@pytest.mark.parametrize("stops", [1, 3])
async def test_continues_the_partial_text_after_a_resume(stops: int) -> None:
    """However often it is stopped, the pieces are the whole answer."""
    agent, said = demo(queue_limit=4), ""
    abort = asyncio.Event()
    events = await read(agent, abort=abort, text="Hi", on=when("text-delta", abort.set))
    for _ in range(stops - 1):
        said += text(events)
        abort = asyncio.Event()
        events = await read(agent, abort=abort, mode="resume", on=when("text-delta", abort.set))
        assert_aborted(events)
    said += text(events)
    assert 0 < len(said) < len(WELCOME)
    said += text(await read(agent, mode="resume"))
    assert said == WELCOME


async def test_does_not_count_again_after_an_interrupted_count() -> None:
    agent, abort = Agent(ScriptedModel(pace_s=0), tools=[count_tool(3600)]), asyncio.Event()
    assert_aborted(await read(agent, abort=abort, text="count to 9", on=when("tool-start", abort.set)))
    resumed = await read(agent, mode="resume")
    assert of(resumed, "tool-call") == []
    assert "will not run it again" in text(resumed)


async def test_keeps_the_pace_that_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setenv("GATEWAY_SCRIPTED_PACE", "0.5")
    model = ScriptedModel(sleep=sleep)
    async for _ in model.stream(ModelRequest([UserMessage("Hi")])):
        pass
    assert set(slept) == {0.5}
    assert len(slept) == len(words(WELCOME))
    assert ScriptedModel(["scripted"]).pace_s == 0


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"{city}: clear"


@tool
async def forecast(days: int, city: str = "Rome") -> str:
    """Tell the weather to come."""
    if days > 7:
        raise ToolError("nobody knows")
    return f"{city}, {days} days: clear"


@pytest.mark.parametrize(
    ("said", "called", "answer"),
    [
        ("weather Rome", {"city": "Rome"}, "The answer is: Rome: clear."),
        ('call weather {"city": "New York"}', {"city": "New York"}, "The answer is: New York: clear."),
        ("forecast 3", {"days": 3}, "The answer is: Rome, 3 days: clear."),
        ("forecast 30", {"days": 30}, "The tool `forecast` gave no result: nobody knows."),
        ("forecast soon", {"days": "soon"}, "The tool `forecast` gave no result: "),
        ("weather", None, None),
        ("weather {broken", None, None),
        ("What is the weather like?", None, None),
    ],
)
async def test_a_tool_of_ones_own_is_called_by_its_name(said: str, called: Any, answer: str | None) -> None:
    """A newcomer's first tool can be tried without a key: the prompt begins with its name."""
    agent = Agent(ScriptedModel(pace_s=0), tools=[weather, forecast])
    message = await agent.invoke(abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message(said)])
    assert [call.input for call in message.tool_calls] == ([] if called is None else [called])
    if answer is not None:
        assert answer in message.content


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ("clear", "The answer is: clear."),
        ('[1, "two"]', "The answer is: 1, two."),
        ('{"city": "Rome", "clear": true, "note": ""}', "The answer is: city Rome, clear true."),
        ('{"exit_code": 0, "stdout": "a\\nb\\n", "stderr": ""}', "The answer is:\n\n```\na\nb\n```\n"),
        ('{"exit_code": 1, "stdout": "", "stderr": "no"}', "The answer is:\n\n```\nno\n```\n"),
        ('{"text": "````md\\n````"}', "The answer is:\n\n`````\n````md\n````\n`````\n"),
        (
            json.dumps({"text": "x" * (SHOWN + 1)}),
            f"The answer is:\n\n```\n{'x' * SHOWN}\n```\n\n\nThat was the beginning; it has 1,001 characters.",
        ),
    ],
)
def test_a_result_is_told_as_a_person_reads_it(result: str, told: str) -> None:
    assert Answer("", call=("tool", {})).after(result, is_error=False) == told


async def test_a_command_without_a_shell_is_told_what_is_missing() -> None:
    message = await Agent(ScriptedModel(pace_s=0)).invoke(
        abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message("$ ls")]
    )
    assert "--shell" in message.content
