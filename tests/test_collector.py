"""The garbage collector's full passes: when they are due, and that nothing stays for ever."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from gateway import collector
from gateway.collector import MANY, RARELY_S, SHARE, YOUNG, Collector, collecting


class World:
    """A clock, and a collector that takes 50 ms for a full pass and has ``new`` objects to look at."""

    def __init__(self) -> None:
        self.now = 0.0
        self.new = (YOUNG[0], 0, 0)

    def clock(self) -> float:
        return self.now

    def collect(self) -> int:
        self.now += 0.05
        self.new = (0, 0, 0)
        return 0


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(gc, "collect", world.collect)
    monkeypatch.setattr(gc, "get_count", lambda: world.new)
    return world


def test_a_full_pass_takes_no_more_than_its_share(world: World) -> None:
    looking = Collector(world.clock)
    world.new = (0, 0, 1)
    assert looking.look(), "nothing is known yet of how long it takes"
    start, passes = world.now, 0
    while world.now < start + 300:
        world.new = (0, 0, 1)
        passes += looking.look()
        world.now += 0.5
    assert 10 < passes <= 300 / (SHARE * 0.05)


@pytest.mark.parametrize("new", [(YOUNG[0] // 2, 0, 0), (0, 1, 0)])
def test_a_little_that_is_new_is_looked_at_rarely_and_nothing_never(world: World, new: tuple[int, int, int]) -> None:
    looking = Collector(world.clock)
    world.now += 3600
    world.new = (0, 0, 0)
    assert not looking.look(), "there is nothing new"
    world.new = new
    assert looking.look()
    world.new = new
    world.now += RARELY_S - 1
    assert not looking.look()
    world.now += 1
    assert looking.look()


def test_very_much_that_is_new_does_not_wait(world: World) -> None:
    looking = Collector(world.clock)
    world.new = (0, 0, 1)
    assert looking.look()
    world.new = (0, 0, MANY - 1)
    assert not looking.look()
    world.new = (0, 0, MANY)
    assert looking.look()


class Knot:
    """Knows itself: only the collector ends it."""

    def __init__(self) -> None:
        self.me = self


async def test_garbage_of_every_age_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(collector, "SHARE", 1)
    thresholds = gc.get_threshold()
    async with collecting():
        assert gc.get_threshold()[:2] == YOUNG
        knot = Knot()
        gc.collect(1)  # it is old now
        gone = weakref.ref(knot)
        del knot
        assert gone() is not None
        for _ in range(500):
            await asyncio.sleep(0.01)
            if gone() is None:
                break
        assert gone() is None
    assert gc.get_threshold() == thresholds
