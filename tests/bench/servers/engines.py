"""Engines under measurement. What they do is said by the prompt's text, an order as JSON; all rivals run the same."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

TOKEN = "token "


def order_of(messages: Any) -> dict[str, Any]:
    """Read the order out of the last message."""
    order: dict[str, Any] = json.loads(messages[-1]["parts"][0]["text"])
    return order


async def flat_out(*, abort: asyncio.Event, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    """Do as ordered.

    - ``{"events": n}``: n text deltas with no wait between them;
    - ``{"distinct": n}``: n events that cannot be joined (tool progress), for a log of exactly that many;
    - ``{"pace": s, "seconds": t}``: a delta every s seconds, that bears the time (ns, monotonic) at which it was due,
      so that an engine that is kept waiting counts as late;
    - ``{"wait": 1}``: one delta, then nothing until the abort.
    """
    order = order_of(messages)
    if "pace" in order:
        async for event in paced(order["pace"], order.get("seconds", 1e9), abort):
            yield event
    elif "wait" in order:
        yield {"type": "text-delta", "text": TOKEN}
        await abort.wait()
    elif "distinct" in order:
        yield {"type": "tool-call", "call_id": "c", "tool": "t", "input": {}}
        yield {"type": "tool-start", "call_id": "c"}
        for number in range(order["distinct"]):
            yield {"type": "tool-progress", "call_id": "c", "data": number}
        yield {"type": "tool-result", "call_id": "c", "output": "done"}
    else:
        for _ in range(order["events"]):
            yield {"type": "text-delta", "text": TOKEN}


async def paced(pace: float, seconds: float, abort: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
    """Keep to the beat whatever happens: who is late catches up."""
    start = time.perf_counter()
    number = 0
    while number * pace < seconds and not abort.is_set():
        due = start + number * pace
        wait = due - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        yield {"type": "text-delta", "text": f"t{int(due * 1e9)} "}
        number += 1
