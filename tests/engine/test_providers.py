"""OpenAI, Anthropic and Google by one string, against loopback servers that speak each one's streaming format."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine import Agent, RetryOptions, tool
from gateway.engine.models import model_from
from gateway.engine.models.scripted import ScriptedModel
from tests.engine.dialects import DIALECTS, SECRET, Dialect, Fault
from tests.engine.provider import HEADERS, Forever, Provider, provider
from tests.engine.support import assert_aborted, of, read, text, types, when
from tests.support_stopwatch import Stopwatch

if TYPE_CHECKING:
    from gateway.engine.model import Model

for extra in ("openai", "anthropic", "google.genai"):
    pytest.importorskip(extra, reason="the extra `models` is not installed")

ABORT_LIMIT_S = 0.1
NEVER = RetryOptions(max_retries=0)


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    found: Dialect = request.param
    for variable in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "GEMINI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv(found.key, SECRET)
    return found


def model_at(dialect: Dialect, served: Provider, **options: Any) -> Model:
    return model_from(f"{dialect.name}:{dialect.model}", dialect.url(served), **options)


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_streams_text_and_reasoning_and_brings_the_key_from_the_environment(dialect: Dialect) -> None:
    async with provider(dialect.whole("Hel", "lo", reasoning="Hm")) as served:
        events = await read(Agent(model_at(dialect, served), system_prompt="Be brief"), text="Hi")
    assert (text(events), text(events, "reasoning")) == ("Hello", "Hm")
    assert [event["text"] for event in of(events, "text-delta")] == ["Hel", "lo"], "as it came, not at the end"
    assert "Be brief" in repr(served.requests[0])
    assert SECRET in served.heads[0]
    assert events[-1]["status"] == "completed"


async def test_usage_per_step_and_run_and_what_it_cost_where_that_is_known(dialect: Dialect) -> None:
    """An endpoint that merely speaks OpenAI's format may be anybody's: it has no price."""
    async with provider(dialect.whole(call=True), dialect.whole("5")) as served:
        events = await read(Agent(model_at(dialect, served), tools=[add]))
    steps = [event["usage"] for event in of(events, "step-finish")]
    assert [(usage["input_tokens"], usage["output_tokens"]) for usage in steps] == [(7, 3), (7, 3)]
    total = of(events, "message-finish")[0]["usage"]
    assert (total["input_tokens"], total["output_tokens"]) == (14, 6)
    if dialect.name == "openai":
        assert "cost" not in total
    else:
        assert steps[0]["cost"] > 0
        assert total["cost"] == pytest.approx(2 * steps[0]["cost"])


async def test_calls_a_tool_and_sends_its_result_back(dialect: Dialect) -> None:
    async with provider(dialect.whole("Let me see. ", call=True), dialect.whole("5")) as served:
        events = await read(Agent(model_at(dialect, served), tools=[add]))
    call = of(events, "tool-call")[0]
    assert (call["tool"], call["input"], call["call_id"]) == ("add", {"a": 2, "b": 3}, "call_x")
    assert types(events).index("tool-input-start") < types(events).index("tool-call")
    assert of(events, "tool-result")[0]["output"] == 5
    assert dialect.results(served.requests[1]) == ["5"]
    assert text(events) == "Let me see. 5"


async def test_signed_reasoning_goes_back_with_the_result_that_it_led_to(dialect: Dialect) -> None:
    """Anthropic and Google refuse a result whose signed reasoning is missing; nobody else is sent any."""
    async with provider(dialect.whole(reasoning="Hm", call=True), dialect.whole("5")) as served:
        await read(Agent(model_at(dialect, served), tools=[add]))
    assert ("c2lnbmVk" in repr(served.requests[1])) is (dialect.name != "openai")


async def test_an_answer_of_one_conversation_never_shows_in_another(dialect: Dialect) -> None:
    """Two conversations at once, and a provider that numbers their calls alike."""
    both = asyncio.Barrier(2)

    @tool(name="add")
    async def meet(a: int, b: int) -> int:
        await both.wait()
        return a + b

    plans = [
        dialect.whole("Alice's secret", reasoning="about Alice", call=True),
        dialect.whole("Bob's secret", reasoning="about Bob", call=True),
        dialect.whole("5"),
        dialect.whole("5"),
    ]
    async with provider(*plans) as served:
        agent = Agent(model_at(dialect, served), tools=[meet])
        await asyncio.gather(read(agent, session_id="one"), read(agent, session_id="two"))
    second = [repr(request) for request in served.requests[2:]]
    assert [("Alice" in sent, "Bob" in sent) for sent in sorted(second, key=lambda sent: "Bob" in sent)] == [
        (True, False),
        (False, True),
    ]


async def aborted_at(dialect: Dialect, plan: list[Any], *, seen: str | None) -> list[Any]:
    """Abort once a request is there, or an event of type ``seen``; the provider has to notice within 100 ms."""
    async with provider(plan) as served:
        ready, abort = asyncio.Event(), asyncio.Event()
        agent = Agent(model_at(dialect, served))
        task = asyncio.create_task(read(agent, abort=abort, on=when(seen or "", ready.set)))
        await (served.received if seen is None else ready).wait()
        with Stopwatch() as watch:
            abort.set()
            await asyncio.wait_for(served.closed.wait(), 5)
            assert watch.seconds() < ABORT_LIMIT_S
        events = await task
    assert_aborted(events)
    return events


async def test_an_abort_closes_the_connection_before_any_headers(dialect: Dialect) -> None:
    await aborted_at(dialect, [None], seen=None)


async def test_an_abort_closes_the_connection_before_the_first_token(dialect: Dialect) -> None:
    await aborted_at(dialect, [HEADERS, None], seen=None)


async def test_an_abort_closes_the_connection_in_mid_text_and_the_step_is_not_measured(dialect: Dialect) -> None:
    """Some providers have said a part of the usage by now; half a number is none."""
    events = await aborted_at(dialect, [*dialect.begun("Half "), None], seen="text-delta")
    assert text(events) == "Half "
    assert of(events, "step-finish")[0]["usage"] is None
    assert of(events, "message-finish")[0]["usage"] is None


async def test_an_abort_ends_a_stream_that_never_ends(dialect: Dialect) -> None:
    plan = dialect.begun("Once ", "again ")
    events = await aborted_at(dialect, [*plan, Forever(plan[-1])], seen="text-delta")
    assert text(events).startswith("Once ")


async def test_a_slow_first_token_is_waited_for(dialect: Dialect) -> None:
    gate = asyncio.Event()
    plan = dialect.whole("At last")
    async with provider([plan[0], gate, *plan[1:]]) as served:
        task = asyncio.create_task(read(Agent(model_at(dialect, served))))
        await served.received.wait()
        gate.set()
        events = await task
    assert text(events) == "At last"
    assert of(events, "retry") == []


async def test_a_stream_cut_in_the_middle_fails_and_keeps_its_text(dialect: Dialect) -> None:
    """What has been seen is not said again, and half an answer is not passed off as whole."""
    async with provider(dialect.begun("Half ")) as served:
        events = await read(Agent(model_at(dialect, served)))
    assert text(events) == "Half "
    assert (events[-1]["status"], events[-1]["error"]["reason"]) == ("failed", "APIError")
    assert events[-1]["error"]["retryable"] is True
    assert len(served.requests) == 1


async def test_a_connection_reset_in_the_middle_is_the_same(dialect: Dialect) -> None:
    """Promised more bytes than came."""
    plan = dialect.begun("Half ")
    head = HEADERS.replace(b"connection: close", b"content-length: 1000000")
    async with provider([head, *plan[1:]]) as served:
        events = await read(Agent(model_at(dialect, served)))
    assert text(events) == "Half "
    assert events[-1]["error"]["reason"] == "APIError"


async def test_a_malformed_chunk_fails_and_shows_nothing_of_itself(dialect: Dialect) -> None:
    async with provider([*dialect.begun("Half "), dialect.malformed()]) as served:
        events = await read(Agent(model_at(dialect, served)))
    assert text(events) == "Half "
    assert events[-1]["error"]["reason"] == "APIError"
    assert "candidates" not in events[-1]["error"]["message"]


async def test_the_output_limit_is_told_apart(dialect: Dialect) -> None:
    async with provider(dialect.cut_short("Once upon")) as served:
        events = await read(Agent(model_at(dialect, served)))
    assert events[-1]["error"]["reason"] == "OutputLengthError"
    assert text(events) == "Once upon"


@pytest.mark.parametrize(
    ("fault", "reason", "retryable"),
    [
        ("auth", "AuthError", False),
        ("rate", "RateLimitError", True),
        ("overflow", "ContextOverflowError", False),
        ("broken", "APIError", True),
        ("overloaded", "APIError", True),
    ],
)
async def test_each_fault_has_its_name_and_leaks_nothing(
    dialect: Dialect, fault: Fault, reason: str, retryable: bool
) -> None:
    async with provider(dialect.fault(fault)) as served:
        events = await read(Agent(model_at(dialect, served, retry=NEVER)))
    error = events[-1]["error"]
    assert (error["reason"], error["retryable"]) == (reason, retryable)
    assert error["status_code"] >= 400
    assert SECRET not in repr(events)
    assert len(served.requests) == 1


async def test_retries_are_ours_and_keep_to_retry_after(dialect: Dialect) -> None:
    """One pause that shows as an event, not a hidden one in the provider's client."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    plans = [dialect.fault("rate", "retry-after: 7\r\n"), dialect.fault("broken"), dialect.whole("Hello")]
    async with provider(*plans) as served:
        events = await read(Agent(model_at(dialect, served), sleep=sleep))
    assert slept == [7.0, 4.0]
    assert [event["error"]["reason"] for event in of(events, "retry")] == ["RateLimitError", "APIError"]
    assert text(events) == "Hello"
    assert len(served.requests) == 3


async def test_a_provider_that_is_not_there(dialect: Dialect) -> None:
    async with provider() as served:
        pass
    events = await read(Agent(model_at(dialect, served, retry=NEVER)))
    assert (events[-1]["error"]["reason"], events[-1]["error"]["retryable"]) == ("APIError", True)


def test_a_missing_key_is_said_in_one_line(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(dialect.key)
    with pytest.raises(ValueError, match=dialect.key) as caught:
        model_from(f"{dialect.name}:{dialect.model}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpt-4o", "openai:", ":gpt-4o", "nobody:model"])
def test_what_is_no_model_is_said_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        model_from(name)
    assert "\n" not in str(caught.value)


def test_only_the_providers_with_an_address_of_ones_own_take_a_url() -> None:
    with pytest.raises(ValueError, match="takes no URL"):
        model_from("groq:llama", "http://127.0.0.1:1/v1")


def test_the_offline_model_needs_no_provider() -> None:
    assert isinstance(model_from("scripted"), ScriptedModel)
