"""The one connection that writes to PostgreSQL: a transaction is one round trip, a lost connection comes back.

When a connection is lost, so is the answer to what was under way: it may have been committed, and may yet be. Before
anything is read or written again, the old server process is therefore ended, and a transaction of our own has passed
behind it: with synchronous replication everything before it has then reached the standby too. What is read from then
on is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus
from psycopg.types.string import StrDumperUnknown, TextBinaryLoader, TextLoader

from gateway.stores.base import StoreUnavailable
from gateway.stores.pg_address import SESSION, TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from psycopg import AsyncConnection

    from gateway.stores.pg_address import Address

    Statement = tuple[str, Any]

logger = logging.getLogger(__name__)

RETRY_S = (0.1, 1.0)
"""Wait after the first failed attempt to connect, and the longest; meanwhile whoever asks is refused at once."""

_LOCK = "hashtext('agent-gateway: in use'), hashtext(current_schema())"
"""An advisory lock: held by a gateway that is alone, or shared by the nodes of a cluster."""

_WHO = "select pid, backend_start from pg_stat_activity where pid = pg_backend_pid()"
_END = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid = %s and backend_start = %s"
_BEHIND = "select pg_logical_emit_message(true, 'agent-gateway', '')"
"""Writes nothing but a record to the log, so that its commit waits for all that was written before."""


class Writer:
    """Transactions, one after another. ``alone``: no other gateway may use this database."""

    def __init__(self, address: Address, *, alone: bool) -> None:
        self._address = address
        self._alone = alone
        self._connection: AsyncConnection[Any] | None = None
        self._process: tuple[Any, ...] | None = None
        self._turn = asyncio.Lock()
        self._retry_at = 0.0
        self._delay = RETRY_S[0]
        self._closed = True

    async def open(self) -> None:
        """Connect. Raises :exc:`StoreUnavailable`."""
        self._closed = False
        self._retry_at = 0.0
        await self.ready()

    async def close(self) -> None:
        """Disconnect, and stay so."""
        self._closed = True
        async with self._turn:
            await self._drop()

    async def ready(self) -> None:
        """Return once nothing of an earlier connection can happen any more. Raises :exc:`StoreUnavailable`."""
        connection = self._connection
        if connection is not None and not connection.closed and (self._turn.locked() or alive(connection)):
            return  # while a transaction is under way, the socket is not ours to look at
        async with self._turn:
            await self._connected()

    async def transact(self, statements: Iterable[Statement]) -> None:
        """Carry out all statements, or none. Raises ``psycopg.Error`` where they failed for certain.

        Raises :exc:`StoreUnavailable` where there is no database, or nobody knows whether it was done.
        """
        async with self._using() as connection, connection.pipeline(), connection.cursor() as cursor:
            await cursor.execute("begin")
            for text, values in statements:
                if isinstance(values, list):
                    await cursor.executemany(text, values)
                else:
                    await cursor.execute(text, values)
            await cursor.execute("commit")

    async def fetch(self, text: str, values: Any = ()) -> list[Any]:
        """Carry out one statement and give its rows. Raises as :meth:`transact`."""
        async with self._using() as connection:
            cursor = await connection.execute(text, values)
            return await cursor.fetchall() if cursor.description else []

    @asynccontextmanager
    async def _using(self) -> AsyncIterator[AsyncConnection[Any]]:
        async with self._turn:
            connection = await self._connected()
            try:
                with watched(connection):
                    yield connection
            except psycopg.Error as exc:
                if await _undone(connection):
                    raise
                self._retry_at = 0.0
                raise StoreUnavailable(self._address.cause(exc)) from exc
            except BaseException:  # cancelled half way
                connection.pgconn.finish()
                raise

    async def _connected(self) -> AsyncConnection[Any]:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if self._connection is not None and alive(self._connection):
            return self._connection
        loop = asyncio.get_running_loop()
        if loop.time() < self._retry_at:
            raise StoreUnavailable("the database cannot be reached")
        await self._drop()
        try:
            self._connection = await self._connect()
        except (psycopg.Error, OSError) as exc:
            self._retry_at = loop.time() + self._delay
            self._delay = min(2 * self._delay, RETRY_S[1])
            raise StoreUnavailable(self._address.cause(exc)) from exc
        self._delay = RETRY_S[0]
        return self._connection

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _connect(self) -> AsyncConnection[Any]:
        connection = await connect(self._address)
        try:
            with watched(connection):
                if self._process is not None:
                    ended = await (await connection.execute(_END, self._process)).fetchone()
                    if ended is not None and not ended[0]:
                        raise psycopg.OperationalError("the server process of a lost connection does not end")
                how = "" if self._alone else "_shared"
                mine = await (await connection.execute(f"select pg_try_advisory_lock{how}({_LOCK})")).fetchone()
                if mine is None or not mine[0]:
                    raise InUse("the database is in use by another gateway")
                await connection.execute(_BEHIND)
                self._process = await (await connection.execute(_WHO)).fetchone()
        except BaseException:
            await connection.close()
            raise
        return connection


class InUse(psycopg.OperationalError):
    """Another gateway holds the database."""


async def connect(address: Address) -> AsyncConnection[Any]:
    """Open a connection with the project's settings. Raises ``psycopg.Error``."""
    connection = await psycopg.AsyncConnection.connect(**address.parameters, autocommit=True, prepare_threshold=1)
    try:
        await configure(connection)
    except BaseException:
        await connection.close()
        raise
    return connection


async def configure(connection: AsyncConnection[Any]) -> None:
    """Set up a new connection: time limits, and texts that may hold a NUL."""
    connection.adapters.register_dumper(str, _Dumper)
    connection.adapters.register_loader("text", _Loader)
    connection.adapters.register_loader("text", _BinaryLoader)
    with watched(connection):
        await connection.execute(SESSION)


def alive(connection: AsyncConnection[Any]) -> bool:
    """Tell, without a round trip, whether the server has closed an idle connection meanwhile."""
    if connection.closed or connection.broken:
        return False
    pgconn = connection.pgconn
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    if not poll.poll(0):
        return True
    with contextlib.suppress(psycopg.Error):
        pgconn.consume_input()
        # A farewell ("terminating connection") may be here before the end itself: nothing else is said unasked.
        pgconn.is_busy()
    return pgconn.status == ConnStatus.OK and not poll.poll(0)


@contextmanager
def watched(connection: AsyncConnection[Any], seconds: float = TIMEOUT_S + 2.0) -> Iterator[None]:
    """Hang up if the body has no answer in time: a server that is frozen would keep it for ever."""

    def hang_up() -> None:
        logger.warning("the database did not answer within %s s", seconds)
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as twin:
            twin.shutdown(socket.SHUT_RDWR)

    timer = asyncio.get_running_loop().call_later(seconds, hang_up)
    try:
        yield
    finally:
        timer.cancel()


async def _undone(connection: AsyncConnection[Any]) -> bool:
    """After an error: roll back. False where the connection is gone, and the fate of its transaction unknown."""
    if connection.closed or connection.broken:
        return False
    try:
        with watched(connection):
            await connection.rollback()
    except psycopg.Error:
        return False
    return not connection.closed


class _Dumper(StrDumperUnknown):
    """PostgreSQL's texts hold no NUL, but a client's id or title may: it is written as two characters."""

    def dump(self, obj: str) -> Any:
        if "\0" in obj or "\1" in obj:
            obj = obj.replace("\1", "\1\1").replace("\0", "\1\2")
        return super().dump(obj)


class _Loader(TextLoader):
    def load(self, data: Any) -> Any:
        return _unescaped(super().load(data))


class _BinaryLoader(TextBinaryLoader):
    def load(self, data: Any) -> Any:
        return _unescaped(super().load(data))


def _unescaped(text: Any) -> Any:
    if "\1" not in text:
        return text
    return "\1".join(part.replace("\1\2", "\0") for part in text.split("\1\1"))
