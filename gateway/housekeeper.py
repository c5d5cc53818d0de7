"""What a node does beside its commands: recover after a failed store, drop old events, empty its memory, sweep."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.ids import now_ms
from gateway.stores.base import StoreUnavailable
from gateway.tasks import ended

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.session import Session

logger = logging.getLogger(__name__)

EVERY_S = 0.5
"""How often it looks; also how soon after the store is back its sessions are."""

LEAVE_AT_ONCE = 50
"""So many sessions leave memory until everybody else has had a turn: to take one apart takes some 20 µs."""

SWEEP_S = 60.0
"""How often the store forgets what nobody can ask for any more."""


class Housekeeper:
    """One task of the hub's. ``lost`` are sessions whose commit failed: their head has to be read again."""

    def __init__(self, hub: Hub) -> None:
        self.lost: set[Session] = set()
        self._hub = hub
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start looking."""
        self._task = asyncio.create_task(self._run(), name="housekeeper")

    async def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            await ended([self._task])

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        last_sweep = loop.time()
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.recover()
                self.tidy(loop.time())
                await self.let_go()
                if loop.time() - last_sweep >= SWEEP_S:
                    last_sweep = loop.time()
                    now = now_ms()
                    await self._hub.store.sweep(now, now - int(self._hub.settings.retain_s * 1000))
            except StoreUnavailable as exc:
                logger.warning("the store is still unavailable: %s", exc)
            except Exception:
                logger.exception("housekeeping failed")

    async def recover(self) -> None:
        """Read the head of lost sessions again, and seal them as lost. Raises ``StoreUnavailable``."""
        sessions = self._hub.sessions
        for session in list(self.lost):
            if sessions.get(session.key) is not session:
                self.lost.discard(session)  # deleted meanwhile; its id may belong to another by now
                continue
            await self._hub.recover(session)

    def tidy(self, now: float) -> None:
        """Drop events past retention, compact what has come to rest."""
        settings, sessions = self._hub.settings, self._hub.sessions
        before = now_ms() - int(settings.retain_s * 1000)
        for session in list(sessions.values()):
            log = session.log
            if session.broken or session.deleting:
                continue
            expired = log.expire(before, settings.retain_bytes) or log.cut
            log.cut = False
            if expired or (session.run is None and log.compacted_to < log.head):
                log.compact()
        self._hub.latches.expire(now)

    async def let_go(self) -> None:
        """Have what has been at rest for long leave memory."""
        hub, clock = self._hub, asyncio.get_running_loop().time
        leaving = 0
        for session in list(hub.sessions.values()):
            if clock() - session.touched <= hub.settings.evict_s or hub.sessions.get(session.key) is not session:
                continue
            if session.log.compacted_to == session.log.head and hub.parking.may_leave(session):
                hub.parking.leave(session)
                leaving += 1
                if leaving % LEAVE_AT_ONCE == 0:
                    await asyncio.sleep(0)
