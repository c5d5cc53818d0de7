"""What only the OpenAI Agents SDK has: handoffs, guardrails, a context, models that do not stream their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("agents", reason="tested where it is installed")

from agents import Agent, GuardrailFunctionOutput, RunConfig, RunContextWrapper, function_tool, input_guardrail
from agents.testing import ScriptedModel, assistant_message, function_call

import gateway
from gateway.adapters.openai_agents import engine
from tests.adapters.desk import PRINCIPAL, desk, tools_of

if TYPE_CHECKING:
    from pathlib import Path

QUIET: Any = RunConfig(tracing_disabled=True)


async def test_a_handoff_is_a_call_and_the_other_agent_goes_on(tmp_path: Path) -> None:
    """Two agents, one message: the handoff ends before the other one speaks."""
    other = Agent(name="other", model=ScriptedModel([[assistant_message("Other here.")]]))
    model = ScriptedModel([[function_call("transfer_to_other", {}, call_id="h1")]])
    async with desk(engine(Agent(name="first", model=model, handoffs=[other]), run_config=QUIET), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
    [call] = tools_of(message)
    assert (call["tool"], call["state"]) == ("transfer_to_other", "output-available")
    assert log.text() == "Other here."
    assert len(log.of("step-finish")) == 2


async def test_a_context_is_made_for_each_run(tmp_path: Path) -> None:
    """Tools get what ``context`` made, and it knows for whom."""

    def context() -> dict[str, str]:
        run = gateway.current_run()
        assert run is not None
        return {"who": run.principal}

    @function_tool
    async def whoami(wrapper: RunContextWrapper[dict[str, str]]) -> str:
        """Say for whom this works."""
        return wrapper.context["who"]

    model = ScriptedModel([[function_call("whoami", {}, call_id="c1")], [assistant_message("Done.")]])
    served = engine(Agent(name="a", model=model, tools=[whoami]), context=context, run_config=QUIET)
    async with desk(served, tmp_path) as log:
        await log.prompt()
        message = await log.ended()
    assert [tool["output"] for tool in tools_of(message)] == [PRINCIPAL]


async def test_a_guardrail_ends_the_run_as_filtered(tmp_path: Path) -> None:
    """The person learns that it was held back, not that something broke."""

    @input_guardrail(run_in_parallel=False)
    async def never(context: Any, agent: Any, asked: Any) -> GuardrailFunctionOutput:
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)

    agent = Agent(name="a", model=ScriptedModel([]), input_guardrails=[never])
    async with desk(engine(agent, run_config=QUIET), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
    assert message["error"]["reason"] == "ContentFilterError"
