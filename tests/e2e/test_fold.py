"""The tests' own fold, held to the shared vectors before it may judge anybody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.fold import Fold
from tests.e2e.support import View

VECTORS = sorted((Path(__file__).resolve().parent.parent / "vectors").glob("*.json"))


@pytest.mark.parametrize("path", VECTORS, ids=lambda p: p.stem)
def test_the_fold_gives_the_state_of_every_vector(path: Path) -> None:
    vector = json.loads(path.read_text())
    fold = Fold()
    for frame in vector["frames"]:
        assert fold.feed(frame) in ("applied", "dropped", "gap")
    assert fold.state() == vector["state"]


@pytest.mark.parametrize("path", VECTORS, ids=lambda p: p.stem)
def test_the_view_of_a_conforming_client_gives_it_too(path: Path) -> None:
    vector = json.loads(path.read_text())
    view = View()
    asks = [view.feed(frame) for frame in vector["frames"]]
    assert any(asks) == ("gap" in vector["name"])
    assert view.fold.state() == vector["state"]


def test_there_are_vectors() -> None:
    assert len(VECTORS) >= 15
