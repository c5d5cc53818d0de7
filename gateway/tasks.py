"""Ending tasks that run until they are told not to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

AGAIN_S = 0.5
"""How long a task may take to clean up until it is cancelled again."""


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait for their end, whatever it is; cancel again those that go on.

    A cancellation can get lost in a library: before Python 3.12 ``asyncio.wait_for`` returns normally where its result
    comes at the same moment, and the Redis client and the pool of psycopg use it. A task that loops then goes on for
    ever, and whoever waits for it waits for ever.

    Whoever is cancelled here waits on all the same, and is cancelled then: it may be one of those that are cancelled
    again, and must not leave its own behind.
    """
    waiting = {task for task in tasks if not task.done()}
    cancelled: asyncio.CancelledError | None = None
    while waiting:
        for task in waiting:
            task.cancel()
        try:
            await asyncio.wait(waiting, timeout=AGAIN_S)
        except asyncio.CancelledError as exc:
            cancelled = exc
        waiting = {task for task in waiting if not task.done()}
    if cancelled is not None:
        raise cancelled
