"""An agent of the OpenAI Agents SDK: `gateway serve gateway.examples.openai_agent:agent`."""

from agents import Agent, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call


@function_tool
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: clear"


model = ScriptedModel([[function_call("weather", {"city": "Rome"}, call_id="1")], [assistant_message("It is clear.")]])
agent = Agent(name="weather", instructions="Be brief.", model=model, tools=[weather])
