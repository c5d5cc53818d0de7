"""Frameworks against a loopback provider: an abort hangs up on it, and its errors come out typed and without its words.

LangGraph brings no provider of its own, so it has none here; it is cancelled by the same relay.
"""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine import user_message
from gateway.engine.errors import EngineError
from tests.engine.provider import HEADERS, Provider, answer, chunk, failure, provider
from tests.support_stopwatch import Stopwatch

if TYPE_CHECKING:
    from gateway.engine.port import Engine

ABORT_LIMIT_S = 0.1


def pydantic_ai(served: Provider) -> Engine:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from gateway.adapters.pydantic_ai import engine

    model = OpenAIChatModel("local", provider=OpenAIProvider(base_url=served.url, api_key="k"))
    return engine(Agent(model), model_settings={"max_retries": 0})


def openai_agents(served: Provider) -> Engine:
    from agents import Agent, OpenAIChatCompletionsModel, RunConfig
    from openai import AsyncOpenAI

    from gateway.adapters.openai_agents import engine

    client = AsyncOpenAI(base_url=served.url, api_key="k", max_retries=0)
    model = OpenAIChatCompletionsModel("local", client)
    return engine(Agent(name="wire", model=model), run_config=RunConfig(tracing_disabled=True))


def zett(served: Provider) -> Engine:
    from gateway.adapters.zett import engine

    create_agent = import_module("zett_agent.client").create_agent
    options = import_module("zett_agent.model").RetryOptions(max_retries=0)
    model = import_module("zett_agent.providers.openai").OpenAIProvider(
        "local", "k", base_url=served.url, retry=options, response=False
    )

    async def create() -> Any:
        return await create_agent(model)

    return engine(create)


MAKE = {"pydantic_ai": pydantic_ai, "openai_agents": openai_agents, "zett": zett}
engines = pytest.mark.parametrize("engine_name", MAKE)


async def read(engine: Engine, abort: asyncio.Event, spoken: asyncio.Event | None = None) -> str:
    text = ""
    async for event in engine.stream(abort=abort, mode="prompt", session_id="s", messages=[user_message("Hi")]):
        if event["type"] == "text-delta":
            text += event["text"]
            if spoken is not None and text:
                spoken.set()
    return text


@engines
async def test_an_answer_comes_through(engine_name: str) -> None:
    """The whole way, over a real client."""
    async with provider(answer({"role": "assistant", "content": "Hel"}, {"content": "lo"})) as served:
        assert await read(MAKE[engine_name](served), asyncio.Event()) == "Hello"


@engines
@pytest.mark.parametrize("plan", [[None], [HEADERS, None], [HEADERS, chunk({"content": "Half"}), None]])
async def test_an_abort_hangs_up(engine_name: str, plan: list[bytes | None]) -> None:
    """Before headers, before the first token, in the middle: the provider's socket is closed within 100 ms."""
    async with provider(plan) as served:
        abort, spoken = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(read(MAKE[engine_name](served), abort, spoken))
        async with asyncio.timeout(10):
            await (spoken if len(plan) == 3 else served.received).wait()
            with Stopwatch() as watch:
                abort.set()
                await served.closed.wait()
                assert watch.seconds() < ABORT_LIMIT_S
            assert await task == ("Half" if len(plan) == 3 else "")


@engines
@pytest.mark.parametrize(
    ("plan", "reason", "retryable"),
    [
        (failure(401, {"message": "bad key sk-secret"}), "AuthError", False),
        (failure(429, {"message": "sk-secret"}, "retry-after: 7\r\n"), "RateLimitError", True),
        (failure(400, {"message": "sk-secret", "code": "context_length_exceeded"}), "ContextOverflowError", False),
        (failure(500, {"message": "sk-secret"}), "APIError", True),
    ],
)
async def test_an_error_is_typed(engine_name: str, plan: list[bytes | None], reason: str, retryable: bool) -> None:
    """Each gets the reason a person can act on; the provider's text stays in the log."""
    async with provider(plan) as served:
        with pytest.raises(EngineError) as caught:
            await read(MAKE[engine_name](served), asyncio.Event())
    assert (caught.value.reason, caught.value.retryable) == (reason, retryable)
    assert "secret" not in caught.value.message


@engines
async def test_nobody_there(engine_name: str) -> None:
    """A provider that cannot be reached is an APIError that may pass."""
    async with provider() as served:
        pass
    with pytest.raises(EngineError) as caught:
        await read(MAKE[engine_name](served), asyncio.Event())
    assert (caught.value.reason, caught.value.retryable) == ("APIError", True)
