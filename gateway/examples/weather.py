"""An agent with a tool: `gateway serve gateway.examples.weather:agent`."""

from gateway import Agent, ScriptedModel, tool


@tool(reads=True)
async def weather(city: str) -> dict[str, str]:
    """Tell the weather in a city."""
    return {"city": city, "sky": "clear"}


agent = Agent(ScriptedModel(), tools=[weather], system_prompt="Be brief.")
