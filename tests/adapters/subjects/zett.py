"""zett-agent: a client of `create_agent` on an offline model of its port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zett_agent import messages
from zett_agent.client import create_agent
from zett_agent.model import ModelEvent, ModelResponse, ModelUsage, RetryOptions, ToolCallDelta
from zett_agent.providers.base import ProviderHTTPError
from zett_agent.tools import tool

from gateway.adapters.zett import engine
from tests.adapters.script import Call, Fail, Say, Script, Seen, Think

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.engine.port import Engine


class _Model:
    retry = RetryOptions(max_retries=0)

    def __init__(self, script: Script) -> None:
        self._script = script

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        said = ""
        calls: list[Any] = []
        async for item in self._script.play(_seen(request.messages)):
            match item:
                case Say(text):
                    said += text
                    yield ModelEvent.text(text)
                case Think(text):
                    yield ModelEvent.reasoning(text)
                case Call(call_id, city):
                    first, rest = item.pieces
                    place = len(calls)
                    yield ModelEvent.tool_call(ToolCallDelta(place, id_delta=call_id, name_delta="look"))
                    yield ModelEvent.tool_call(ToolCallDelta(place, arguments_delta=first))
                    yield ModelEvent.tool_call(ToolCallDelta(place, arguments_delta=rest))
                    calls.append(messages.ToolCall(call_id, "look", {"city": city}))
                case Fail():
                    raise ProviderHTTPError("slow down", status_code=429)
        answer = messages.AssistantMessage(content=said, tool_calls=tuple(calls))
        yield ModelEvent.completed(ModelResponse(answer, usage=ModelUsage(**self._script.usage)))


def build(script: Script) -> Engine:
    async def look(city: str) -> str:
        """Look at a city.

        Args:
            city: Its name.
        """
        return await script.look(city)

    async def create() -> Any:
        return await create_agent(
            _Model(script),
            tools=[tool(snippet="look(city)", guidelines="To see a city.")(look)],
            system_prompt="Be brief.",
        )

    return engine(create)


def _seen(history: Sequence[Any]) -> list[Seen]:
    seen: list[Seen] = []
    for message in history:
        match message:
            case messages.SystemMessage(content=text):
                seen.append(("system", text))
            case messages.UserMessage():
                seen.append(("user", message.text))
            case messages.ToolMessage():
                seen.append(("answer", message.text))
            case messages.AssistantMessage(content=text):
                if text:
                    seen.append(("assistant", text))
                seen.extend(("call", call.id) for call in message.tool_calls)
    return seen
