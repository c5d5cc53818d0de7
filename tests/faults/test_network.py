"""A bad network between the real client and the real server: the transcripts agree, every prompt runs exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from typing import TYPE_CHECKING

import pytest

from gateway.client import Closed, Unreachable, connect
from gateway.client.backoff import Backoff
from protocol.errors import CommandError
from tests.e2e.fold import comparable
from tests.e2e.support import check_log, fresh
from tests.faults import dice
from tests.faults.proxy import Proxy

if TYPE_CHECKING:
    from gateway.client.connection import Gateway, Status
    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame
    from tests.e2e.support import Server

CLIENTS = 24
CONNECTIONS = round(2000 * dice.TIMES)
"""Until so many have been made, and nearly all have ended badly, the clients go on."""


class Talker:
    """One client of the real library, that prompts, aborts and resumes its two sessions until it is told to stop."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self.port = port
        self.chance = chance
        self.sessions = [fresh() for _ in range(2)]
        self.said: dict[str, str] = {}
        self.acked: dict[str, str] = {}
        self.opened = 0
        self.states: dict[str, list[Frame]] = {}
        self.done = asyncio.Event()

    def heard(self, status: Status) -> None:
        self.opened += status == "open"

    async def live(self) -> None:
        """Talk; where the very first connection fails, which the library leaves to its caller, begin again."""
        while not self.states:
            with contextlib.suppress(Unreachable, Closed):
                await self.talk()

    async def talk(self) -> None:
        quick = Backoff(base=0.01, cap=0.05)
        async with connect(f"ws://127.0.0.1:{self.port}/ws", on_status=self.heard, backoff=quick) as gateway:
            while not self.done.is_set():
                await self.act(gateway)
            for session in self.sessions:
                await self.settle(gateway, session)

    async def act(self, gateway: Gateway) -> None:
        session = gateway.session(self.chance.choice(self.sessions))
        try:
            match self.chance.choices(("prompt", "abort", "resume", "wait"), (6, 1, 1, 4))[0]:
                case "prompt":
                    id_ = fresh("p")
                    self.said[id_] = session.id
                    words = self.chance.choice((3, 20, 60))
                    text = json.dumps({"do": "words", "words": words, "delay": 0.002, "as": fresh("word")})
                    ack = await session.prompt(
                        text, id=id_, on_busy="queue", on_disconnect=self.chance.choice(("abort", "continue"))
                    )
                    self.acked[id_] = ack["run_id"]
                case "abort":
                    await session.abort()
                case "resume":
                    await session.resume(on_disconnect="continue")
                case "wait":
                    await asyncio.sleep(self.chance.uniform(0, 0.05))
        except CommandError as exc:
            if exc.code not in ("queue_full", "session_busy", "not_resumable", "session_not_found"):
                raise

    async def settle(self, gateway: Gateway, session_id: str) -> None:
        """Stop what runs, and wait until that is known here."""
        session = gateway.session(session_id)
        try:
            await session.attach()
        except CommandError as exc:
            if exc.code != "session_not_found":
                raise
            return
        await session.abort()
        events = session.events()
        async with asyncio.timeout(60), contextlib.aclosing(events):
            while session.state.status != "idle" or session.state.queue:
                await anext(events)
        self.states[session_id] = list(session.state.messages)


async def check(server: Server, talker: Talker) -> None:
    """Hold what one client has, and did, against the server's log."""
    states = talker.states
    for session in talker.sessions:
        prompts = [id_ for id_, where in talker.said.items() if where == session]
        if session not in states:
            assert not any(id_ in talker.acked for id_ in prompts), "acknowledged, and forgotten"
            continue
        log = await server.log(session)
        check_log(log)
        starts = [e for e in log if e["type"] == "run-start" and e["mode"] == "prompt"]
        runs = {e["command_id"]: e["run_id"] for e in starts}
        assert len(runs) == len(starts), "run twice"
        gone = {e["run_id"] for e in log if e["type"] == "dequeued"}
        for id_ in prompts:
            run = talker.acked.get(id_)
            assert run is None or runs.get(id_) == run or (id_ not in runs and run in gone), "acknowledged, and lost"
        snapshot = await server.snapshot(session)
        mine, theirs = comparable(states[session]), comparable(snapshot["messages"])
        assert (mine[-len(theirs) :] if snapshot["has_more"] else mine) == theirs


@pytest.mark.timeout(120 + 180 * dice.TIMES)
async def test_thousands_of_reconnects_leave_one_transcript(launch: Launch, capsys: pytest.CaptureFixture[str]) -> None:
    chance = dice.cast(capsys)
    server = launch(heartbeat_s=0.3, queue_limit=4, send_timeout=2)
    async with Proxy(server.port, chance) as proxy:
        talkers = [Talker(proxy.port, random.Random(chance.random())) for _ in range(CLIENTS)]
        lives = [asyncio.create_task(talker.live()) for talker in talkers]
        try:
            while sum(proxy.counted.values()) < CONNECTIONS:
                await asyncio.wait(lives, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
                assert not any(life.done() for life in lives), [life for life in lives if life.done()]
            proxy.calm = True
            await proxy.drop()
            for talker in talkers:
                talker.done.set()
            async with asyncio.timeout(90):
                await asyncio.gather(*lives)
        finally:
            for life in lives:
                life.cancel()
            await asyncio.gather(*lives, return_exceptions=True)
        opened, prompts = sum(t.opened for t in talkers), sum(len(t.acked) for t in talkers)
        dice.say(capsys, f"{opened} connections stood, {prompts} prompts acknowledged; ends {proxy.counted}")
    assert all(proxy.counted[end] > 20 for end in ("cut", "reset", "stall", "half")), proxy.counted
    for talker in talkers:
        await check(server, talker)
    assert "Traceback" not in server.logs()
