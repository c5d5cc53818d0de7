"""The group-commit writer: what all sessions have pending goes into one transaction and is published once durable.

Deltas that arrive while a transaction is under way wait for the next one, so load makes commits bigger, not more
frequent.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from gateway.ids import now_ms
from gateway.stores.base import StoreUnavailable
from gateway.tasks import ended

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.log import Batch, Effect, Log
    from gateway.stores.base import Store

logger = logging.getLogger(__name__)


class Writer:
    """Commits what all sessions have pending in one transaction, publishes, repeats. Owned by the hub."""

    def __init__(self, store: Store) -> None:
        self.committed: Callable[[Sequence[tuple[Log, Batch]]], None] | None = None
        """Told of each transaction once all of it has been published here: other nodes want it too."""
        self._store = store
        self._dirty: dict[Log, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[Log] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start committing."""
        self._task = asyncio.create_task(self._run(), name="writer")

    async def stop(self) -> None:
        """Commit what is pending, then stop."""
        await self._idle.wait()
        if self._task is not None:
            await ended([self._task])
            self._task = None

    async def settled(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    def schedule(self, log: Log) -> None:
        """Have a log's pending events committed."""
        if log not in self._dirty:
            self._dirty[log] = None
            self._wake.set()
            self._idle.clear()

    def busy(self, log: Log) -> bool:
        """Say whether something of a log is being committed, or will be."""
        return log in self._dirty or log in self._under_way

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._dirty:
                logs, self._dirty = list(self._dirty), {}
                await self._write(logs)
                del logs  # until the next commit, what leaves memory would still be here
            if not self._dirty:
                self._idle.set()

    async def _write(self, logs: list[Log]) -> None:
        now = now_ms()
        taken = [(log, batch) for log in logs if (batch := self._take(log, now)) is not None]
        if not taken:
            return
        self._under_way = {log for log, _ in taken}
        try:
            await self._commit(taken, now)
        finally:
            self._under_way = set()

    async def _commit(self, taken: list[tuple[Log, Batch]], now: int) -> None:
        try:
            refused = await self._store.commit([batch.commit for _, batch in taken])
        except Exception as exc:
            if not isinstance(exc, StoreUnavailable):
                logger.exception("the store failed in a way it should not")
            else:
                logger.error("the store is unavailable: %s", exc)
            for log, batch in taken:
                self._lose(log, batch.effects)
            return
        if self.committed is not None:
            taken = [(log, batch) for log, batch in taken if self._stands(log, batch, refused)]
        for log, batch in taken:
            try:
                log.publish(batch, now)
            except Exception:  # it is durable; one session's fault must not end the others' writer
                logger.exception("session %s: publishing failed", log.session_id)
        if self.committed is not None:
            self.committed(taken)

    def _stands(self, log: Log, batch: Batch, refused: frozenset[int]) -> bool:
        """Say whether a batch is to be published here; lets go of what is not this node's any more."""
        if log.sid not in refused and log.fence == batch.commit.fence:
            return True
        for effect in batch.effects:
            effect.failed()
        if log.fence == batch.commit.fence:
            log.drop_pending()
            log.refused()
        return False

    def _take(self, log: Log, now: int) -> Batch | None:
        effects = log.effects
        if log.following:
            log.drop_pending()
            return None
        try:
            return log.take(now)
        except Exception:
            logger.exception("session %s: what it appended cannot be written", log.session_id)
            self._lose(log, effects)
            return None

    def _lose(self, log: Log, effects: Sequence[Effect]) -> None:
        for effect in effects:
            effect.failed()
        log.drop_pending()
        log.lost()
