"""The product's own agent as a served engine, alone and beside engines that do not listen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.engine.default import default_agent
from tests.e2e.engines import director

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

agent = default_agent()


async def mixed(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """The agent for ``story`` and ``tool``, else the director."""
    said = messages[-1]["parts"][0]["text"]
    if said == "tool":
        messages = [{**messages[-1], "parts": [{"type": "text", "text": "count to 1000"}]}]
    events = (
        director(abort=abort, mode=mode, session_id=session_id, messages=messages)
        if said.startswith("{")
        else agent.stream(abort=abort, mode="prompt", session_id=session_id, messages=messages)
    )
    async for event in events:
        yield event
