"""From commits to SQL: every statement is compiled once per dialect and then only fed with rows.

Compiling per execution would cost more than the commit itself; `exec_driver_sql` with a prepared text costs a fifth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from gateway.stores import schema as t
from gateway.stores.base import TOMBSTONE_MS
from gateway.stores.recent import PUT, is_put
from gateway.stores.schema import SESSION_COLUMNS, SHARE_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy.engine import Dialect

    from gateway.stores.base import Commit, SessionRow
    from gateway.stores.recent import Put, Row


class Statements:
    """The write statements of one dialect, as text with positional parameters in a known order."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._upsert_session = self._upsert(t.sessions, SESSION_COLUMNS, ["sid"])
        self._insert_chunks = _insert_chunks(dialect)
        self._insert_command = self._text(
            sa.insert(t.commands).values(
                {
                    c: sa.bindparam(c)
                    for c in ("principal", "command_id", "sid", "session_id", "body", "ack", "created_at")
                }
            )
        )
        self._upsert_message = self._upsert(t.messages, ("sid", "position", "message_id", "data"), ["sid", "position"])
        self._remove_messages = self._text(
            sa.delete(t.messages).where(
                t.messages.c.sid == sa.bindparam("sid_"), t.messages.c.position >= sa.bindparam("start")
            )
        )
        self._checkpoint = self._text(
            sa.update(t.sessions)
            .where(t.sessions.c.sid == sa.bindparam("sid_"))
            .values(checkpoint_seq=sa.bindparam("seq"), checkpoint=sa.bindparam("data"))
        )
        self._drop_chunks = self._text(
            sa.delete(t.chunks).where(t.chunks.c.sid == sa.bindparam("sid_"), t.chunks.c.last_seq <= sa.bindparam("to"))
        )
        self._deletions = [
            self._text(sa.delete(table).where(table.c.sid == sa.bindparam("sid_")))
            for table in (t.chunks, t.messages, t.shares, t.sessions)
        ]
        self._upsert_share = self._upsert(t.shares, SHARE_COLUMNS, ["sid", "principal"])
        self._remove_share = self._text(
            sa.delete(t.shares).where(
                t.shares.c.sid == sa.bindparam("sid_"), t.shares.c.principal == sa.bindparam("principal_")
            )
        )
        self._expire_commands = self._text(
            sa.update(t.commands)
            .where(t.commands.c.sid == sa.bindparam("sid_"))
            .values(expires_at=sa.bindparam("expires"))
        )

    def plan(self, commits: Sequence[Commit], put: Sequence[Put] | None = None) -> Iterator[tuple[str, Any]]:
        """Give the statements of a transaction with their rows, chunks of all sessions in one.

        With ``put``, which has the chunks that are to come in there, they do (see ``recent.py``), and the others here.
        """
        chunks: list[Row] = []
        for commit in commits:
            sid = commit.sid
            if commit.delete:
                for statement in self._deletions:
                    yield statement, (sid,)
                expires = (commit.session.updated_at if commit.session else 0) + TOMBSTONE_MS
                yield self._expire_commands, (expires, sid)
                continue
            if commit.session is not None:
                yield self._upsert_session, _session_values(commit.session)
            if commit.chunk is not None and (put is None or not is_put(commit)):
                chunks.append((sid, *commit.chunk))
            if commit.remove_from is not None:
                yield self._remove_messages, (sid, commit.remove_from)
            for row in commit.commands:
                yield (
                    self._insert_command,
                    (row.principal, row.command_id, sid, row.session_id, row.body, row.ack, row.created_at),
                )
            for share in commit.shares:
                if share.role is None:
                    yield self._remove_share, (sid, share.principal)
                else:
                    values = (sid, share.principal, share.owner, share.session_id, share.role, share.created_at)
                    yield self._upsert_share, values
        if put:
            yield PUT, put
        if chunks:
            yield self._insert_chunks(chunks)
        for commit in commits:
            compaction = commit.compaction
            if compaction is None or commit.delete:
                continue
            rows = [(commit.sid, row.position, row.message_id, row.data) for row in compaction.messages]
            if rows:
                yield self._upsert_message, rows
            yield self._checkpoint, (compaction.seq, compaction.checkpoint, commit.sid)
            if compaction.drop_to:
                yield self._drop_chunks, (commit.sid, compaction.drop_to)

    def _upsert(self, table: sa.Table, columns: Sequence[str], key: list[str]) -> str:
        insert = _insert(self._dialect.name, table).values({name: sa.bindparam(name) for name in columns})
        changed = {name: insert.excluded[name] for name in columns if name not in key}
        return self._text(insert.on_conflict_do_update(index_elements=key, set_=changed))

    def _text(self, statement: Any) -> str:
        return str(statement.compile(dialect=self._dialect))


def _insert_chunks(dialect: Dialect) -> Callable[[list[Row]], tuple[str, Any]]:
    """Give what makes one statement of the chunks of a transaction."""
    if dialect.name != "postgresql":
        text = str(sa.insert(t.chunks).compile(dialect=dialect))
        return lambda rows: (text, rows)
    # Columns as arrays cost client and server half as much as a row at a time (100 rows; pipelined, prepared).
    columns = list(t.chunks.c)
    arrays = [sa.bindparam(column.name, type_=sa.ARRAY(column.type)) for column in columns]
    made = sa.func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()
    insert = sa.insert(t.chunks).from_select([column.name for column in columns], sa.select(made))
    bulk = str(insert.compile(dialect=dialect))
    return lambda rows: (bulk, tuple(list(column) for column in zip(*rows, strict=True)))


def _insert(dialect: str, table: sa.Table) -> Any:
    if dialect == "postgresql":  # imported where it is needed: the other database's dialect costs start-up time
        from sqlalchemy.dialects import postgresql

        return postgresql.insert(table)
    from sqlalchemy.dialects import sqlite

    return sqlite.insert(table)


def _session_values(row: SessionRow) -> tuple[Any, ...]:
    return (
        row.sid,
        row.principal,
        row.session_id,
        row.epoch,
        row.title,
        row.status,
        row.created_at,
        row.updated_at,
        row.message_count,
        int(row.active),
        row.run,
    )
