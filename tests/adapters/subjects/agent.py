"""Our own Agent, held to the same contract."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.engine import Agent, ModelEvent, ModelResponse, RetryOptions, tool
from gateway.engine import AssistantMessage as Answer
from gateway.engine.errors import RateLimitError, ToolError
from gateway.engine.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from tests.adapters.script import Call, Fail, Say, Script, Seen, Think

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.engine.messages import ModelMessage
    from gateway.engine.model import ModelRequest
    from gateway.engine.port import Engine


class _Model:
    retry = RetryOptions(max_retries=0)

    def __init__(self, script: Script) -> None:
        self._script = script

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        calls: list[ToolCall] = []
        said: list[str] = []
        async for item in self._script.play([("system", request.system_prompt or ""), *seen(request.messages)]):
            match item:
                case Say(text):
                    said.append(text)
                    yield ModelEvent.text(text)
                case Think(text):
                    yield ModelEvent.reasoning(text)
                case Call(call_id, city):
                    yield ModelEvent.tool_input_start(call_id, "look")
                    for piece in item.pieces:
                        yield ModelEvent.tool_input_delta(call_id, piece)
                    calls.append(ToolCall(call_id, "look", {"city": city}, "".join(item.pieces)))
                    yield ModelEvent.tool_call(calls[-1])
                case Fail():
                    raise RateLimitError("The provider asks to slow down", status_code=429)
        answer = Answer("".join(said), "", tuple(calls))
        yield ModelEvent.completed(ModelResponse(answer, "tool-calls" if calls else "stop", self._script.usage))


def build(script: Script) -> Engine:
    @tool(reads=True)
    async def look(city: str) -> str:
        """Look at a city."""
        try:
            return await script.look(city)
        except LookupError as error:
            raise ToolError(str(error)) from error

    agent: Engine = Agent(_Model(script), tools=[look], system_prompt="Be brief.")
    return agent


def seen(turns: Sequence[ModelMessage]) -> list[Seen]:
    """Give turns as the script writes them down."""
    out: list[Seen] = []
    for turn in turns:
        match turn:
            case UserMessage(content=text):
                out.append(("user", text))
            case ToolMessage(content=text):
                out.append(("answer", text))
            case AssistantMessage():
                if turn.content:
                    out.append(("assistant", turn.content))
                out.extend(("call", call.call_id) for call in turn.tool_calls)
    return out
