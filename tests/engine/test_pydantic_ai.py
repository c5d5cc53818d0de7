"""The provider model against a loopback server that speaks an OpenAI-compatible endpoint's SSE."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine import Agent, RetryOptions, tool
from tests.engine.provider import HEADERS, Provider, answer, chunk, failure, provider
from tests.engine.support import assert_aborted, of, read, text, types, when
from tests.support_stopwatch import Stopwatch

openai = pytest.importorskip("openai", reason="the extra `models` is not installed")

from gateway.engine.models.providers import openai_compatible  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.engine.models.pydantic_ai import PydanticAIModel

ABORT_LIMIT_S = 0.1


def model_at(served: Provider, **options: Any) -> PydanticAIModel:
    return openai_compatible("local", base_url=served.url, api_key="k", **options)


async def test_streams_text_reasoning_and_usage() -> None:
    """What streams in streams out, thought before word, with what it cost."""
    plan = answer({"role": "assistant", "reasoning_content": "Hm"}, {"content": "Hel"}, {"content": "lo"})
    async with provider(plan) as served:
        events = await read(Agent(model_at(served), system_prompt="Be brief"), text="Hi")
    assert text(events) == "Hello"
    assert text(events, "reasoning") == "Hm"
    assert of(events, "message-finish")[0]["usage"] == {"input_tokens": 7, "output_tokens": 3}
    sent = served.requests[0]["messages"]
    assert [(message["role"], message["content"]) for message in sent] == [("system", "Be brief"), ("user", "Hi")]


async def test_calls_a_tool_and_sends_its_answer_back() -> None:
    """Streamed arguments become one checked call; its answer goes out under the provider's call id."""

    @tool
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    start = {"index": 0, "id": "call_x", "type": "function", "function": {"name": "add", "arguments": ""}}
    call = answer(
        {"role": "assistant", "tool_calls": [start]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 2, '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"b": 3}'}}]},
        finish="tool_calls",
    )
    async with provider(call, answer({"content": "5"})) as served:
        events = await read(Agent(model_at(served), tools=[add]))
    assert of(events, "tool-call")[0]["input"] == {"a": 2, "b": 3}
    assert of(events, "tool-result")[0] == {"type": "tool-result", "call_id": "call_x", "output": 5}
    assert "".join(event["text"] for event in of(events, "tool-input-delta")) == '{"a": 2, "b": 3}'
    assert text(events) == "5"
    sent = served.requests[1]["messages"]
    assert sent[-1] == {"role": "tool", "tool_call_id": "call_x", "content": "5"}
    assert served.requests[0]["tools"][0]["function"]["name"] == "add"


async def assert_abort_closes(served: Provider, ready: asyncio.Event, on: Callable[[asyncio.Event], Any]) -> Any:
    abort = asyncio.Event()
    task = asyncio.create_task(read(Agent(model_at(served)), abort=abort, on=on(ready)))
    await ready.wait()
    with Stopwatch() as watch:
        abort.set()
        await served.closed.wait()
        assert watch.seconds() < ABORT_LIMIT_S
    events = await task
    assert_aborted(events)
    return events


async def test_case_04_while_connecting_with_no_headers_yet() -> None:
    """A provider that has not answered at all is hung up on within 100 ms."""
    async with provider([None]) as served:
        events = await assert_abort_closes(served, served.received, lambda ready: lambda event: None)
    assert types(events) == ["message-start", "step-start", "step-finish", "message-finish", "run-finish"]


async def test_case_05_headers_but_no_delta_closes_the_socket() -> None:
    """The same once its headers are here."""
    async with provider([HEADERS, None]) as served:
        await assert_abort_closes(served, served.received, lambda ready: lambda event: None)


async def test_case_06_mid_text_closes_the_socket() -> None:
    """The same in the middle of its answer, which is kept."""
    async with provider([HEADERS, chunk({"content": "Half "}), None]) as served:
        ready = asyncio.Event()
        events = await assert_abort_closes(served, ready, lambda ready: when("text-delta", ready.set))
    assert text(events) == "Half "


@pytest.mark.parametrize(
    ("plan", "reason", "retryable"),
    [
        (failure(401, {"message": "bad key sk-secret"}), "AuthError", False),
        (failure(429, {"message": "slow"}, "retry-after: 7\r\n"), "RateLimitError", True),
        (
            failure(400, {"message": "This model's maximum context", "code": "context_length_exceeded"}),
            "ContextOverflowError",
            False,
        ),
        (failure(500, {"message": "oops"}), "APIError", True),
        (failure(400, {"message": "no"}), "APIError", False),
    ],
)
async def test_translates_errors_and_leaks_nothing(plan: list[bytes | None], reason: str, retryable: bool) -> None:
    """Each error gets the reason a person can act on; the provider's text stays in the log."""
    async with provider(plan) as served:
        events = await read(Agent(model_at(served, retry=RetryOptions(max_retries=0))))
    error = events[-1]["error"]
    assert (error["reason"], error["retryable"]) == (reason, retryable)
    assert "secret" not in repr(events)


async def test_retries_with_the_providers_own_pause_before_the_first_token() -> None:
    """A rate limit is waited out, as long as the provider asks for, and the answer comes after all."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    limit = failure(429, {"message": "slow"}, "retry-after: 7\r\n")
    async with provider(limit, answer({"content": "Hello"})) as served:
        events = await read(Agent(model_at(served), sleep=sleep))
    assert slept == [7.0]
    assert text(events) == "Hello"
    assert of(events, "retry")[0]["delay_s"] == 7.0


async def test_no_retry_after_the_first_token() -> None:
    """What has been seen is not said again: a stream that breaks off fails the run."""
    async with provider([HEADERS, chunk({"content": "Half "})]) as served:
        events = await read(Agent(model_at(served)))
    assert text(events) == "Half "
    assert events[-1]["error"]["reason"] == "APIError"
    assert of(events, "retry") == []


async def test_output_limit_is_an_error_that_can_be_resumed() -> None:
    """An answer cut at the model's limit is not passed off as whole."""
    async with provider(answer({"content": "Once upon"}, finish="length")) as served:
        events = await read(Agent(model_at(served)))
    assert events[-1]["error"]["reason"] == "OutputLengthError"
    assert text(events) == "Once upon"
