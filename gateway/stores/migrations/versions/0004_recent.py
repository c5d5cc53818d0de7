"""Where chunks come in on SQLite, before they are put into their place."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the table; on PostgreSQL, whose table of chunks grows at its end, it stays empty."""
    op.create_table(
        "recent",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("sid", sa.BigInteger, nullable=False),
        sa.Column("first_seq", sa.BigInteger, nullable=False),
        sa.Column("last_seq", sa.BigInteger, nullable=False),
        sa.Column("committed_at", sa.BigInteger, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )
