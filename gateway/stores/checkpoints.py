"""SQLite's write-ahead log on its way into the database: in a thread of its own, so that no commit pays for it.

SQLite would do it within a commit. A checkpoint of 8 MiB takes 25 ms and, by its syncs, the disk's time; meanwhile
commits go on, so it never reaches the end of the log by itself. What it leaves is done on the loop (:meth:`finish`):
only then does the log start over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

logger = logging.getLogger(__name__)

EVERY_BYTES = 8 * 1024 * 1024
"""Written to the log since the last checkpoint before another one is due."""

PASSES = 8
FEW_PAGES = 32
"""A checkpoint goes on, so often at most, until so little has come meanwhile; the rest is done on the loop. With one
pass, and the sync left to the loop, that was held up for 7 ms every second (12,500 tokens a second)."""

NICENESS = 10
"""How much lower the thread's priority is: a tenth of the core's time while the loop has something to do."""

LONG_PAGES = 4096
"""Pages in the log (16 MiB) past which a checkpoint has to reach its end: only then the next commit starts it over."""

PASSIVE = "PRAGMA wal_checkpoint(PASSIVE)"
"""Never waits for a writer or reader; what it could not move, the next one will."""


class Checkpoints:
    """Runs checkpoints of one database, one at a time."""

    def __init__(self) -> None:
        self.running: asyncio.Future[None] | None = None
        """The checkpoint under way, or the last one."""
        self._thread = ThreadPoolExecutor(1, "store-checkpoint", _step_back)
        self._connection: Connection | None = None
        self._file: int | None = None
        self._written = 0
        self._pages = 0
        self._failed = False

    def open(self, path: str, connect: Callable[[], Connection]) -> None:
        """Connect to a database that exists. Raises what ``connect`` does, and OSError."""
        self._connection = self._thread.submit(connect).result()
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    async def close(self) -> None:
        """End the thread and its connection; :meth:`release` is next, after all other connections."""
        if self.running is not None:
            await asyncio.wait([self.running])
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                await asyncio.to_thread(self._connection.close)
            self._connection = None
        self._thread.shutdown()

    def release(self) -> None:
        """Let go of the file. No connection may be open: closing it ends the locks that they have on it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def wrote(self, size: int) -> None:
        """A transaction of about so many bytes is in the log."""
        self._written += size

    @property
    def _due(self) -> bool:
        return self._written > EVERY_BYTES

    @property
    def _busy(self) -> bool:
        return self.running is not None and not self.running.done()

    async def keep_up(self) -> None:
        """Wait for a checkpoint while the next one is due: others on the machine may leave it next to no time."""
        if self._due and self._busy and self.running is not None:
            await asyncio.wait([self.running])

    def begin(self) -> None:
        """Begin a checkpoint if one is due."""
        if self._due and not self._busy:
            self._written = 0
            self.running = asyncio.get_running_loop().run_in_executor(self._thread, self._run)

    def _run(self) -> None:
        assert self._connection is not None
        assert self._file is not None
        try:
            for _ in range(PASSES):
                _, pages, done = self._connection.exec_driver_sql(PASSIVE).one()
                self._connection.rollback()
                if pages - done < FEW_PAGES:
                    break
            os.fsync(self._file)  # what the one on the loop would have to do
        except (SQLAlchemyError, OSError) as exc:  # nothing is lost: the log has it all, and grows
            if not self._failed:
                logger.warning("the write-ahead log stays as it is for now: %s", exc)
            self._failed = True
        else:
            self._failed = False
            self._pages = pages

    def finish(self, writer: Connection) -> None:
        """Checkpoint what came during the last one, by who writes: little, and nobody else writes now."""
        if self._pages > LONG_PAGES:
            self._pages = 0
            with contextlib.suppress(SQLAlchemyError):  # the next one in the thread says so, if it lasts
                writer.exec_driver_sql(PASSIVE)
                writer.rollback()


def _step_back() -> None:
    """Let this thread's work go after the loop's, where both are on one core: nobody waits for a checkpoint."""
    if sys.platform == "linux":  # where a thread has a priority of its own
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
