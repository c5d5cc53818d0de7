"""A flag that one task waits for: an ``asyncio.Event`` at a tenth of its memory, for what every connection has."""

from __future__ import annotations

import asyncio


class Wakeup:
    """Set by anybody, waited for by one task, which clears it."""

    __slots__ = ("_set", "_waiter")

    def __init__(self) -> None:
        self._set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        """Let the waiting task, or the next one that waits, go on."""
        self._set = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def wait(self) -> None:
        """Wait until set, and clear."""
        if not self._set:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._set = False
