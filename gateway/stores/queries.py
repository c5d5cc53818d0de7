"""What both databases are asked, said once: each query is compiled for a dialect and then only fed with values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gateway.stores import schema as t
from gateway.stores.base import ChunkRow, CommandRow, SessionRow, ShareRow, StoredSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy.engine import Dialect

    Row = Sequence[Any]

_SESSION = [t.sessions.c[name] for name in (*t.SESSION_COLUMNS, "checkpoint_seq", "checkpoint")]
_CHUNK = [t.chunks.c[name] for name in ("first_seq", "last_seq", "committed_at", "data")]
_COMMAND = [t.commands.c[name] for name in ("principal", "command_id", "session_id", "body", "ack", "created_at")]
_SHARE = [t.shares.c[name] for name in t.SHARE_COLUMNS]


class Query:
    """One statement as text with positional places."""

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        self.text = str(compiled)
        self._order: Sequence[str] = compiled.positiontup or ()
        self._constants: dict[str, Any] = {k: v for k, v in compiled.params.items() if v is not None}

    def values(self, **given: Any) -> tuple[Any, ...]:
        """Give the values in the order of their places. Raises KeyError for one that is missing."""
        values = self._constants | given
        return tuple(values[name] for name in self._order)


class Queries:
    """The reading statements of one dialect."""

    def __init__(self, dialect: Dialect) -> None:
        def query(statement: Any) -> Query:
            return Query(statement, dialect)

        sessions, chunks, messages, commands = (t.sessions.c, t.chunks.c, t.messages.c, t.commands.c)
        sid: Any = sa.bindparam("sid")
        principal: Any = sa.bindparam("principal")
        session_id: Any = sa.bindparam("session_id")
        named = (sessions.principal == principal, sessions.session_id == session_id)
        this = sa.select(sessions.sid).where(*named).scalar_subquery()

        self.session = query(sa.select(*_SESSION).where(*named))
        self.chunks = query(sa.select(*_CHUNK).where(chunks.sid == this).order_by(chunks.first_seq))
        self.top = query(sa.select(sa.func.max(messages.position)).where(messages.sid == this))
        self.newest = query(
            sa.select(messages.data)
            .where(messages.sid == this)
            .order_by(messages.position.desc())
            .limit(sa.bindparam("newest"))
        )
        self.messages = query(
            sa.select(messages.data)
            .where(
                messages.sid == sid,
                messages.position >= sa.bindparam("start"),
                messages.position < sa.bindparam("stop"),
            )
            .order_by(messages.position)
        )
        self.position = query(
            sa.select(messages.position).where(messages.sid == sid, messages.message_id == sa.bindparam("message_id"))
        )
        newest = (
            sa.select(*_SESSION)
            .where(sessions.principal == principal)
            .order_by(sessions.updated_at.desc(), sessions.session_id.desc())
            .limit(sa.bindparam("limit"))
        )
        place = sa.tuple_(sa.bindparam("at", type_=sa.BigInteger), sa.bindparam("after", type_=t.Text))
        self.first_sessions = query(newest)
        self.more_sessions = query(newest.where(sa.tuple_(sessions.updated_at, sessions.session_id) < place))
        self.command = query(
            sa.select(*_COMMAND).where(
                commands.principal == principal, commands.command_id == sa.bindparam("command_id")
            )
        )
        shares = t.shares.c
        oldest = sa.select(*_SHARE).order_by(shares.created_at, shares.sid, shares.principal)
        self.shared = query(oldest.where(shares.principal == principal, shares.session_id == session_id))
        self.shares = query(oldest.where(shares.sid == sid))
        self.shared_with = query(oldest.where(shares.principal == principal))
        self.active = query(sa.select(sessions.principal, sessions.session_id).where(sessions.active == 1))
        covered = sa.exists().where(sessions.sid == chunks.sid, sessions.checkpoint_seq >= chunks.last_seq)
        self.old_chunks = query(
            sa.select(chunks.sid, chunks.first_seq).where(chunks.committed_at < sa.bindparam("before"), covered)
        )
        self.expired_commands = query(
            sa.select(commands.principal, commands.command_id).where(commands.expires_at < sa.bindparam("now"))
        )


class Reads(ABC):
    """The reading half of a :class:`~gateway.stores.base.Store`, over whatever can put a query to a database."""

    def __init__(self, dialect: Dialect) -> None:
        self._queries = Queries(dialect)

    @abstractmethod
    async def _ask(self, queries: Sequence[Query], values: dict[str, Any]) -> list[list[Row]]:
        """Give the rows of each query; several see the database at one moment. Raises ``StoreUnavailable``."""

    async def _rows(self, query: Query, **values: Any) -> list[Row]:
        return (await self._ask([query], values))[0]

    async def load(self, principal: str, session_id: str, newest: int = 0) -> StoredSession | None:
        """Read one session, with as many of its newest stored messages."""
        wanted = (self._queries.session, self._queries.chunks, self._queries.top, self._queries.newest)
        values = {"principal": principal, "session_id": session_id, "newest": newest}
        found, chunks, top, tail = await self._ask(wanted, values)
        return stored_session(found[0], [ChunkRow(*chunk) for chunk in chunks], top, tail) if found else None

    async def session(self, principal: str, session_id: str) -> SessionRow | None:
        """Read one session's row."""
        found = await self._rows(self._queries.session, principal=principal, session_id=session_id)
        return _session_row(found[0]) if found else None

    async def messages(self, sid: int, start: int, stop: int) -> list[bytes]:
        """Read stored messages by position."""
        return [row[0] for row in await self._rows(self._queries.messages, sid=sid, start=start, stop=stop)]

    async def position(self, sid: int, message_id: str) -> int | None:
        """Find a stored message's position."""
        found = await self._rows(self._queries.position, sid=sid, message_id=message_id)
        return found[0][0] if found else None

    async def sessions(self, principal: str, before: tuple[int, str] | None, limit: int) -> list[SessionRow]:
        """List sessions, newest first."""
        values: dict[str, Any] = {"principal": principal, "limit": limit}
        query = self._queries.first_sessions
        if before is not None:
            query = self._queries.more_sessions
            values |= {"at": before[0], "after": before[1]}
        return [_session_row(row) for row in await self._rows(query, **values)]

    async def command(self, principal: str, command_id: str) -> CommandRow | None:
        """Find a command that took effect."""
        found = await self._rows(self._queries.command, principal=principal, command_id=command_id)
        return CommandRow(*found[0]) if found else None

    async def shared(self, principal: str, session_id: str) -> ShareRow | None:
        """Find what was shared with a principal under this id."""
        found = await self._rows(self._queries.shared, principal=principal, session_id=session_id)
        return ShareRow(*found[0]) if found else None

    async def shares(self, sid: int) -> list[ShareRow]:
        """List with whom a session is shared."""
        return [ShareRow(*row) for row in await self._rows(self._queries.shares, sid=sid)]

    async def shared_with(self, principal: str) -> list[ShareRow]:
        """List what was shared with a principal."""
        return [ShareRow(*row) for row in await self._rows(self._queries.shared_with, principal=principal)]

    async def active(self) -> list[tuple[str, str]]:
        """List sessions with an unfinished run or a queue."""
        return [(row[0], row[1]) for row in await self._rows(self._queries.active)]


def stored_session(row: Row, chunks: Sequence[ChunkRow], top: Sequence[Row], tail: Sequence[Row]) -> StoredSession:
    """Put a session together from the rows of what it is read by."""
    stored = 0 if top[0][0] is None else int(top[0][0]) + 1
    messages = [data for (data,) in reversed(tail)]
    return StoredSession(_session_row(row), row[11], row[12], chunks, stored, messages)


def _session_row(row: Row) -> SessionRow:
    values: Any = (*row[:9], bool(row[9]), row[10])
    return SessionRow(*values)
