"""An agent of pydantic-ai: `gateway serve gateway.examples.pydantic_ai_agent:agent`."""

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import gateway

agent = Agent(TestModel(custom_output_text="It is clear."), instructions="Be brief.")


@agent.tool_plain
async def weather(city: str) -> str:
    """Tell the weather in a city, to whoever asks."""
    run = gateway.current_run()
    return f"{city}: clear, {run.principal if run else 'stranger'}"
