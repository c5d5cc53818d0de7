"""Servers for the black-box tests: one per module where nobody kills it, one per test where somebody does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.e2e.support import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.support_postgres import Postgres

    NewStore = Callable[[], str | None]


class Launch(Protocol):
    """Start a server of one's own."""

    def __call__(
        self, engine: str = "director", *, args: Sequence[str] = (), start: bool = True, **settings: Any
    ) -> Server: ...


def environment(settings: dict[str, Any]) -> dict[str, str]:
    return {f"GATEWAY_{name.upper()}": str(value) for name, value in settings.items()}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a module that names `STORES` once with each of them."""
    stores = getattr(metafunc.module, "STORES", None)
    if stores and "new_store" in metafunc.fixturenames:
        metafunc.parametrize("new_store", stores, indirect=True, scope="module")


@pytest.fixture(scope="module")
def new_store(request: pytest.FixtureRequest) -> NewStore:
    """Gives the address of an empty store, None for a file in the server's folder."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return lambda: None
    postgres: Postgres = request.getfixturevalue("postgres")
    return postgres.database


@pytest.fixture(scope="module")
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, new_store: NewStore
) -> Iterator[Server]:
    """The module's server; a module names its `SETTINGS`, `ENGINE` and `ARGS` where the defaults do not fit."""
    module = request.module
    shared = Server(
        tmp_path_factory.mktemp("server"),
        getattr(module, "ENGINE", "director"),
        args=getattr(module, "ARGS", ()),
        env=environment(getattr(module, "SETTINGS", {})),
        store=new_store(),
    )
    try:
        yield shared.start()
        assert shared.running.poll() is None, f"the server did not live through the module:\n{shared.logs()}"
    finally:
        shared.close()


@pytest.fixture
def launch(tmp_path: Path, new_store: NewStore) -> Iterator[Launch]:
    """A factory of servers that end with the test."""
    started: list[Server] = []

    def start_one(engine: str = "director", *, args: Sequence[str] = (), start: bool = True, **settings: Any) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        one = Server(folder, engine, args=args, env=environment(settings), store=new_store())
        started.append(one)
        return one.start() if start else one

    yield start_one
    for one in started:
        one.close()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The file that releases a held run, once it is touched."""
    return tmp_path / "gate"
