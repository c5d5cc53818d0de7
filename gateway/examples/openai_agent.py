"""An agent of the OpenAI Agents SDK: `gateway serve gateway.examples.openai_agent:agent`."""

from typing import Any

from agents import Agent, function_tool
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call


@function_tool
async def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"{city}: clear"


def respond(call: ModelCall) -> list[Any]:
    """Look first, then answer; and be ready for the next request."""
    model.enqueue(ModelStep.respond(respond))
    looked = isinstance(call.input, list) and call.input[-1].get("type") == "function_call_output"
    return [assistant_message("It is clear.") if looked else function_call("weather", {"city": "Rome"}, call_id="1")]


model = ScriptedModel([ModelStep.respond(respond)])
agent = Agent(name="weather", instructions="Be brief.", model=model, tools=[weather])
