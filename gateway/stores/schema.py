"""The tables, once, for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("principal", sa.Text, nullable=False),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("epoch", sa.Text, nullable=False),
    sa.Column("title", sa.Text),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("message_count", sa.Integer, nullable=False),
    sa.Column("active", sa.Integer, nullable=False),
    sa.Column("run", sa.LargeBinary),
    sa.Column("checkpoint_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("checkpoint", sa.LargeBinary),
    sa.Index("sessions_by_id", "principal", "session_id", unique=True),
    sa.Index("sessions_by_age", "principal", "updated_at", "session_id"),
    sa.Index("sessions_active", "active", sqlite_where=sa.text("active = 1"), postgresql_where=sa.text("active = 1")),
)

chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first_seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("committed_at", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", sa.Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("messages_by_id", "sid", "message_id"),
)

commands = sa.Table(
    "commands",
    metadata,
    sa.Column("principal", sa.Text, primary_key=True),
    sa.Column("command_id", sa.Text, primary_key=True),
    sa.Column("sid", sa.BigInteger, nullable=False),
    sa.Column("session_id", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("ack", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("commands_by_session", "sid"),
)
