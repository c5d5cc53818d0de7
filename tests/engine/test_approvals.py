"""Approvals: policy per tool, what an answer may bring, expiry, withdrawal, and who wins."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from gateway.engine import Agent, ToolContext, tool
from gateway.engine.approvals import Answer
from gateway.engine.models.scripted import Call, ScriptedModel
from gateway.engine.outbox import Outbox
from gateway.engine.tools import Tool
from tests.engine.support import SESSION, agent_for, assert_aborted, of, read, stored, types

ran: list[Any] = []


@pytest.fixture(autouse=True)
def _forget() -> None:
    ran.clear()


@tool(policy="ask")
async def pay(context: ToolContext, amount: int) -> str:
    """Pay an amount."""
    ran.append((amount, context.answer))
    return f"paid {amount}"


class Asking:
    """A run that has come to its first question."""

    def __init__(self, agent: Agent, **options: Any) -> None:
        self.agent = agent
        self._asked: asyncio.Queue[Any] = asyncio.Queue()
        self.events = asyncio.create_task(read(agent, on=self._on, **options))

    def _on(self, event: Any) -> None:
        if event["type"] == "approval-request":
            self._asked.put_nowait(event)

    async def request(self) -> Any:
        return await self._asked.get()

    async def answer(self, request: Any, decision: Any, value: Any = None) -> bool:
        run_id = self.agent._live[SESSION].context.run_id if SESSION in self.agent._live else "over"
        return await self.agent.respond(
            session_id=SESSION, run_id=run_id, request_id=request["request_id"], decision=decision, value=value
        )


def paying(*tools: Any, then: str = "ok") -> Agent:
    return agent_for([Call("pay", {"amount": 5})], then, tools=tools or (pay,))


def asked_of(agent: Agent) -> list[Any]:
    model: Any = agent._config.model
    return list(model.requests)


def test_policy_is_one_of_three_and_approval_the_old_word_for_ask() -> None:
    assert Tool(pay.function, approval=True).policy == "ask"
    assert Tool(pay.function).policy == "allow"
    assert Tool(pay.function, policy="deny", approval=True).policy == "deny"
    with pytest.raises(ValueError, match="policy"):
        Tool(pay.function, policy="sometimes")  # type: ignore[arg-type]


async def test_a_denied_tool_is_neither_offered_nor_run() -> None:
    """Also where a model calls it all the same, from memory."""
    agent = paying(Tool(pay.function, name="pay", policy="deny"), then="I see")
    events = await read(agent)
    error = of(events, "tool-error")[0]
    assert (error["error"], error["outcome"], error["interrupted"]) == (
        "The tool pay is switched off",
        "not_run",
        False,
    )
    assert "approval-request" not in types(events)
    assert asked_of(agent)[0].tools == ()
    request = await agent.build_request(abort=asyncio.Event(), mode="prompt", session_id="other", messages=[])
    assert request.tools == ()
    assert ran == []


async def test_wrong_arguments_are_never_put_before_a_person() -> None:
    events = await read(agent_for([Call("pay", {"amount": "much"})], "ok", tools=[pay]))
    assert "approval-request" not in types(events)
    assert of(events, "tool-error")[0]["outcome"] == "failed"


async def test_the_value_of_an_allowing_answer_reaches_the_tool() -> None:
    run = Asking(paying())
    assert await run.answer(await run.request(), "allow", {"note": "from petty cash"})
    events = await run.events
    assert ran == [(5, {"note": "from petty cash"})]
    assert "custom" not in types(events)


async def test_an_edited_input_runs_instead_is_on_record_and_shown_to_the_model() -> None:
    """The call stays as the model made it; what ran beside it, so that nobody is misled later."""
    agent = paying()
    run = Asking(agent)
    request = await run.request()
    assert await run.answer(request, "allow", {"input": {"amount": 3}})
    events = await run.events
    assert ran == [(3, {"input": {"amount": 3}})]
    assert of(events, "tool-call")[0]["input"] == {"amount": 5}
    edited = of(events, "custom")[0]
    assert edited["name"] == "tool-input-edited"
    assert edited["data"] == {"request_id": request["request_id"], "input": {"amount": 3}}
    assert types(events).index("custom") < types(events).index("tool-start")
    assert asked_of(agent)[1].messages[-2].tool_calls[0].input == {"amount": 3}
    await read(agent, text="And now?")
    calls = [turn.tool_calls[0] for turn in asked_of(agent)[2].messages if getattr(turn, "tool_calls", ())]
    assert [call.input for call in calls] == [{"amount": 3}], "from the stored conversation too"


async def test_an_edited_input_is_checked_like_the_models() -> None:
    run = Asking(paying())
    await run.answer(await run.request(), "allow", {"input": {"amount": "all"}})
    events = await run.events
    assert "amount" in of(events, "tool-error")[0]["error"]
    assert of(events, "tool-error")[0]["outcome"] == "failed"
    assert ran == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "The person did not allow this call"),
        ("too expensive", "The person did not allow this call: too expensive"),
        ({"reason": "too expensive"}, "The person did not allow this call: too expensive"),
        ({"input": {"amount": 1}}, "The person did not allow this call"),
    ],
)
async def test_a_denial_and_its_reason_are_told_to_the_model(value: Any, said: str) -> None:
    agent = paying()
    run = Asking(agent)
    await run.answer(await run.request(), "deny", value)
    events = await run.events
    error = of(events, "tool-error")[0]
    assert (error["error"], error["outcome"], error["interrupted"]) == (said, "not_run", False)
    assert asked_of(agent)[1].messages[-1].content == said
    assert ran == []


async def test_the_first_answer_wins() -> None:
    run = Asking(paying())
    request = await run.request()
    answers = [await run.answer(request, "deny"), await run.answer(request, "allow")]
    events = await run.events
    assert answers == [True, False]
    assert not await run.answer(request, "allow")
    assert [event["decision"] for event in of(events, "approval-resolved")] == ["deny"]
    assert ran == []


async def test_two_questions_of_one_step_are_answered_one_by_one() -> None:
    agent = agent_for([Call("pay", {"amount": 1}, "a"), Call("pay", {"amount": 2}, "b")], "ok", tools=[pay])
    run = Asking(agent)
    first, second = await run.request(), await run.request()
    await run.answer(second, "allow")
    await run.answer(first, "deny")
    events = await run.events
    assert ran == [(2, None)]
    assert [event["call_id"] for event in of(events, "tool-error")] == ["a"]


async def test_a_question_nobody_answers_expires() -> None:
    expiring = Tool(pay.function, name="pay", policy="ask", approval_timeout_s=0.02)
    before = time.time() * 1000
    run = Asking(paying(expiring, then="I see"))
    request = await run.request()
    events = await run.events
    assert before + 19 <= request["expires_at"] <= time.time() * 1000
    assert of(events, "approval-resolved")[0]["decision"] == "expired"
    error = of(events, "tool-error")[0]
    assert (error["error"], error["outcome"]) == ("Nobody allowed this call in time", "not_run")
    assert not await run.answer(request, "allow")
    assert (events[-1]["status"], ran) == ("completed", [])
    part = (await stored(run.agent))[-1]["parts"][0]
    assert part["approval"] == {"request_id": request["request_id"], "decision": "expired"}


async def test_an_answer_taken_before_the_expiry_was_read_counts() -> None:
    """Whoever answers a question that still stands open on their screen is not told yes and then overruled."""
    expiring = Tool(pay.function, name="pay", policy="ask", approval_timeout_s=0.02)
    agent = paying(expiring)
    answers: list[bool] = []

    def answer(event: Any) -> None:
        if event["type"] == "approval-resolved" and not answers:  # read, but not yet acted upon by this reader
            run = agent._live[SESSION]
            assert run.calls is not None
            slot = next(iter(run.calls._slots.values()))
            answers.append(run.calls.respond(slot.request_id, Answer("allow")))

    events = await read(agent, on=answer)
    assert answers == [True]
    assert [event["decision"] for event in of(events, "approval-resolved")] == ["expired", "allow"]
    assert ran == [(5, None)]


async def test_two_questions_that_expire_together_both_end() -> None:
    expiring = Tool(pay.function, name="pay", policy="ask", approval_timeout_s=0.02)
    calls = [Call("pay", {"amount": 1}, "a"), Call("pay", {"amount": 2}, "b")]
    events = await read(agent_for(calls, "ok", tools=[expiring]))
    assert [event["decision"] for event in of(events, "approval-resolved")] == ["expired", "expired"]
    assert events[-1]["status"] == "completed"


async def test_everybody_who_waits_for_the_reader_is_woken() -> None:
    outbox = Outbox(4)
    outbox.put({"type": "custom"})
    waiting = [asyncio.create_task(outbox.drained()) for _ in range(2)]
    await outbox.get()
    reader = asyncio.create_task(outbox.get())
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    outbox.close()
    assert await reader is None


async def test_an_abort_withdraws_the_question_before_anything_else() -> None:
    abort = asyncio.Event()
    run = Asking(paying(), abort=abort)
    request = await run.request()
    abort.set()
    events = await run.events
    assert_aborted(events)
    closing = types(events)[types(events).index("approval-request") + 1 :]
    assert closing == ["approval-resolved", "tool-error", "step-finish", "message-finish", "run-finish"]
    assert of(events, "approval-resolved")[0]["decision"] == "withdrawn"
    assert of(events, "tool-error")[0]["outcome"] == "not_run"
    assert not await run.answer(request, "allow")
    assert ran == []


async def test_the_question_of_an_aborted_run_is_not_asked_again_on_resume() -> None:
    """The model decides anew; a question that was withdrawn has been withdrawn."""
    abort = asyncio.Event()
    model = ScriptedModel([[Call("pay", {"amount": 5})], "Shall I try again?"])
    agent = Agent(model, tools=[pay])
    run = Asking(agent, abort=abort)
    await run.request()
    abort.set()
    await run.events
    events = await read(agent, mode="resume")
    assert "approval-request" not in types(events)
    assert ran == []
