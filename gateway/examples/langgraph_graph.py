"""A graph of LangGraph: `gateway serve gateway.examples.langgraph_graph:graph`."""

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

model = GenericFakeChatModel(messages=iter(lambda: AIMessage("It is clear."), None))


async def answer(state: MessagesState) -> MessagesState:
    """Ask the model."""
    return {"messages": [await model.ainvoke(state["messages"])]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
