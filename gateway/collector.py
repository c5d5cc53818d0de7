"""The garbage collector's full passes, by the clock.

A full pass goes over every object of the process, and nothing else happens meanwhile. Python makes one whenever a
quarter of what it knows is new, so a server that fills up makes many. What start-up made is kept out of all of them,
and they come when a fixed share of the time allows it.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from gateway.tasks import ended

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

SHARE = 300
"""A full pass may take one part in so many of the time: 50 ms (500 streaming sessions) every 15 s."""

YOUNG = (20_000, 10)
"""Objects made before the youngest are looked at, and how often until the next older are, too. Python's 700 is less
than what one commit of a thousand streams holds, and looking at those took a twelfth of the time (measured)."""

RARELY_S = 60.0
"""So long what is new waits where it is not much: less than 200,000 objects, see :data:`YOUNG`."""

MANY = 10
"""Looks at the older ones, more than 200,000 objects each, after which a full pass does not wait for its share."""

LOOK_EVERY_S = 0.5

NEVER = 2**31 - 1


class Collector:
    """Decides when a full pass is due, and makes it."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._ended = clock()
        self._took = 0.0

    def look(self) -> bool:
        """Make a full pass if one is due; say whether."""
        started = self._clock()
        young, middle, old = gc.get_count()
        new = young > YOUNG[0] // 4 or middle > 0
        since = started - self._ended
        due = old > 0 or (new and since >= RARELY_S)
        if not due or (old < MANY and since < SHARE * self._took):
            return False
        gc.collect()
        self._ended = self._clock()
        self._took = self._ended - started
        return True


@asynccontextmanager
async def collecting() -> AsyncIterator[None]:
    """Keep what exists now out of the collector for good, and make its full passes by the clock."""
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*YOUNG, NEVER)
    watching = asyncio.create_task(_watch(Collector()), name="garbage collector")
    try:
        yield
    finally:
        await ended([watching])
        gc.set_threshold(*thresholds)


async def _watch(collector: Collector) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        collector.look()
