"""The last word on a provider's connection."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class OpenResponses:
    """The HTTP responses that each task is reading, to be closed by us whatever an SDK's nested generators do.

    Google's leaves them to the garbage collector: a stream that is left while data is waiting would stay connected, and
    the provider would go on generating. ``opened`` is for the ``response`` event hook of an HTTP client.
    """

    def __init__(self) -> None:
        self._by_task: dict[asyncio.Task[Any] | None, list[Any]] = {}

    async def opened(self, response: Any) -> None:
        """Note a response of the task at hand."""
        self._by_task.get(asyncio.current_task(), []).append(response)

    @asynccontextmanager
    async def closing(self) -> AsyncIterator[None]:
        """Close on exit what this task has opened meanwhile."""
        task = asyncio.current_task()
        mine = self._by_task[task] = []
        try:
            yield
        finally:
            self._by_task.pop(task, None)
            for response in mine:
                await response.aclose()
