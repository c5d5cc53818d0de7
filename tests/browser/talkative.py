"""An engine that goes on and on: thirty words a second."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


async def stream(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """Talk until stopped, or for a minute; a first prompt is answered in a word, to have something that stays."""
    if messages[-1]["parts"][0]["text"] == "hello":
        yield {"type": "text-delta", "text": "hello"}
        return
    for n in range(1800):
        if abort.is_set():
            return
        yield {"type": "text-delta", "text": f"word{n} "}
        await asyncio.sleep(1 / 30)
