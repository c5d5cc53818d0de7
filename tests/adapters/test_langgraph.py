"""What only LangGraph has: checkpoints, subgraphs, nodes that do not stream, a writer, tools that end the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("langgraph", reason="tested where it is installed")

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from gateway.adapters.langgraph import engine
from tests.adapters.desk import desk, tools_of

if TYPE_CHECKING:
    from pathlib import Path


class Counting(MessagesState):
    turns: int


async def test_a_checkpoint_keeps_all_of_the_state_but_the_messages(tmp_path: Path) -> None:
    """The thread is the session: what a node counts goes on, and no message is there twice."""
    seen: list[list[str]] = []

    async def answer(state: Counting) -> dict[str, Any]:
        seen.append([str(message.content) for message in state["messages"]])
        turns = state.get("turns", 0) + 1
        return {"messages": [AIMessage(f"turn {turns}")], "turns": turns}

    graph = StateGraph(Counting).add_node(answer).add_edge(START, "answer").compile(checkpointer=InMemorySaver())
    async with desk(engine(graph), tmp_path) as log:
        for number, text in enumerate(("a", "b"), start=1):
            await log.prompt(text)
            await log.ended(number)
        assert log.text() == "turn 2"
    assert seen == [["a"], ["a", "turn 1", "b"]]


async def test_a_subgraph_is_heard_once(tmp_path: Path) -> None:
    """Its tokens come as they are said, and the outer graph's copy of the message is not a second answer."""
    model = GenericFakeChatModel(messages=iter([AIMessage("one two", id="m1")]))

    async def say(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState).add_node(say).add_edge(START, "say").compile()
    outer = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()
    async with desk(engine(outer), tmp_path) as log:
        await log.prompt()
        await log.ended()
        assert log.text() == "one two"
        assert len(log.of("step-finish")) == 1


async def test_a_state_of_another_shape_and_what_a_node_writes(tmp_path: Path) -> None:
    """``state`` makes the input; a node's own stream comes through as ``custom`` events."""

    class Question(MessagesState):
        question: str

    async def answer(state: Question) -> dict[str, Any]:
        get_stream_writer()({"searched": 3})
        return {"messages": [AIMessage(state["question"].upper())]}

    def state(messages: list[BaseMessage]) -> dict[str, Any]:
        return {"question": str(messages[-1].content), "messages": []}

    graph = StateGraph(Question).add_node(answer).add_edge(START, "answer").compile()
    async with desk(engine(graph, state=state), tmp_path) as log:
        await log.prompt("why")
        await log.ended()
        assert log.text() == "WHY"
        [custom] = log.of("custom")
        assert (custom["name"], custom["data"]) == ("langgraph", {"searched": 3})


async def test_a_tool_whose_error_nobody_handles_ends_the_run(tmp_path: Path) -> None:
    """The tool is named as what failed, the run fails with it, and its words stay in the log."""

    @tool
    async def look(city: str) -> str:
        """Look at a city."""
        raise LookupError(f"sk-secret {city}")

    call = ToolCall(name="look", args={"city": "Rome"}, id="call_1", type="tool_call")

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("", tool_calls=[call])]}

    graph = StateGraph(MessagesState).add_node(ask).add_node("tools", ToolNode([look], handle_tool_errors=False))
    graph.add_edge(START, "ask")
    graph.add_edge("ask", "tools")
    async with desk(engine(graph.compile()), tmp_path) as log:
        await log.prompt()
        message = await log.ended()
    [failed] = tools_of(message)
    assert (failed["state"], failed["outcome"], failed["error"]) == ("output-error", "failed", "LookupError")
    assert (log.of("run-finish")[0]["status"], message["error"]["message"]) == ("failed", "LookupError")
    assert "secret" not in repr(log.events)
