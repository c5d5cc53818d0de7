"""kill -9 at every boundary: what any client has seen stays, nothing runs twice, every run is sealed.

The server kills itself at the n-th passage of a named boundary (`deaths`), under a crowd of clients whose doings come
from one seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import WebSocketException

from tests.e2e.crowd import World
from tests.e2e.support import check_log, fresh, text_of
from tests.faults import dice
from tests.faults.deaths import BOUNDARIES

if TYPE_CHECKING:
    from tests.faults.conftest import Quick
    from tests.faults.nursery import QuickServer

RANGES = {
    "before_append": 150,
    "before_commit": 80,
    "in_commit": 150,
    "after_commit": 80,
    "before_send": 120,
    "mid_send": 120,
    "compacting": 8,
    "checkpointing": 10,
    "moving": 60,
}
"""Boundaries under load, and the last passage that the dice may choose."""

KILLS = round(20 * dice.TIMES)
"""At each boundary."""


async def ready_or_dead(server: QuickServer) -> bool:
    """Start, and wait until it serves or has died over it; true if it serves."""
    server.spawn()
    async with asyncio.timeout(20):
        while server.running.poll() is None:
            if await asyncio.to_thread(server.ready):
                return True
    return False


@pytest.mark.timeout(60 + 60 * dice.TIMES)
@pytest.mark.parametrize("boundary", RANGES)
async def test_a_death_at_a_boundary_loses_nothing_and_repeats_nothing(
    quick: Quick, boundary: str, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = dice.cast(capsys)
    server = quick(abort_grace=30, queue_limit=4)
    world = World(server, chance)
    by_itself = 0
    for _ in range(KILLS):
        server.death = (boundary, chance.randint(1, RANGES[boundary]))
        began = time.monotonic()
        if await ready_or_dead(server):  # chunks that the last process left are moved before it serves
            await world.live(seconds=2)
        by_itself += time.monotonic() - began < 1.9
        await server.restart()
        await world.check()
        server.kill()
        world.renew()
    assert not any(view.gaps or view.dropped for viewer in world.viewers for view in viewer.views.values())
    dice.say(capsys, f"{KILLS} kills, {by_itself} at the boundary")
    assert by_itself > KILLS / 2, "the boundary was not met"


@pytest.mark.timeout(60 + 60 * dice.TIMES)
@pytest.mark.parametrize(("boundary", "last"), [("sealing", 12), ("sealed", 6)])
async def test_a_death_in_the_recovery_is_recovered_from(
    quick: Quick, boundary: str, last: int, capsys: pytest.CaptureFixture[str]
) -> None:
    chance = dice.cast(capsys)
    server = quick(abort_grace=30, queue_limit=4)
    world = World(server, chance)
    died = 0
    for _ in range(KILLS):
        await server.restart()
        await world.live(chance.uniform(0.3, 0.5))
        for _ in range(chance.randint(1, 3)):
            server.death = (boundary, chance.randint(1, last))
            died += not await ready_or_dead(server)
            server.kill()
        await server.restart()
        await world.check()
        server.kill()
        world.renew()
    assert not any(view.gaps or view.dropped for viewer in world.viewers for view in viewer.views.values())
    dice.say(capsys, f"{died} deaths in the recovery")
    assert died > KILLS / 2, "the boundary was not met"


@pytest.mark.timeout(60 + 60 * dice.TIMES)
async def test_a_death_while_old_events_are_dropped_keeps_every_message(quick: Quick) -> None:
    """With a short retention the compaction is what keeps a message: each of its statements once."""
    server = quick(retain_s=0.02, evict_s=0)
    died = 0
    for passage in range(1, 13):
        session = fresh()
        acknowledged: list[str] = []
        finished: dict[str, str] = {}
        server.death = ("compacting", passage)
        await server.restart()
        with contextlib.suppress(OSError, WebSocketException):
            async with server.client() as c:
                for _ in range(90):
                    word = fresh("word")
                    ack = await c.prompt(session, word)
                    acknowledged.append(word)
                    await c.over(ack)
                    finished[word] = text_of(c.view(session).fold.messages[-1])
                    await asyncio.sleep(0.02)
        if len(finished) < 90:  # it hung up, which comes before its end
            died += await server.exited() == -signal.SIGKILL
        server.kill()
        await server.restart()
        async with server.client() as c:
            kept = (await c.ok("history", session_id=session, limit=200))["messages"]
        assert [text_of(m) for m in kept if m["role"] == "user"][: len(acknowledged)] == acknowledged
        answers = {text_of(a): text_of(b) for a, b in itertools.pairwise(kept) if b["role"] == "assistant"}
        assert {word: answers[word] for word in finished} == finished
        server.kill()
    assert died == 12, "the boundary was not met"


@pytest.mark.timeout(60)
async def test_a_death_at_any_statement_of_a_migration_is_gone_on_from(quick: Quick) -> None:
    passages = 0
    while True:
        passages += 1
        server = quick()
        server.death = ("migrating", passages)
        if await ready_or_dead(server):
            break
        await server.restart()
        session = fresh()
        async with server.client() as c:
            assert (await c.run(session))["status"] == "completed"
        check_log(await server.log(session))
        server.kill()
    assert passages > 5, "the boundary was not met"


def test_every_boundary_is_met_by_a_test() -> None:
    assert set(BOUNDARIES) == {*RANGES, "sealing", "sealed", "migrating"}
