"""The README's agents are served as it says: named to the gateway as they are, and answered through a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.app import load_engine
from gateway.config import Settings
from tests.adapters.desk import desk, tools_of

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = {
    "pydantic_ai": "gateway.examples.pydantic_ai_agent:agent",
    "langgraph": "gateway.examples.langgraph_graph:graph",
    "openai_agents": "gateway.examples.openai_agent:agent",
    "zett": "gateway.examples.zett_agent_client:agent",
}


@pytest.mark.parametrize("engine_name", EXAMPLES)
async def test_an_agent_in_the_readme_answers(engine_name: str, tmp_path: Path) -> None:
    async with desk(load_engine(EXAMPLES[engine_name], Settings()), tmp_path) as log:
        for number in (1, 2):  # not for one question only
            await log.prompt("How is Rome?")
            message = await log.ended(number)
            assert log.text() == "It is clear."
    assert [end["status"] for end in log.of("run-finish")] == ["completed"] * 2
    for tool in tools_of(message):
        assert tool["state"] == "output-available"
        assert "clear" in tool["output"]
