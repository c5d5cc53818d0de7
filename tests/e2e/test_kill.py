"""kill -9 at fifty moments that nobody chose, on one database: what any client has seen stays, and nothing runs twice.

The moments and all the doings come from one seed, which is printed; `KILL_SEED` plays it again (the machine's own
timing aside).
"""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.crowd import World
from tests.e2e.support import check_log, of_run

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame

STORES = ("sqlite", "postgresql")

ROUNDS = 50


@pytest.mark.timeout(180)
async def test_fifty_kills_lose_nothing_and_repeat_nothing(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("KILL_SEED") or time.time_ns() % 1_000_000)
    dice = random.Random(seed)
    server = launch(abort_grace=30, queue_limit=4)
    rounds = ROUNDS if server.store.startswith("sqlite") else ROUNDS // 4  # what a gateway does is the same on both
    world = World(server, dice)
    everything: set[str] = set()
    down = 0.0
    with capsys.disabled():
        print(f" [KILL_SEED={seed}]", end="", flush=True)
    for _ in range(rounds):
        await world.live(dice.uniform(0.02, 0.25))
        everything |= set(world.sessions)
        began = time.monotonic()
        await server.restart()
        down += time.monotonic() - began
        await world.check()
        world.renew()
    for viewer in world.viewers:
        for session, view in viewer.views.items():
            assert not view.gaps, (session, view.gaps)
            assert not view.dropped, (session, view.dropped)
    # Long after they were left, and forty restarts later, all is as it was: and each of them can be gone on with.
    async with server.client() as reader:
        logs: list[list[Frame]] = []
        for session in everything:
            attached = await reader.call("attach", session_id=session, seq=0)
            if attached["type"] == "error":
                continue
            await reader.caught_up(session, attached["seq"])
            logs.append(log := reader.events(session))
            check_log(log)
            ends = [e["status"] for e in log if e["type"] == "run-finish"]
            if ends[-1] != "completed":
                ack = await reader.ok("resume", session_id=session)
                await reader.until("run-start", run_id=ack["run_id"])
                await reader.ok("abort", session_id=session)
                await reader.until("run-finish", run_id=ack["run_id"])
                assert of_run(reader.events(session), ack["run_id"])[-1]["type"] == "run-finish"
    world.count(logs)
    with capsys.disabled():
        print(f" [{world.counted}, {down:.1f} s of {rounds} starts]", end="", flush=True)
    assert rounds < ROUNDS or all(world.counted.values()), world.counted
    assert world.counted["runs"] > rounds
    assert world.counted["lost"] > rounds
