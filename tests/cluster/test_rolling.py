"""A deploy: nodes leave one by one and come back, under load, and no client misses or repeats anything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.cluster.support import LONG, check_single_runner
from tests.e2e.support import Client, agree, check_log, fresh, of_run

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cluster.conftest import Launch
    from tests.cluster.support import Cluster, Node


def steps(count: int = 3, **more: object) -> str:
    return json.dumps({"steps": count, **more})


async def test_idle_sessions_go_elsewhere_while_a_run_still_finishes(cluster: Launch, tmp_path: Path) -> None:
    here, there = cluster(drain=60).nodes
    idle, busy, gate = fresh(), fresh(), tmp_path / "gate"
    async with here.client() as client, there.client() as other:
        await client.run(idle, steps())
        ack = await client.prompt(busy, steps(2, gate=str(gate)), on_disconnect="continue")
        await client.until("text-delta", session_id=busy)
        await other.ok("attach", session_id=busy)
        here.terminate()
        await client.until("goaway")
        await client.fails("draining", "prompt", session_id=idle, text="x")
        assert (await here.http("GET", "/readyz")).status == 503
        moved = await other.ok("prompt", session_id=idle, text=steps(), timeout=LONG)
        # The old node's client still sees its session, which another node runs now.
        await client.until("run-finish", run_id=moved["run_id"], timeout=LONG)
        await other.over(moved)
        assert here.running.poll() is None, "the node waits for its run"
        gate.touch()
        finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "completed"
        assert await client.closed(timeout=LONG) == 4100
        assert await here.exited() == 0
        follow = await other.ok("prompt", session_id=busy, text=steps(), timeout=LONG)
        await other.over(follow)
        await agree(there, other, busy)


async def test_a_run_past_the_deadline_is_sealed_and_resumed_on_another_node(cluster: Launch, tmp_path: Path) -> None:
    here, there = cluster(drain=0.5).nodes
    session = fresh()
    async with here.client() as client, there.client() as other:
        ack = await client.prompt(session, steps(2, gate=str(tmp_path / "gate")), on_disconnect="continue")
        await client.until("text-delta", session_id=session)
        await other.ok("attach", session_id=session)
        here.terminate()
        finish = await other.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert (finish["status"], finish["reason"]) == ("aborted", "shutdown")
        assert await here.exited() == 0
        (tmp_path / "gate").touch()
        resumed = await other.ok("resume", session_id=session, timeout=LONG)
        done = await other.until("run-finish", run_id=resumed["run_id"], timeout=LONG)
        assert done["status"] == "completed"


async def test_leaving_a_drained_node_is_no_disconnect(cluster: Launch, tmp_path: Path) -> None:
    here, there = cluster(disconnect_grace=0.2).nodes
    session, gate = fresh(), tmp_path / "gate"
    async with there.client() as watcher:
        await watcher.run(session, steps())
        await watcher.ok("detach", session_id=session)
    async with there.client() as watcher, here.client() as owner:
        await watcher.ok("attach", session_id=session, role="observer")
        ack = await owner.prompt(session, steps(2, gate=str(gate)))
        await owner.until("text-delta", session_id=session)
        here.terminate()
        await owner.closed(timeout=LONG)
        assert await here.exited() == 0
        await asyncio.sleep(1)  # five times the grace
        gate.touch()
        finish = await watcher.until("run-finish", run_id=ack["run_id"], timeout=LONG)
        assert finish["status"] == "completed"


class Tab:
    """A conforming client that moves to another node when its own says goodbye, and prompts all the while."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.session = fresh()
        self.client: Client | None = None
        self.acks: list[dict[str, Any]] = []
        self.views: dict[str, Any] = {}
        self.refused: list[str] = []
        self._random = random.Random(seed)

    async def connect(self) -> Client:
        """Open a socket at some node that takes one."""
        deadline = time.monotonic() + LONG
        while True:
            node = self._random.choice(self.cluster.nodes)
            view = self.views.get(self.session)
            attach = None
            if view is not None and view.epoch is not None:
                view.attaching.clear()
                attach = [{"session_id": self.session, "epoch": view.epoch, "seq": view.seq}]
            client = node.client(views=self.views, attach=attach)
            try:
                await client.open()
                await client.greet()
            except (OSError, InvalidHandshake, ConnectionClosed, TimeoutError):
                await client.abandon()
                assert time.monotonic() < deadline, "no node takes a client"
                await asyncio.sleep(0.05)
                continue
            return client

    async def run(self, prompts: int) -> None:
        self.client = await self.connect()
        for _ in range(prompts):
            command = fresh("c")
            while True:
                try:
                    ack = await self.client.call(
                        "prompt",
                        session_id=self.session,
                        text=steps(6, pause=0.05),
                        id=command,
                        on_busy="queue",
                        on_disconnect="continue",
                        timeout=LONG,
                    )
                    if ack["type"] == "error":
                        assert ack["retryable"], ack
                        self.refused.append(ack["code"])
                        await self._move()
                        continue
                    await self.client.over(ack, timeout=LONG)
                    self.acks.append(ack)
                    break
                except ConnectionClosed:
                    self.client = await self.connect()
            if any(frame["type"] == "goaway" for frame in self.client.frames):
                await self._move()

    async def _move(self) -> None:
        """A client opens its new socket before it leaves the old one."""
        assert self.client is not None
        old, self.client = self.client, await self.connect()
        with contextlib.suppress(ConnectionClosed):
            await old.close()
        await old.abandon()

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


async def restarted(node: Node) -> None:
    node.terminate()
    assert await node.exited(60) == 0, node.logs()
    await asyncio.to_thread(node.start)


async def test_no_frame_is_lost_while_three_nodes_are_restarted_one_by_one_under_load(cluster: Launch) -> None:
    three = cluster(3, drain=30)
    tabs = [Tab(three, seed) for seed in range(9)]
    load = [asyncio.create_task(tab.run(8)) for tab in tabs]
    try:
        for node in three.nodes:
            await restarted(node)
        await asyncio.gather(*load)
    finally:
        for task in load:
            task.cancel()
        await asyncio.gather(*load, return_exceptions=True)
    for tab in tabs:
        assert tab.client is not None
        node = next(node for node in three.nodes if node.port == tab.client.port)
        snapshot = await agree(node, tab.client, tab.session)
        log = await node.log(tab.session)
        check_log(log)
        for ack in tab.acks:
            assert of_run(log, ack["run_id"])[-1]["status"] == "completed", "the drain is longer than every run"
        started = [e["command_id"] for e in log if e["type"] == "run-start"]
        assert len(started) == len(set(started)) == 8, "each prompt ran once"
        assert snapshot["status"] == "idle"
        assert not tab.views[tab.session].gaps
        await tab.close()
    check_single_runner(three)
