"""Engines that can be steered: one that announces nothing, one that declines."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Steerable:
    """Says a word, waits to be steered, answers, and ends."""

    def __init__(self, *, takes: bool) -> None:
        self._takes = takes
        self._steered: dict[str, asyncio.Queue[str]] = {}

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]
    ) -> AsyncIterator[dict[str, Any]]:
        text = messages[-1]["parts"][0]["text"]
        yield {"type": "text-delta", "text": f"heard {text}"}
        if text != "wait":
            return
        queue = self._steered.setdefault(session_id, asyncio.Queue())
        stop = asyncio.ensure_future(abort.wait())
        word = asyncio.ensure_future(queue.get())
        await asyncio.wait([stop, word], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if word.done() and word.result():
            yield {"type": "text-delta", "text": f"steered to {word.result()}"}
        word.cancel()

    async def steer(self, *, session_id: str, run_id: str, messages: Sequence[Any]) -> bool:
        text = messages[-1]["parts"][0]["text"]
        if text == "hang":
            await asyncio.Event().wait()
        self._steered.setdefault(session_id, asyncio.Queue()).put_nowait(text if self._takes else "")
        return self._takes


takes = Steerable(takes=True)
declines = Steerable(takes=False)
