"""pydantic-ai: an Agent on its FunctionModel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, ModelRetry, messages
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.function import AgentInfo, DeltaThinkingPart, DeltaToolCall, FunctionModel

from gateway.adapters import adapt
from tests.adapters.script import Call, Fail, Say, Script, Seen, Think

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine.port import Engine


def build(script: Script) -> Engine:
    async def model(history: list[messages.ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
        index = 0
        async for item in script.play(_seen(history)):
            match item:
                case Say(text):
                    yield text
                case Think(text):
                    yield {index: DeltaThinkingPart(content=text)}
                case Call(call_id):
                    first, rest = item.pieces
                    yield {index: DeltaToolCall(name="look", json_args=first, tool_call_id=call_id)}
                    yield {index: DeltaToolCall(json_args=rest)}
                case Fail():
                    raise ModelHTTPError(429, "local")
            index += 1

    agent = Agent(FunctionModel(stream_function=model), system_prompt="Be brief.")

    @agent.tool_plain(retries=3)
    async def look(city: str) -> str:
        try:
            return await script.look(city)
        except LookupError as error:
            raise ModelRetry(str(error)) from error

    engine = adapt(agent)
    assert engine is not None
    return engine


def _seen(history: list[messages.ModelMessage]) -> list[Seen]:
    seen: list[Seen] = []
    for part in (part for message in history for part in message.parts):
        match part:
            case messages.SystemPromptPart(content=text):
                seen.append(("system", text))
            case messages.UserPromptPart(content=str() as text):
                seen.append(("user", text))
            case messages.TextPart(content=text):
                seen.append(("assistant", text))
            case messages.ToolCallPart(tool_call_id=call_id):
                seen.append(("call", call_id))
            case messages.ToolReturnPart(content=content):
                seen.append(("answer", str(content)))
    return seen
