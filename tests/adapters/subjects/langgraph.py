"""LangGraph: a graph of a model node and the prebuilt ToolNode, on a streaming chat model of langchain_core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import openai
from langchain_core import messages
from langchain_core.language_models import BaseChatModel
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from gateway.adapters import adapt
from tests.adapters.script import Call, Fail, Say, Script, Seen, Think, request_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine.port import Engine


class _Model(BaseChatModel):
    script: Any

    @property
    def _llm_type(self) -> str:
        return "script"

    def _generate(self, *args: Any, **options: Any) -> ChatResult:
        raise NotImplementedError("streams only")

    async def _astream(
        self, messages: list[messages.BaseMessage], *args: Any, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        calls = 0
        async for item in self.script.play(_seen(messages)):
            match item:
                case Say(text):
                    yield _chunk(text)
                case Think(text):
                    yield _chunk([{"type": "reasoning", "reasoning": text, "index": 0}])
                case Call(call_id):
                    first, rest = item.pieces
                    yield _chunk("", {"name": "look", "id": call_id, "args": first, "index": calls})
                    yield _chunk("", {"name": None, "id": None, "args": rest, "index": calls})
                    calls += 1
                case Fail():
                    response = httpx2.Response(429, request=httpx2.Request("POST", "http://local"))
                    raise openai.RateLimitError("slow down", response=response, body=None)
        usage = self.script.usage
        yield ChatGenerationChunk(
            message=messages_chunk(
                content="",
                usage_metadata={**usage, "total_tokens": sum(usage.values())},
                response_metadata={"finish_reason": "tool_calls" if calls else "stop"},
            )
        )


messages_chunk: Any = messages.AIMessageChunk


def _chunk(content: Any, call: dict[str, Any] | None = None) -> ChatGenerationChunk:
    calls = [] if call is None else [{**call, "type": "tool_call_chunk"}]
    return ChatGenerationChunk(message=messages_chunk(content=content, tool_call_chunks=calls))


def build(script: Script) -> Engine:
    model = _Model(script=script)

    @tool
    async def look(city: str) -> str:
        """Look at a city."""
        return await script.look(city)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke([messages.SystemMessage("Be brief."), *state["messages"]])]}

    graph = StateGraph(MessagesState)
    graph.add_node("ask", ask)
    graph.add_node("tools", ToolNode([look], handle_tool_errors=True))
    graph.add_edge(START, "ask")
    graph.add_conditional_edges("ask", tools_condition)
    graph.add_edge("tools", "ask")
    engine = adapt(graph.compile())
    assert engine is not None
    return engine


def _seen(history: list[messages.BaseMessage]) -> list[Seen]:
    seen: list[Seen] = []
    for message in history:
        text = request_text(message.content)
        match message:
            case messages.SystemMessage():
                seen.append(("system", text))
            case messages.HumanMessage():
                seen.append(("user", text))
            case messages.ToolMessage():
                seen.append(("answer", text))
            case messages.AIMessage():
                if text:
                    seen.append(("assistant", text))
                seen.extend(("call", call["id"] or "") for call in message.tool_calls)
    return seen
