"""The store on PostgreSQL: one connection writes, a pool of others reads, and both come back by themselves.

A group of commits is one transaction in one round trip (pipelined); while it is under way the next group gathers. A
commit whose answer is lost raises :exc:`StoreUnavailable`, and nothing is read until its fate has been settled
(:mod:`gateway.stores.pg_connection`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import sqlalchemy as sa
from psycopg import errors
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout, TooManyRequests
from sqlalchemy.dialects.postgresql import psycopg as dialects
from sqlalchemy.exc import SQLAlchemyError

from gateway.stores import migrate as migration
from gateway.stores.base import StoreUnavailable, StoreUnusable
from gateway.stores.pg_address import CONNECT_TIMEOUT_S, SESSION, TIMEOUT_S
from gateway.stores.pg_connection import InUse, Writer, alive, configure, watched
from gateway.stores.queries import Reads
from gateway.stores.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from psycopg import AsyncConnection

    from gateway.stores.base import Commit
    from gateway.stores.pg_address import Address
    from gateway.stores.queries import Query

WAITING = 1000
"""Reads that wait for a connection of the pool, at most; past it they are refused at once."""

SWEEP_ROWS = 10_000
"""Rows of a table that one sweep deletes, at most: a short transaction; the next sweep goes on."""

HELD_S = 5.0
"""How long a start waits for a gateway that has just died to be gone from the database, too."""

_MIGRATING = "hashtext('agent-gateway: migrating'), hashtext(current_schema())"

_HELD = """
    select 1 / (count(*) = %s)::int
    from (select 1 from leases where fence = any(%s) for key share) as held
"""
"""Divides by zero unless all leases are there: a transaction in one round trip cannot look at an answer half way.
``key share`` keeps them until the commit against another node's claim, and lets flags be written meanwhile."""

_FENCES = "select fence from leases where fence = any(%s)"

_TAKEN = """
    select principal, command_id from commands
    where (principal, command_id) in (select * from unnest(%s::text[], %s::text[]))
"""

_SWEEP = (
    """
    delete from chunks where (sid, first_seq) in (
        select c.sid, c.first_seq from chunks c join sessions s on s.sid = c.sid
        where c.committed_at < %s and s.checkpoint_seq >= c.last_seq
        limit %s for update of c skip locked)
    """,
    """
    delete from commands where (principal, command_id) in (
        select principal, command_id from commands where expires_at < %s limit %s for update skip locked)
    """,
)
"""Rows that a commit has locked are left to the next sweep: two that wait for each other would both be lost."""

_AGAIN = (errors.DeadlockDetected, errors.SerializationFailure)


class PostgresStore(Reads):
    """A :class:`~gateway.stores.base.Store` on one PostgreSQL database, which one gateway has for itself.

    A lock in the database keeps a second gateway from sealing this one's runs; see
    :class:`~gateway.stores.shared.SharedPostgresStore` for several.
    """

    alone = True

    def __init__(self, address: Address) -> None:
        dialect = dialects.dialect(paramstyle="format")  # type: ignore[no-untyped-call]
        super().__init__(dialect)
        self._address = address
        self._statements = Statements(dialect)
        self._writer = Writer(address, alone=self.alone)
        self._pool: AsyncConnectionPool[AsyncConnection[Any]] | None = None

    def __str__(self) -> str:
        return str(self._address)

    async def open(self) -> None:
        """Connect and migrate. Raises :exc:`StoreUnusable`."""
        try:
            await self._open_writer()  # first: no upgrade under a gateway that is at work
            await asyncio.to_thread(self._migrate)
        except (StoreUnavailable, SQLAlchemyError, psycopg.Error, OSError) as exc:
            await self.close()
            cause = self._address.cause(getattr(exc, "orig", None) or exc)
            raise StoreUnusable(f"cannot use the database {self._address}: {cause}") from None
        except BaseException:
            await self.close()
            raise
        self._pool = AsyncConnectionPool(
            kwargs=self._address.parameters | {"autocommit": True},
            configure=configure,
            min_size=1,
            max_size=self._address.pool_size,
            max_waiting=WAITING,
            timeout=CONNECT_TIMEOUT_S,
            reconnect_timeout=1.0,  # then whoever asks next makes it try again: no long waits after a long outage
            name="store",
            open=False,
        )
        await self._pool.open()

    def _migrate(self) -> None:
        engine = sa.create_engine("postgresql+psycopg://", creator=self._connect, poolclass=sa.pool.NullPool)
        with engine.begin() as connection:
            migration.check(connection)
            encoding = connection.scalar(sa.text("show server_encoding"))
            if encoding != "UTF8":
                raise StoreUnusable(f"the database {self._address} has encoding {encoding}; it must be UTF8")
            # Of several gateways that start at once, one migrates and the others find it done.
            connection.exec_driver_sql(f"select pg_advisory_xact_lock({_MIGRATING})")
            migration.migrate(connection)

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(**self._address.parameters)
        connection.execute(SESSION)
        # A migration takes what it takes, also between two statements.
        connection.execute("set statement_timeout = 0")
        connection.execute("set idle_in_transaction_session_timeout = 0")
        connection.execute("set lock_timeout = '60s'")
        connection.commit()
        return connection

    async def _open_writer(self) -> None:
        deadline = asyncio.get_running_loop().time() + HELD_S
        while True:
            try:
                return await self._writer.open()
            except StoreUnavailable as exc:
                if not isinstance(exc.__cause__, InUse) or asyncio.get_running_loop().time() > deadline:
                    raise
            await asyncio.sleep(0.05)

    async def close(self) -> None:
        """Close all connections."""
        await self._writer.close()
        if self._pool is not None:
            await self._pool.close(timeout=TIMEOUT_S)

    async def reach(self) -> None:
        """Look whether the connection stands, and connect where it does not. Raises ``StoreUnavailable``."""
        await self._writer.ready()

    # -- writing

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        """Apply all commits in one transaction, but for those whose lease is gone or whose command is another's."""
        refused: frozenset[int] = frozenset()
        tries = 0
        while True:
            going = [commit for commit in commits if commit.sid not in refused]
            try:
                plan = [*_held(going), *self._statements.plan(going)]
                if plan:
                    await self._writer.transact(plan)
                return refused
            except errors.DivisionByZero:
                refused |= await self._fenced_off(going)
            except psycopg.Error as exc:
                taken = await self._taken(going) if isinstance(exc, errors.UniqueViolation) else frozenset()
                refused |= taken
                tries += not taken
                if not taken and (tries > 1 or not isinstance(exc, _AGAIN)):
                    raise StoreUnavailable(self._address.cause(exc)) from exc

    async def _fenced_off(self, commits: Sequence[Commit]) -> frozenset[int]:
        good = {row[0] for row in await self._fetch(_FENCES, (_fences(commits),))}
        return frozenset(c.sid for c in commits if c.fence is not None and c.fence not in good)

    async def _taken(self, commits: Sequence[Commit]) -> frozenset[int]:
        """Find what another node has committed meanwhile: a client may send a command again elsewhere."""
        keys = {(r.principal, r.command_id): c.sid for c in commits if c.fence is not None for r in c.commands}
        if not keys:
            return frozenset()
        principals, ids = ([key[n] for key in keys] for n in (0, 1))
        return frozenset(keys[row[0], row[1]] for row in await self._fetch(_TAKEN, (principals, ids)))

    async def _fetch(self, text: str, values: Any) -> list[Any]:
        try:
            return await self._writer.fetch(text, values)
        except psycopg.Error as exc:
            raise StoreUnavailable(self._address.cause(exc)) from exc

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget what nobody can ask for any more, as much as a short transaction can."""
        for text, before in zip(_SWEEP, (chunks_before, now), strict=True):
            await self._run([(text, (before, SWEEP_ROWS))])

    # -- reading, and what else need not wait its turn behind the commits

    async def _ask(self, queries: Sequence[Query], values: dict[str, Any]) -> list[list[Any]]:
        return await self._run([(query.text, query.values(**values)) for query in queries])

    async def _run(self, statements: Sequence[tuple[str, Any]]) -> list[list[Any]]:
        """Carry out statements that are safe to repeat, several in one snapshot; give the rows of each."""
        for attempt in (1, 2):
            try:
                return await self._run_once(statements)
            except (PoolTimeout, TooManyRequests, PoolClosed) as exc:
                raise StoreUnavailable(f"no connection to the database is free: {self._address.cause(exc)}") from exc
            except psycopg.Error as exc:
                if attempt == 2 or not isinstance(exc, (psycopg.OperationalError, *_AGAIN)):
                    raise StoreUnavailable(self._address.cause(exc)) from exc
        raise AssertionError

    async def _run_once(self, statements: Sequence[tuple[str, Any]]) -> list[list[Any]]:
        await self._writer.ready()
        if self._pool is None or self._pool.closed:
            raise StoreUnavailable("the store is closed")
        while True:
            async with self._pool.connection() as connection:
                if not alive(connection):  # it died in the pool, which replaces it
                    await connection.close()
                    continue
                with watched(connection):
                    return await _rows(connection, statements)


async def _rows(connection: AsyncConnection[Any], statements: Sequence[tuple[str, Any]]) -> list[list[Any]]:
    if len(statements) == 1:
        cursor = await connection.execute(*statements[0], binary=True)
        return [await cursor.fetchall() if cursor.description else []]
    async with contextlib.AsyncExitStack() as stack:
        pipeline = await stack.enter_async_context(connection.pipeline())
        await connection.execute("begin isolation level repeatable read read only")
        cursors = [await connection.execute(text, values, binary=True) for text, values in statements]
        await connection.execute("commit")
        await pipeline.sync()
        return [await cursor.fetchall() for cursor in cursors]


def _fences(commits: Iterable[Commit]) -> list[int]:
    return sorted({commit.fence for commit in commits if commit.fence is not None})


def _held(commits: Sequence[Commit]) -> list[tuple[str, Any]]:
    fences = _fences(commits)
    return [(_HELD, (len(fences), fences))] if fences else []
