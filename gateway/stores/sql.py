"""The store on SQLite, in WAL mode.

Commits run on the event loop itself: with ``synchronous=NORMAL`` a commit is a write to the page cache
(0.05 ms measured), while a thread would wait up to 5 ms for the interpreter lock of a busy loop. ``?sync=full`` makes
every commit an fsync (it then survives power loss, not only ``kill -9``) and moves it to a thread. Reads run in a
thread on a connection of their own; WAL lets them pass the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError

from gateway.ids import now_ms
from gateway.stores import migrate as migration
from gateway.stores.base import ChunkRow, StoreUnavailable, StoreUnusable
from gateway.stores.checkpoints import Checkpoints
from gateway.stores.queries import Reads, stored_session
from gateway.stores.recent import CUT_ROWS, FIRST_ID, LAST_ID, LEFT, PUT, READ, REFUSED_BYTES, Recent, is_put, merged
from gateway.stores.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from sqlalchemy.engine import Connection, Engine

    from gateway.stores.base import Commit, StoredSession
    from gateway.stores.queries import Query

logger = logging.getLogger(__name__)

R = TypeVar("R")

PAGE_BYTES = 4096
"""What a row adds to the WAL beside its data is whole pages: of its table and of about one index."""

MOVE_EVERY_S = 0.02
SYNCED_MOVE_S = 0.1
"""Where every transaction waits for the disk."""
MOVE_AGAIN_S = 1.0
"""After a failure."""

BUSY_TIMEOUT_S = 0.2
"""How long a commit waits for a foreign lock; it waits on the loop, so not long."""


class SqliteStore(Reads):
    """A :class:`~gateway.stores.base.Store` on one SQLite file.

    A lock file beside the database keeps a second gateway from sealing this one's runs.
    """

    def __init__(self, path: str, *, full_sync: bool = False) -> None:
        dialect = sqlite.dialect(paramstyle="qmark")
        super().__init__(dialect)
        self._path = path
        self._full_sync = full_sync
        self._engine: Engine | None = None
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._threads = ThreadPoolExecutor(1, "store-reader")
        self._commits = ThreadPoolExecutor(1, "store-writer") if full_sync else None
        self._statements = Statements(dialect)
        self._lock: int | None = None
        self._checkpoints = Checkpoints()
        self._recent = Recent()
        self._move_timer: asyncio.TimerHandle | None = None
        self._move_failed = False
        self._closing = False

    def __str__(self) -> str:
        return f"sqlite:///{self._path}"

    async def open(self) -> None:
        """Open or create the file. Raises :exc:`StoreUnusable`."""
        self._closing = False
        self._take_lock()
        try:
            await asyncio.to_thread(self._open)
        except StoreUnusable:
            await self.close()
            raise
        except SQLAlchemyError as exc:
            await self.close()
            raise StoreUnusable(self._trouble(exc)) from exc
        except OSError as exc:
            await self.close()
            raise StoreUnusable(f"cannot use the database {self._path}: {exc.strerror}") from exc
        self._move_later()

    def _trouble(self, exc: SQLAlchemyError) -> str:
        return f"cannot use the database {self._path}: {_cause(exc)}"

    def _take_lock(self) -> None:
        try:
            self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._drop_lock()
            raise StoreUnusable(f"the database {self._path} is in use by another gateway") from None
        except OSError as exc:
            self._drop_lock()
            raise StoreUnusable(f"cannot use the database {self._path}: {exc.strerror}") from exc

    def _drop_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self) -> None:
        url = sa.URL.create("sqlite", database=self._path)
        args = {"check_same_thread": False, "timeout": BUSY_TIMEOUT_S}
        self._engine = sa.create_engine(url, connect_args=args, poolclass=sa.pool.NullPool)
        with self._engine.connect() as connection:
            migration.check(connection)  # before the journal's mode, which stays in the file, is changed
            connection.commit()
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            connection.commit()
            migration.migrate(connection)
            connection.commit()
        self._writer = self._connect("FULL" if self._full_sync else "NORMAL")
        self._reader = self._connect("NORMAL")
        self._checkpoints.open(self._path, lambda: self._connect("NORMAL"))
        # A read-only file passes until the first write (BEGIN IMMEDIATE is none): find out now, changing nothing.
        self._writer.exec_driver_sql("delete from sessions where 0")
        self._writer.rollback()
        self._take_over(self._writer)

    def _take_over(self, writer: Connection) -> None:
        """Put into its place what the last process has left: it had no time to if it died."""
        recent = self._recent
        first_id, last_id = (writer.exec_driver_sql(text).scalar_one() for text in (FIRST_ID, LAST_ID))
        recent.left([tuple(row) for row in writer.exec_driver_sql(LEFT)], first_id, last_id)
        writer.rollback()
        try:
            self._move_all()
        except StoreUnavailable as exc:  # a full disk: what is there can be read, and is moved when there is room
            logger.warning("what the last process has left stays where it is for now: %s", exc)

    def _connect(self, synchronous: str) -> Connection:
        assert self._engine is not None
        connection = self._engine.connect()
        connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        connection.exec_driver_sql("PRAGMA wal_autocheckpoint=0")
        connection.rollback()
        return connection

    async def close(self) -> None:
        """Put everything into its place, checkpoint and close."""
        self._closing = True
        if self._move_timer is not None:
            self._move_timer.cancel()
        if self._writer is not None:
            # In turn with whatever still writes, where that is a thread.
            last = asyncio.get_running_loop().run_in_executor(self._commits, self._move_all)
            with contextlib.suppress(StoreUnavailable):
                await last
        await self._checkpoints.close()
        for connection in (self._writer, self._reader):
            if connection is not None:
                with contextlib.suppress(SQLAlchemyError):
                    await asyncio.to_thread(connection.close)
        self._writer = self._reader = None
        if self._engine is not None:
            self._engine.dispose()
        self._checkpoints.release()
        self._threads.shutdown()
        if self._commits is not None:
            self._commits.shutdown()
        self._drop_lock()

    async def reach(self) -> None:
        """Return: the file is there."""

    # -- writing

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        """Apply all commits in one transaction; one gateway has the file, so no fence can be stale."""
        await self._checkpoints.keep_up()
        if self._commits is not None:
            await asyncio.get_running_loop().run_in_executor(self._commits, self._commit, commits)
        else:
            self._commit(commits)
        self._checkpoints.begin()
        self._move_later()
        return frozenset()

    def _commit(self, commits: Sequence[Commit]) -> None:
        recent = self._recent
        if recent.size > REFUSED_BYTES:
            raise StoreUnavailable(f"the database {self._path} does not take in what was committed")
        # What a compaction drops, or a deletion, has to be in its place.
        early = recent.held({commit.sid for commit in commits if not is_put(commit)})
        dropped = {commit.sid: commit.compaction.drop_to for commit in commits if commit.compaction is not None}
        put = recent.rows(commits)
        self._write(chain(recent.move(early, dropped), self._statements.plan(commits, put)))
        if early:
            recent.done(early, now_ms())
        recent.added(put)
        if self._writer is not None:
            self._checkpoints.finish(self._writer)

    def _write(self, statements: Iterable[tuple[str, Any]]) -> None:
        """Execute statements in a transaction. Raises :exc:`StoreUnavailable`, and nothing of it was done."""
        if self._writer is None:
            raise StoreUnavailable("the store is closed")
        written = 0
        try:
            for statement, rows in statements:
                self._writer.exec_driver_sql(statement, rows)
                many = rows if isinstance(rows, list) else []  # of chunks or messages: their data comes last
                written += PAGE_BYTES * (1 if statement is PUT else 2 * max(1, len(many)))
                written += sum(len(row[-1]) for row in many)
            self._writer.commit()
        except BaseException as exc:
            self._undo(self._writer, exc)
            raise
        self._checkpoints.wrote(written)

    def _undo(self, writer: Connection, exc: BaseException) -> None:
        """Leave nothing of a transaction that failed. Raises ``StoreUnavailable`` where the database did."""
        with contextlib.suppress(SQLAlchemyError):
            writer.rollback()
        if isinstance(exc, SQLAlchemyError):
            raise StoreUnavailable(self._trouble(exc)) from exc

    # -- what was put at the end of a table, into its place

    def _move_later(self) -> None:
        if self._move_timer is None and not self._recent.empty and not self._closing:
            seconds = SYNCED_MOVE_S if self._full_sync else MOVE_EVERY_S
            if self._move_failed:
                seconds = MOVE_AGAIN_S
            self._move_timer = asyncio.get_running_loop().call_later(seconds, self._move_some)

    def _move_some(self) -> None:
        if self._commits is not None:
            moving = asyncio.get_running_loop().run_in_executor(self._commits, self._try_to_move)
            moving.add_done_callback(self._moved)
        else:
            self._try_to_move()
            self._moved()

    def _moved(self, _: object = None) -> None:
        self._move_timer = None
        self._move_later()

    def _try_to_move(self) -> None:
        try:
            self._move_due()
        except Exception as exc:
            if not self._move_failed:
                logger.warning("chunks stay where they are for now: %s", exc)
            self._move_failed = True
        else:
            self._move_failed = False

    def _move_due(self) -> None:
        self._move(self._recent.due(now_ms()))

    def _move_all(self) -> None:
        self._move(self._recent.held_all(), self._recent.next_id)

    def _move(self, sids: Sequence[int], most: int = CUT_ROWS) -> None:
        recent = self._recent
        low = recent.low(sids, most)
        if statements := [*recent.move(sids), *recent.cut(low)]:
            self._write(statements)
            recent.done(sids, now_ms(), low=low)

    # -- reading

    async def _read(self, work: Callable[[Connection], R]) -> R:
        def in_thread() -> R:
            if self._reader is None:
                raise StoreUnavailable("the store is closed")
            try:
                return work(self._reader)
            except SQLAlchemyError as exc:
                raise StoreUnavailable(self._trouble(exc)) from exc
            finally:
                with contextlib.suppress(SQLAlchemyError):
                    self._reader.rollback()

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)

    async def _ask(self, queries: Sequence[Query], values: dict[str, Any]) -> list[list[Any]]:
        def ask(connection: Connection) -> list[list[Any]]:
            if len(queries) > 1:  # by itself each would see the database at a moment of its own
                connection.exec_driver_sql("BEGIN")
            return [list(connection.exec_driver_sql(query.text, query.values(**values))) for query in queries]

        return await self._read(ask)

    async def load(self, principal: str, session_id: str, newest: int = 0) -> StoredSession | None:
        """Read one session, with as many of its newest stored messages."""
        queries, recent = self._queries, self._recent
        values = {"principal": principal, "session_id": session_id, "newest": newest}

        def load(connection: Connection) -> StoredSession | None:
            connection.exec_driver_sql("BEGIN")
            found: list[Any]
            found, chunks, top, tail = (
                list(connection.exec_driver_sql(query.text, query.values(**values)))
                for query in (queries.session, queries.chunks, queries.top, queries.newest)
            )
            last_id = connection.exec_driver_sql(LAST_ID).scalar_one()
            if not found:
                return None
            held, sid = [ChunkRow(*chunk) for chunk in chunks], found[0][0]
            if last_id >= recent.next_id or sid in recent:
                late = (ChunkRow(*chunk) for chunk in connection.exec_driver_sql(READ, (sid,)))
                held = merged(held, late, found[0][11])
            return stored_session(found[0], held, top, tail)

        return await self._read(load)

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget what nobody can ask for any more."""
        # Found in the reader's thread, so that the loop only pays for rows that are really there to delete.
        found = (
            [tuple(row) for row in await self._rows(self._queries.old_chunks, before=chunks_before)],
            [tuple(row) for row in await self._rows(self._queries.expired_commands, now=now)],
        )
        if not any(found):
            return
        if self._commits is not None:  # in turn with the commits: there is one connection that writes
            await asyncio.get_running_loop().run_in_executor(self._commits, self._forget, *found)
        else:
            self._forget(*found)

    def _forget(self, chunks: list[Any], commands: list[Any]) -> None:
        if self._writer is None:
            raise StoreUnavailable("the store is closed")
        try:
            if chunks:
                self._writer.exec_driver_sql("delete from chunks where sid = ? and first_seq = ?", chunks)
            if commands:
                self._writer.exec_driver_sql("delete from commands where principal = ? and command_id = ?", commands)
            self._writer.commit()
        except BaseException as exc:
            self._undo(self._writer, exc)
            raise


def _cause(exc: SQLAlchemyError) -> str:
    original = getattr(exc, "orig", None)
    return str(original if original is not None else exc).splitlines()[0]
