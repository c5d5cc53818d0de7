"""Alembic's entry: migrate over the connection that the store hands in."""

from __future__ import annotations

from alembic import context

from gateway.stores.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,  # SQLite has it, though alembic does not count on it; see `migrate`
)
with context.begin_transaction():
    context.run_migrations()
