"""Sessions that are shared with others."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from gateway.stores.schema import Text

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the table of shares."""
    op.create_table(
        "shares",
        sa.Column("sid", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("principal", Text, primary_key=True),
        sa.Column("owner", Text, nullable=False),
        sa.Column("session_id", Text, nullable=False),
        sa.Column("role", Text, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
    )
    op.create_index("shares_by_principal", "shares", ["principal", "session_id"])
