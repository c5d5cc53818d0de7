"""Several nodes on one database: who is alive, who owns which session, what was aborted before it came."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.stores.schema import Text

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Create the tables; on SQLite, which one process has for itself, they stay empty."""
    if op.get_bind().dialect.supports_sequences:
        op.execute(sa.schema.CreateSequence(sa.Sequence("fences")))
    op.create_table(
        "nodes",
        sa.Column("node_id", Text, primary_key=True),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "leases",
        sa.Column("fence", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("principal", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("node_id", Text, nullable=False),
        sa.Column("aborts", sa.LargeBinary),
    )
    op.create_index("leases_by_session", "leases", ["principal", "session_id"], unique=True)
    op.create_index("leases_by_node", "leases", ["node_id"])
    op.create_table(
        "latches",
        sa.Column("principal", Text, primary_key=True),
        sa.Column("command_id", Text, primary_key=True),
        sa.Column("detail", Text, nullable=False),
        sa.Column("expires_at", sa.BigInteger, nullable=False),
    )
