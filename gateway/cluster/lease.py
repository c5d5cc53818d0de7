"""Being alive: a node renews its lease in the store, and knows when it has run out without asking anybody."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.stores.base import StoreUnavailable
from gateway.tasks import ended

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.stores.base import Renewal, SharedStore

logger = logging.getLogger(__name__)

SAFE_SHARE = 0.75
"""A node stops what it runs after this share of its lease: cancelled engines are out before another node may start,
also where the machine is so busy that a process waits for its turn. Two renewals may fail until then."""


class Lease:
    """The lease of this node, renewed each third of its time.

    The node's own clock starts before the store is asked, so by it the lease never lasts longer than by the store's.
    ``lapsed`` is a timer's callback: timers run before tasks that wake at the same moment, so a process that was frozen
    stops its runs before they go on.
    """

    def __init__(
        self,
        store: SharedStore,
        node_id: str,
        lease_s: float,
        *,
        renewed: Callable[[Renewal], None],
        lapsed: Callable[[], None],
    ) -> None:
        self._store = store
        self._node_id = node_id
        self._lease_s = lease_s
        self._renewed = renewed
        self._lapsed = lapsed
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def good(self) -> bool:
        """Nobody else can own what this node owns."""
        return asyncio.get_running_loop().time() < self._until

    async def start(self) -> None:
        """Take the lease for the first time, and keep it. Raises ``StoreUnavailable``."""
        renewal = await self._renew()
        self._renewed(renewal)
        self._task = asyncio.create_task(self._run(), name="lease")

    async def stop(self) -> None:
        """Renew no more."""
        if self._task is not None:
            await ended([self._task])
        if self._timer is not None:
            self._timer.cancel()

    def look_again(self, seconds: float) -> None:
        """Call ``lapsed`` again after a while, unless the lease is renewed before."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._lapsed)

    async def _run(self) -> None:
        every = self._lease_s / 3
        while True:
            await asyncio.sleep(every)
            try:
                async with asyncio.timeout(max(every, self._lease_s / 6)):
                    renewal = await self._renew()
                every = self._lease_s / 3
                self._renewed(renewal)
            except (StoreUnavailable, TimeoutError) as exc:
                every = self._lease_s / 12
                logger.warning("the lease could not be renewed: %s", exc or "the store does not answer")
            except Exception:
                logger.exception("renewing failed")

    async def _renew(self) -> Renewal:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        renewal = await self._store.renew(self._node_id, self._lease_s)
        self._until = asked_at + SAFE_SHARE * self._lease_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._until, self._lapsed)
        return renewal
