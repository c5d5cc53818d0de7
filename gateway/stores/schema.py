"""The tables, once, for SQLite and PostgreSQL."""

from __future__ import annotations

import sqlalchemy as sa

metadata = sa.MetaData()

Text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
"""Compared byte by byte on both databases, so that a list has one order."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("principal", Text, nullable=False),
    sa.Column("session_id", Text, nullable=False),
    sa.Column("epoch", Text, nullable=False),
    sa.Column("title", Text),
    sa.Column("status", Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("updated_at", sa.BigInteger, nullable=False),
    sa.Column("message_count", sa.Integer, nullable=False),
    sa.Column("active", sa.Integer, nullable=False),
    sa.Column("run", sa.LargeBinary),
    sa.Column("checkpoint_seq", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("checkpoint", sa.LargeBinary),
    sa.Index("sessions_by_id", "principal", "session_id", unique=True),
    sa.Index("sessions_by_age", "principal", "updated_at", "session_id"),
    # On PostgreSQL partial, too, by its migration: naming that here would import its dialect at every start.
    sa.Index("sessions_active", "active", sqlite_where=sa.text("active = 1")),
)

SESSION_COLUMNS = (
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
"""What a :class:`~gateway.stores.base.SessionRow` has, in its order; the checkpoint is the rest."""

chunks = sa.Table(
    "chunks",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("first_seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("committed_at", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

recent = sa.Table(
    "recent",
    metadata,
    # SQLite only: where chunks come in, without an index; see stores/recent.py. On PostgreSQL it stays empty.
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sid", sa.BigInteger, nullable=False),
    sa.Column("first_seq", sa.BigInteger, nullable=False),
    sa.Column("last_seq", sa.BigInteger, nullable=False),
    sa.Column("committed_at", sa.BigInteger, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

messages = sa.Table(
    "messages",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("message_id", Text, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Index("messages_by_id", "sid", "message_id"),
)

commands = sa.Table(
    "commands",
    metadata,
    sa.Column("principal", Text, primary_key=True),
    sa.Column("command_id", Text, primary_key=True),
    sa.Column("sid", sa.BigInteger, nullable=False),
    sa.Column("session_id", Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Column("ack", sa.LargeBinary, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Column("expires_at", sa.BigInteger),
    sa.Index("commands_by_session", "sid"),
)

shares = sa.Table(
    "shares",
    metadata,
    sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("principal", Text, primary_key=True),
    sa.Column("owner", Text, nullable=False),
    sa.Column("session_id", Text, nullable=False),
    sa.Column("role", Text, nullable=False),
    sa.Column("created_at", sa.BigInteger, nullable=False),
    sa.Index("shares_by_principal", "principal", "session_id"),
)

SHARE_COLUMNS = ("sid", "principal", "owner", "session_id", "role", "created_at")
"""What a :class:`~gateway.stores.base.ShareRow` has, in its order."""

# -- for several nodes on one database (PostgreSQL): who is alive, who owns what

fences = sa.Sequence("fences")
"""Unique and rising in the whole database; never given twice."""

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("node_id", Text, primary_key=True),
    sa.Column("expires_at", sa.BigInteger, nullable=False),  # ms since 1970 by the database's clock
)

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("principal", Text, nullable=False),
    sa.Column("session_id", Text, nullable=False),
    sa.Column("node_id", Text, nullable=False),
    sa.Column("aborts", sa.LargeBinary),  # one payload a line
    sa.Index("leases_by_session", "principal", "session_id", unique=True),
    sa.Index("leases_by_node", "node_id"),
)

latches = sa.Table(
    "latches",
    metadata,
    sa.Column("principal", Text, primary_key=True),
    sa.Column("command_id", Text, primary_key=True),
    sa.Column("detail", Text, nullable=False),
    sa.Column("expires_at", sa.BigInteger, nullable=False),
)
