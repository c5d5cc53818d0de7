"""A client of zett-agent: `gateway serve gateway.examples.zett_agent_client:agent`."""

from collections.abc import AsyncIterator

from zett_agent.client import AgentClient, create_agent
from zett_agent.messages import AssistantMessage
from zett_agent.model import ModelEvent, ModelRequest, ModelResponse, RetryOptions

from gateway.adapters import zett


class Model:
    """Says the same thing every time."""

    retry = RetryOptions(max_retries=0)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Answer."""
        yield ModelEvent.text("It is clear.")
        yield ModelEvent.completed(ModelResponse(AssistantMessage(content="It is clear.")))


async def create() -> AgentClient:
    """Make the client: `create_agent` has to be awaited, and a module cannot."""
    return await create_agent(Model(), system_prompt="Be brief.")


agent = zett.engine(create)
