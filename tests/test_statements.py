"""From commits to SQL: the plan of a transaction, and that each statement fits its rows on both dialects."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from gateway.stores import schema
from gateway.stores.base import TOMBSTONE_MS, ChunkRow, CommandRow, Commit, Compaction, MessageRow
from gateway.stores.statements import Statements
from tests.support_log import session_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SQLITE = Statements(sqlite.dialect(paramstyle="qmark"))
POSTGRESQL = Statements(postgresql.dialect(paramstyle="format"))  # type: ignore[no-untyped-call]

CHUNK = ChunkRow(1, 2, 50, b"{}\n{}")
COMMAND = CommandRow("p", "c", "s", b"body", b"ack", 7)
FULL = Commit(
    1,
    session_row(title="t"),
    chunk=CHUNK,
    remove_from=3,
    commands=[COMMAND],
    compaction=Compaction(2, b"fold", [MessageRow(0, "m", b"{}")], 1),
)


def plan(commits: Sequence[Commit], statements: Statements = SQLITE) -> list[tuple[str, Any]]:
    return [(" ".join(text.lower().split()), rows) for text, rows in statements.plan(commits)]


def verbs(commits: Sequence[Commit]) -> list[str]:
    return [" ".join(text.split()[:3]) for text, _ in plan(commits)]


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    engine = sa.create_engine("sqlite://", creator=lambda: connection, poolclass=sa.pool.StaticPool)
    schema.metadata.create_all(engine)
    yield connection
    engine.dispose()
    connection.close()


def run(database: sqlite3.Connection, commits: Sequence[Commit]) -> None:
    for text, rows in SQLITE.plan(commits):
        if isinstance(rows, list):
            database.executemany(text, rows)
        else:
            database.execute(text, rows)


def test_a_commit_is_applied_in_the_order_of_its_fields() -> None:
    assert verbs([FULL]) == [
        "insert into sessions",
        "delete from messages",
        "insert into commands",
        "insert into chunks",
        "insert into messages",
        "update sessions set",
        "delete from chunks",
    ]


def test_the_chunks_of_all_sessions_are_one_statement() -> None:
    texts = plan([Commit(sid, chunk=CHUNK) for sid in (1, 2, 3)])
    assert len(texts) == 1
    assert [row[0] for row in texts[0][1]] == [1, 2, 3]


def test_a_commit_of_nothing_is_no_statement() -> None:
    assert plan([]) == plan([Commit(1)]) == []


def test_a_deletion_is_all_that_its_commit_does() -> None:
    deleted = Commit(1, session_row(updated_at=40), delete=True, chunk=CHUNK, compaction=FULL.compaction)
    texts = plan([deleted])
    assert [text.split()[:3] for text, _ in texts] == [
        ["delete", "from", "chunks"],
        ["delete", "from", "messages"],
        ["delete", "from", "shares"],
        ["delete", "from", "sessions"],
        ["update", "commands", "set"],
    ]
    assert texts[-1][1] == (40 + TOMBSTONE_MS, 1)


@pytest.mark.parametrize("statements", [SQLITE, POSTGRESQL], ids=["sqlite", "postgresql"])
def test_every_statement_has_as_many_places_as_its_rows_have_values(statements: Statements) -> None:
    for commits in ([FULL], [Commit(1, session_row(), delete=True)]):
        for text, rows in plan(commits, statements):
            row = rows[0] if isinstance(rows, list) else rows
            assert text.count("?") + text.count("%s") == len(row), text


def test_every_value_lands_in_its_column(database: sqlite3.Connection) -> None:
    run(database, [FULL])
    database.row_factory = sqlite3.Row
    (session,) = [dict(row) for row in database.execute("select * from sessions")]
    assert session["title"] == "t"
    assert (session["checkpoint_seq"], session["checkpoint"]) == (2, b"fold")
    (chunk,) = [dict(row) for row in database.execute("select * from chunks")]
    assert chunk == {"sid": 1, "first_seq": 1, "last_seq": 2, "committed_at": 50, "data": b"{}\n{}"}
    (message,) = [dict(row) for row in database.execute("select * from messages")]
    assert message == {"sid": 1, "position": 0, "message_id": "m", "data": b"{}"}
    (command,) = [dict(row) for row in database.execute("select * from commands")]
    assert command == {
        "principal": "p",
        "command_id": "c",
        "sid": 1,
        "session_id": "s",
        "body": b"body",
        "ack": b"ack",
        "created_at": 7,
        "expires_at": None,
    }


def test_a_session_row_that_comes_again_leaves_the_checkpoint_alone(database: sqlite3.Connection) -> None:
    run(database, [FULL])
    run(database, [Commit(1, session_row(title="new"))])
    assert database.execute("select title, checkpoint_seq from sessions").fetchall() == [("new", 2)]
