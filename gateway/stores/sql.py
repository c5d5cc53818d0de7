"""The store on SQL: SQLite in WAL mode; one schema, plain statements compiled once.

Commits on SQLite run on the event loop itself: with ``synchronous=NORMAL`` a commit is a write to the page cache
(0.05 ms measured), while a thread would wait up to 5 ms for the interpreter lock of a busy loop. ``?sync=full`` makes
every commit an fsync (it then survives power loss, not only ``kill -9``) and moves it to a thread. Reads run in a
thread on a connection of their own; WAL lets them pass the writer.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import SQLAlchemyError

from gateway.stores import migrate as migration
from gateway.stores import schema as t
from gateway.stores.base import (
    ChunkRow,
    CommandRow,
    Commit,
    SessionRow,
    StoredSession,
    StoreUnavailable,
    StoreUnusable,
)
from gateway.stores.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection, Engine

R = TypeVar("R")

CHECKPOINT_BYTES = 4 * 1024 * 1024
"""Written to the WAL since the last checkpoint before another one is started in the background."""

BUSY_TIMEOUT_S = 0.2
"""How long a commit waits for a foreign lock; it waits on the loop, so not long."""


class SqliteStore:
    """A :class:`~gateway.stores.base.Store` on one SQLite file.

    A lock file beside the database keeps a second gateway from sealing this one's runs.
    """

    def __init__(self, path: str, *, full_sync: bool = False) -> None:
        self._path = path
        self._full_sync = full_sync
        self._engine: Engine | None = None
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._threads = ThreadPoolExecutor(1, "store-reader")
        self._commits = ThreadPoolExecutor(1, "store-writer") if full_sync else None
        self._statements = Statements(sqlite.dialect(paramstyle="qmark"))
        self._lock: int | None = None
        self._unchecked = 0
        self._checkpointing: asyncio.Future[None] | None = None

    async def open(self) -> None:
        """Open or create the file. Raises :exc:`StoreUnusable`."""
        self._take_lock()
        try:
            await asyncio.to_thread(self._open)
        except StoreUnusable:
            await self.close()
            raise
        except SQLAlchemyError as exc:
            await self.close()
            raise StoreUnusable(f"cannot use the database {self._path}: {_cause(exc)}") from exc

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
        # A read-only file passes until the first write (BEGIN IMMEDIATE is none): find out now, changing nothing.
        self._writer.exec_driver_sql("delete from sessions where 0")
        self._writer.rollback()

    def _connect(self, synchronous: str) -> Connection:
        assert self._engine is not None
        connection = self._engine.connect()
        connection.exec_driver_sql(f"PRAGMA synchronous={synchronous}")
        connection.exec_driver_sql("PRAGMA wal_autocheckpoint=0")
        connection.rollback()
        return connection

    async def close(self) -> None:
        """Checkpoint and close."""
        if self._checkpointing is not None:
            await asyncio.wait([self._checkpointing])
        for connection in (self._writer, self._reader):
            if connection is not None:
                with contextlib.suppress(SQLAlchemyError):
                    await asyncio.to_thread(connection.close)
        self._writer = self._reader = None
        if self._engine is not None:
            self._engine.dispose()
        self._threads.shutdown()
        if self._commits is not None:
            self._commits.shutdown()
        self._drop_lock()

    # -- writing

    async def commit(self, commits: Sequence[Commit]) -> None:
        """Apply all commits in one transaction."""
        if self._commits is not None:
            await asyncio.get_running_loop().run_in_executor(self._commits, self._commit, commits)
        else:
            self._commit(commits)
        if self._unchecked > CHECKPOINT_BYTES and (self._checkpointing is None or self._checkpointing.done()):
            loop = asyncio.get_running_loop()
            self._unchecked = 0
            self._checkpointing = loop.run_in_executor(self._threads, self._checkpoint)

    def _commit(self, commits: Sequence[Commit]) -> None:
        if self._writer is None:
            raise StoreUnavailable("the store is closed")
        try:
            for statement, rows in self._statements.plan(commits):
                self._writer.exec_driver_sql(statement, rows)
            self._writer.commit()
        except SQLAlchemyError as exc:
            with contextlib.suppress(SQLAlchemyError):
                self._writer.rollback()
            raise StoreUnavailable(_cause(exc)) from exc
        for commit in commits:
            if commit.chunk is not None:
                self._unchecked += len(commit.chunk.data) + 200

    def _checkpoint(self) -> None:
        assert self._reader is not None
        # Passive: never waits for a writer or reader; what it could not move, the next one will.
        with contextlib.suppress(SQLAlchemyError):
            self._reader.exec_driver_sql("PRAGMA wal_checkpoint(PASSIVE)")
            self._reader.rollback()

    # -- reading

    async def _read(self, work: Callable[[Connection], R]) -> R:
        def in_thread() -> R:
            if self._reader is None:
                raise StoreUnavailable("the store is closed")
            try:
                return work(self._reader)
            except SQLAlchemyError as exc:
                raise StoreUnavailable(_cause(exc)) from exc
            finally:
                with contextlib.suppress(SQLAlchemyError):
                    self._reader.rollback()

        return await asyncio.get_running_loop().run_in_executor(self._threads, in_thread)

    async def load(self, principal: str, session_id: str) -> StoredSession | None:
        """Read one session whole."""

        def work(connection: Connection) -> StoredSession | None:
            found = connection.execute(_by_id(principal, session_id)).one_or_none()
            if found is None:
                return None
            held = sa.select(t.chunks).where(t.chunks.c.sid == found.sid).order_by(t.chunks.c.first_seq)
            chunks = [
                ChunkRow(row.first_seq, row.last_seq, row.committed_at, row.data) for row in connection.execute(held)
            ]
            last = sa.select(sa.func.max(t.messages.c.position)).where(t.messages.c.sid == found.sid)
            top = connection.scalar(last)
            stored = 0 if top is None else int(top) + 1
            return StoredSession(_session_row(found), found.checkpoint_seq, found.checkpoint, chunks, stored)

        return await self._read(work)

    async def session(self, principal: str, session_id: str) -> SessionRow | None:
        """Read one session's row."""

        def work(connection: Connection) -> SessionRow | None:
            found = connection.execute(_by_id(principal, session_id)).one_or_none()
            return None if found is None else _session_row(found)

        return await self._read(work)

    async def messages(self, sid: int, start: int, stop: int) -> list[bytes]:
        """Read stored messages by position."""
        place = t.messages.c.position
        query = (
            sa.select(t.messages.c.data).where(t.messages.c.sid == sid, place >= start, place < stop).order_by(place)
        )
        return await self._read(lambda connection: list(connection.scalars(query)))

    async def position(self, sid: int, message_id: str) -> int | None:
        """Find a stored message's position."""
        columns = t.messages.c
        query = sa.select(columns.position).where(columns.sid == sid, columns.message_id == message_id)
        return await self._read(lambda connection: connection.scalar(query))

    async def sessions(self, principal: str, before: tuple[int, str] | None, limit: int) -> list[SessionRow]:
        """List sessions, newest first."""
        columns = t.sessions.c
        query = sa.select(t.sessions).where(columns.principal == principal)
        if before is not None:
            query = query.where(sa.tuple_(columns.updated_at, columns.session_id) < before)
        query = query.order_by(columns.updated_at.desc(), columns.session_id.desc()).limit(limit)
        return await self._read(lambda connection: [_session_row(row) for row in connection.execute(query)])

    async def command(self, principal: str, command_id: str) -> CommandRow | None:
        """Find a command that took effect."""
        columns = t.commands.c
        query = sa.select(t.commands).where(columns.principal == principal, columns.command_id == command_id)

        def work(connection: Connection) -> CommandRow | None:
            row = connection.execute(query).one_or_none()
            if row is None:
                return None
            return CommandRow(row.principal, row.command_id, row.session_id, row.body, row.ack, row.created_at)

        return await self._read(work)

    async def active(self) -> list[tuple[str, str]]:
        """List sessions with an unfinished run or a queue."""
        query = sa.select(t.sessions.c.principal, t.sessions.c.session_id).where(t.sessions.c.active == 1)
        return await self._read(lambda connection: [(row[0], row[1]) for row in connection.execute(query)])

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget what nobody can ask for any more."""
        covered = sa.exists().where(
            t.sessions.c.sid == t.chunks.c.sid, t.sessions.c.checkpoint_seq >= t.chunks.c.last_seq
        )
        old = sa.select(t.chunks.c.sid, t.chunks.c.first_seq).where(t.chunks.c.committed_at < chunks_before, covered)
        expired = sa.select(t.commands.c.principal, t.commands.c.command_id).where(t.commands.c.expires_at < now)
        # Found in the reader's thread, so that the loop only pays for rows that are really there to delete.
        found = await self._read(lambda c: ([tuple(r) for r in c.execute(old)], [tuple(r) for r in c.execute(expired)]))
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
        except SQLAlchemyError as exc:
            with contextlib.suppress(SQLAlchemyError):
                self._writer.rollback()
            raise StoreUnavailable(_cause(exc)) from exc


def _by_id(principal: str, session_id: str) -> Any:
    return sa.select(t.sessions).where(t.sessions.c.principal == principal, t.sessions.c.session_id == session_id)


def _session_row(row: Any) -> SessionRow:
    return SessionRow(
        sid=row.sid,
        principal=row.principal,
        session_id=row.session_id,
        epoch=row.epoch,
        title=row.title,
        status=row.status,
        created_at=row.created_at,
        updated_at=row.updated_at,
        message_count=row.message_count,
        active=bool(row.active),
        run=row.run,
    )


def _cause(exc: SQLAlchemyError) -> str:
    original = getattr(exc, "orig", None)
    return str(original if original is not None else exc).splitlines()[0]
