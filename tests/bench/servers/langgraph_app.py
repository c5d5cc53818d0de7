"""The same tokens from a LangGraph graph: ``langgraph dev``, in an environment of its own."""

from __future__ import annotations

from typing import TypedDict

from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph

TOKEN = "token "


class State(TypedDict):
    """What the client sends."""

    events: int


async def answer(state: State) -> State:
    """Write as many tokens as ordered to the custom stream."""
    write = get_stream_writer()
    for _ in range(state["events"]):
        write({"type": "text-delta", "text": TOKEN})
    write({"type": "run-finish"})
    return state


graph = StateGraph(State).add_node(answer).add_edge(START, "answer").compile()
