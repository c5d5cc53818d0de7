"""Bring a database's schema up to date, and refuse one that is newer than this program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from gateway.stores.base import StoreUnusable

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

LATEST = "0004"
"""The newest revision in ``migrations/versions``; a test holds it to that folder."""


def check(connection: Connection) -> str | None:
    """Give the database's revision, having changed nothing. Raises :exc:`StoreUnusable` if we cannot use it."""
    current = revision(connection)
    if current is not None and current > LATEST:
        raise StoreUnusable(
            f"the database has schema {current}, newer than this program's {LATEST}: upgrade the program"
        )
    return current


def migrate(connection: Connection) -> None:
    """Upgrade to :data:`LATEST` in one transaction, the caller's. Raises :exc:`StoreUnusable` on a newer schema."""
    if check(connection) == LATEST:
        return
    if connection.dialect.name == "sqlite":
        # The driver begins none before a DDL statement: a death in the middle would leave half a schema behind.
        connection.commit()
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    # Alembic is slow to import; a database that is up to date never pays for it.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def revision(connection: Connection) -> str | None:
    """Read the database's revision; None for an empty database. Raises :exc:`StoreUnusable` if it is not ours."""
    tables = set(sa.inspect(connection).get_table_names())
    if {"alembic_version", "sessions"} <= tables:
        found: str | None = connection.scalar(sa.text("select version_num from alembic_version"))
        return found
    if tables:
        raise StoreUnusable("the database has tables of something else; give the gateway one of its own")
    return None
