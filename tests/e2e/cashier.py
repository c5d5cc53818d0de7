"""An agent of the product for the black-box tests, served as `cashier:payer`: it asks before it pays."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway import Agent, ToolContext, tool
from gateway.engine import AssistantMessage, ModelEvent, ModelResponse, RetryOptions, ToolCall, ToolMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine import ModelRequest


class Cashier:
    """Calls the tool that the person named, then repeats what came of it."""

    retry = RetryOptions(max_retries=0)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        last: Any = request.messages[-1]
        said = AssistantMessage()
        if isinstance(last, ToolMessage):
            said.content = last.content
            yield ModelEvent.text(last.content)
        elif last.note:
            said.content = "Shall I ask again?"
            yield ModelEvent.text(said.content)
        else:
            tool, amount = last.content.split()
            call = ToolCall("call_1", tool, {"amount": int(amount)})
            said.tool_calls = (call,)
            yield ModelEvent.tool_call(call)
        yield ModelEvent.completed(ModelResponse(said))


def receipt(context: ToolContext, amount: int) -> dict[str, Any]:
    with Path(os.environ["RECEIPTS"]).open("a") as receipts:
        print(context.session_id, amount, file=receipts)
    return {"paid": amount, "answer": context.answer}


@tool(policy="ask", approval_timeout_s=600)
async def pay(context: ToolContext, amount: int) -> dict[str, Any]:
    """Pay an amount once a person allows it."""
    return receipt(context, amount)


@tool(policy="ask", approval_timeout_s=0.3)
async def hurry(context: ToolContext, amount: int) -> dict[str, Any]:
    """The same, for the quick."""
    return receipt(context, amount)


@tool(policy="deny")
async def steal(context: ToolContext, amount: int) -> dict[str, Any]:
    """Never."""
    return receipt(context, amount)


payer = Agent(Cashier(), tools=[pay, hurry, steal])
