"""What all tests may ask for: a PostgreSQL server for the run, and a database of one's own on it."""

from __future__ import annotations

import gc
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support_postgres import Postgres


with suppress(ImportError):  # some suites run in environments of their own, without it
    from hypothesis import HealthCheck, settings

    # What an example takes is the machine's affair: the very first one even builds a table of all characters.
    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")


@pytest.fixture(scope="module", autouse=True)
def nothing_left_to_collect() -> Iterator[None]:
    """What a file leaves behind goes while no loop runs.

    Collected in the middle of a later test, a client of a provider's library makes a task there to close itself, and
    whoever counts tasks finds one too many.
    """
    yield
    gc.collect()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The run's server, started by the first test that needs it. Who stops or kills one makes an own."""
    with _started() as server:
        yield server


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server of the test's own, to be stopped and killed."""
    with _started() as server:
        yield server


@contextmanager
def _started() -> Iterator[Postgres]:
    # Not above: some suites run in environments of their own, without a driver for PostgreSQL.
    from tests.support_postgres import Postgres

    server = Postgres()
    try:
        yield server.create()
    finally:
        server.destroy()


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """The address of an empty database."""
    address = postgres.database()
    yield address
    postgres.drop(address)
