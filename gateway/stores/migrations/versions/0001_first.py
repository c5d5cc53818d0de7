"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.stores.schema import Text

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables of version 1."""
    op.create_table(
        "sessions",
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
    )
    op.create_index("sessions_by_id", "sessions", ["principal", "session_id"], unique=True)
    op.create_index("sessions_by_age", "sessions", ["principal", "updated_at", "session_id"])
    running = sa.text("active = 1")
    op.create_index("sessions_active", "sessions", ["active"], sqlite_where=running, postgresql_where=running)
    op.create_table(
        "chunks",
        sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first_seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("committed_at", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "messages",
        sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("position", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("message_id", Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
    op.create_index("messages_by_id", "messages", ["sid", "message_id"])
    op.create_table(
        "commands",
        sa.Column("principal", Text, primary_key=True),
        sa.Column("command_id", Text, primary_key=True),
        sa.Column("sid", sa.BigInteger, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Column("ack", sa.LargeBinary, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger),
    )
    op.create_index("commands_by_session", "commands", ["sid"])
