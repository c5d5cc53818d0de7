"""Engines under measurement: they yield as fast as they are asked, or at a pace."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def flat_out(*, abort: asyncio.Event, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    """``{"events": N}``: N text deltas with no wait between them. ``{"pace": s}``: one every s seconds, for ever."""
    order = json.loads(messages[-1]["parts"][0]["text"])
    if "pace" in order:
        while not abort.is_set():
            yield {"type": "text-delta", "text": "token "}
            await asyncio.sleep(order["pace"])
        return
    for _ in range(order["events"]):
        yield {"type": "text-delta", "text": "token "}


async def distinct(*, abort: asyncio.Event, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    """``{"events": N}``: N events that cannot be joined (tool progress), for a log of exactly that many."""
    order = json.loads(messages[-1]["parts"][0]["text"])
    yield {"type": "tool-call", "call_id": "c", "tool": "t", "input": {}}
    yield {"type": "tool-start", "call_id": "c"}
    for number in range(order["events"]):
        yield {"type": "tool-progress", "call_id": "c", "data": number}
    yield {"type": "tool-result", "call_id": "c", "output": "done"}
