"""From commits to SQL: every statement is compiled once per dialect and then only fed with rows.

Compiling per execution would cost more than the commit itself; `exec_driver_sql` with a prepared text costs a fifth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.stores import schema as t
from gateway.stores.base import TOMBSTONE_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy.engine import Dialect

    from gateway.stores.base import Commit, SessionRow

_SESSION_COLUMNS = (
    "sid",
    "principal",
    "session_id",
    "epoch",
    "title",
    "status",
    "created_at",
    "updated_at",
    "message_count",
    "active",
    "run",
)


class Statements:
    """The write statements of one dialect, as text with positional parameters in a known order."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._upsert_session = self._upsert(t.sessions, _SESSION_COLUMNS, ["sid"])
        self._insert_chunk = self._text(sa.insert(t.chunks))
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
            for table in (t.chunks, t.messages, t.sessions)
        ]
        self._expire_commands = self._text(
            sa.update(t.commands)
            .where(t.commands.c.sid == sa.bindparam("sid_"))
            .values(expires_at=sa.bindparam("expires"))
        )

    def plan(self, commits: Sequence[Commit]) -> Iterator[tuple[str, Any]]:
        """Give the statements of a transaction with their rows, chunks of all sessions in one."""
        chunks = []
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
            if commit.chunk is not None:
                chunk = commit.chunk
                chunks.append((sid, chunk.first_seq, chunk.last_seq, chunk.committed_at, chunk.data))
            if commit.remove_from is not None:
                yield self._remove_messages, (sid, commit.remove_from)
            for row in commit.commands:
                yield (
                    self._insert_command,
                    (row.principal, row.command_id, sid, row.session_id, row.body, row.ack, row.created_at),
                )
        if chunks:
            yield self._insert_chunk, chunks
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
        insert = postgresql.insert(table) if self._dialect.name == "postgresql" else sqlite.insert(table)
        insert = insert.values({name: sa.bindparam(name) for name in columns})
        changed = {name: insert.excluded[name] for name in columns if name not in key}
        return self._text(insert.on_conflict_do_update(index_elements=key, set_=changed))

    def _text(self, statement: Any) -> str:
        return str(statement.compile(dialect=self._dialect))


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
