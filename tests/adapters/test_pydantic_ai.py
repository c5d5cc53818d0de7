"""What only pydantic-ai has: dependencies made per run, answers with a shape, and the principal in a tool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pydantic_ai", reason="tested where it is installed")

from pydantic import BaseModel
from pydantic_ai import Agent, RunContext
from pydantic_ai.models.test import TestModel

import gateway
from gateway.adapters.pydantic_ai import engine
from tests.adapters.desk import PRINCIPAL, SESSION, desk, tools_of

if TYPE_CHECKING:
    from pathlib import Path


async def test_dependencies_are_made_once_per_run_for_whoever_asks(tmp_path: Path) -> None:
    """``deps`` and the tools see the run; two runs share nothing."""
    made: list[str] = []

    def deps() -> str:
        run = gateway.current_run()
        assert run is not None
        made.append(run.run_id)
        return f"{run.principal}/{run.session_id}"

    agent = Agent(TestModel(), deps_type=str)

    @agent.tool
    async def whoami(context: RunContext[str]) -> str:
        """Say for whom this works."""
        return context.deps

    async with desk(engine(agent, deps=deps), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
        assert [tool["output"] for tool in tools_of(message)] == [f"{PRINCIPAL}/{SESSION}"]
        await log.prompt()
        await log.ended(2)
    assert made == [event["run_id"] for event in log.of("run-start")]


async def test_an_answer_with_a_shape_is_a_call_that_came_true(tmp_path: Path) -> None:
    """pydantic-ai answers with a shape by calling an output tool, whose arguments a person sees."""

    class Weather(BaseModel):
        city: str

    agent = Agent(TestModel(custom_output_args={"city": "Rome"}), output_type=Weather)
    async with desk(engine(agent), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
    [call] = tools_of(message)
    assert (call["input"], call["state"]) == ({"city": "Rome"}, "output-available")
    assert log.of("run-finish")[0]["status"] == "completed"
