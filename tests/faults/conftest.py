"""Fixtures of the fault tests: forked servers, and disks that can fill."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from tests.e2e.conftest import environment, gate, launch, new_store, server
from tests.faults.nursery import Nursery, QuickServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["gate", "launch", "new_store", "server"]


class Quick(Protocol):
    """Make a server of the nursery's, not started."""

    def __call__(self, **settings: Any) -> QuickServer: ...


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture
def quick(nursery: Nursery, tmp_path: Path) -> Iterator[Quick]:
    """A factory of forked servers that end with the test."""
    made: list[QuickServer] = []

    def make(**settings: Any) -> QuickServer:
        folder = tmp_path / f"quick-{len(made)}"
        folder.mkdir()
        made.append(QuickServer(nursery, folder, env=environment(settings)))
        return made[-1]

    yield make
    for one in made:
        one.close()
