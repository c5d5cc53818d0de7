"""Clusters for the tests: one database and one Redis each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.cluster.support import Cluster, RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support_postgres import Postgres


class Launch(Protocol):
    """Start a cluster of one's own."""

    def __call__(self, count: int = 2, *, start: bool = True, **settings: Any) -> Cluster: ...


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis that a test may kill."""
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Cluster]:
    """Two nodes that nothing happens to."""
    server, address = RedisServer().start(), postgres.database()
    two = Cluster(tmp_path_factory.mktemp("pair"), server, address, 2)
    try:
        yield two.start()
        for node in two.nodes:
            assert node.running.poll() is None, node.logs()
            assert "Traceback" not in node.stderr(), node.stderr()
    finally:
        two.close()
        server.stop()
        postgres.drop(address)


@pytest.fixture
def cluster(tmp_path: Path, redis: RedisServer, database: str) -> Iterator[Launch]:
    """A factory of one cluster, which ends with the test."""
    made: list[Cluster] = []

    def make(count: int = 2, *, start: bool = True, **settings: Any) -> Cluster:
        one = Cluster(tmp_path, redis, database, count, **settings)
        made.append(one)
        return one.start() if start else one

    yield make
    for one in made:
        one.close()
