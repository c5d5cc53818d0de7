"""The scenarios. Each gives ratios of the product to its rival, measured in turn in one run."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench import servers
from tests.bench.rawclient import RawClient

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RUN_FINISH = b'"type":"run-finish"'


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a ratio, what it should be at least (or at most), and what was measured."""

    name: str
    ratio: float
    floor: float
    at_most: bool
    detail: str

    @property
    def met(self) -> bool:
        """The ratio is on the right side."""
        return self.ratio <= self.floor if self.at_most else self.ratio >= self.floor


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: counts and rounds."""

    events: int
    rounds: int
    connections: int
    replayed: int
    aborts: int


FULL = Size(events=100_000, rounds=5, connections=1000, replayed=100_000, aborts=200)
QUICK = Size(events=20_000, rounds=2, connections=200, replayed=20_000, aborts=40)


async def _bare_rate(port: int, sessions: int, events: int) -> float:
    client = await RawClient.connect(port)
    order = json.dumps({"events": events // sessions})
    started = time.perf_counter()
    client.send({"text": order, "sessions": sessions})
    await client.until(RUN_FINISH, sessions)
    elapsed = time.perf_counter() - started
    await client.close()
    return events / elapsed


async def _gateway_rate(port: int, sessions: int, events: int, *, batch: bool) -> float:
    client = await RawClient.connect(port)
    client.send({"type": "hello", "batch": batch})
    await client.until(b'"welcome"')
    order = json.dumps({"events": events // sessions})
    started = time.perf_counter()
    for _ in range(sessions):
        client.send({"type": "prompt", "text": order})
    await client.until(RUN_FINISH, sessions)
    elapsed = time.perf_counter() - started
    await client.close()
    return events / elapsed


async def _in_turn(rounds: int, **rivals: Callable[[], Awaitable[float]]) -> dict[str, float]:
    """Measure each in turn, several rounds; give medians."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for number in range(rounds + 1):
        for name, measure in rivals.items():
            value = await measure()
            if number:  # the first round warms up
                taken[name].append(value)
    return {name: statistics.median(values) for name, values in taken.items()}


async def throughput(size: Size) -> list[Row]:
    """One session flat out, and fifty sessions on one connection, against the bare loop."""
    with servers.bare() as (bare, _), servers.gateway(commands_per_s="1000") as (port, _):
        rates = await _in_turn(
            size.rounds,
            bare=lambda: _bare_rate(bare, 1, size.events),
            batch=lambda: _gateway_rate(port, 1, size.events, batch=True),
            plain=lambda: _gateway_rate(port, 1, size.events, batch=False),
            bare50=lambda: _bare_rate(bare, 50, 2 * size.events),
            batch50=lambda: _gateway_rate(port, 50, 2 * size.events, batch=True),
        )
    one = f"{rates['batch']:,.0f} of {rates['bare']:,.0f} engine events/s"
    plain = f"{rates['plain']:,.0f} of {rates['bare']:,.0f} engine events/s"
    fifty = f"{rates['batch50']:,.0f} of {rates['bare50']:,.0f} engine events/s"
    return [
        Row("one session, batch, to the bare loop", rates["batch"] / rates["bare"], 1.0, False, one),
        Row("one session, no batch, to the bare loop", rates["plain"] / rates["bare"], 0.65, False, plain),
        Row("50 sessions on one connection, to the bare loop", rates["batch50"] / rates["bare50"], 1.5, False, fifty),
    ]


async def replay(size: Size) -> list[Row]:
    """Missed events replayed to a client that comes back."""
    with servers.gateway("tests.bench.engines:distinct") as (port, _):
        client = await RawClient.connect(port)
        client.send({"type": "hello", "batch": True})
        client.send({"type": "prompt", "session_id": "log", "text": json.dumps({"events": size.replayed})})
        attached = await client.until(b'"type":"attached"')
        epoch = attached.split(b'"epoch":"')[1].split(b'"')[0].decode()
        await client.until(RUN_FINISH)
        await client.close()
        rates = []
        for _ in range(size.rounds):
            client = await RawClient.connect(port)
            started = time.perf_counter()
            attach = [{"session_id": "log", "epoch": epoch, "seq": 0, "role": "observer"}]
            client.send({"type": "hello", "batch": True, "attach": attach})
            last = await client.until(RUN_FINISH)
            elapsed = time.perf_counter() - started
            head = int(last.rsplit(b'"seq":', 1)[1].split(b",")[0])
            rates.append(head / elapsed)
            await client.close()
    rate = statistics.median(rates)
    return [Row("replay, to 500,000 events a second", rate / 500_000, 1.0, False, f"{rate:,.0f} events/s")]


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


async def abort_latency(size: Size) -> list[Row]:
    """Abort frame to ``run-finish`` at the client, on a server that streams 50 other sessions."""
    with servers.gateway(commands_per_s="10000") as (port, _):
        crowd = await RawClient.connect(port)
        crowd.send({"type": "hello", "batch": True})
        for _ in range(50):
            crowd.send({"type": "prompt", "text": json.dumps({"pace": 0.02})})
        reading = asyncio.create_task(crowd.until(b"never"))
        client = await RawClient.connect(port)
        client.send({"type": "hello", "batch": True})
        await client.until(b'"welcome"')
        pings, commits, aborts = [], [], []
        for number in range(size.aborts):
            started = time.perf_counter()
            client.send({"type": "ping", "id": f"p{number}"})
            await client.until(b'"pong","id"')
            pings.append(time.perf_counter() - started)
            started = time.perf_counter()
            client.send({"type": "prompt", "session_id": "a", "text": json.dumps({"pace": 0.001})})
            await client.until(b'"command":"prompt"')  # the ack of a prompt comes with its commit
            commits.append(time.perf_counter() - started)
            await asyncio.sleep(0.01)
            started = time.perf_counter()
            client.send({"type": "abort", "session_id": "a"})
            await client.until(RUN_FINISH)
            aborts.append(time.perf_counter() - started)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await client.close()
        await crowd.close()
    bound = 5 * _p99(pings) + 2 * _p99(commits)
    detail = (
        f"p99 {_p99(aborts) * 1000:.2f} ms; ping p99 {_p99(pings) * 1000:.2f}, commit p99 {_p99(commits) * 1000:.2f}"
    )
    return [Row("abort to run-finish, p99, to 5 pings + 2 commits", _p99(aborts) / bound, 1.0, True, detail)]


async def idle_memory(size: Size) -> list[Row]:
    """What an idle connection costs."""

    async def cost(port: int, pid: int, *, hello: bool) -> float:
        async def open_one() -> RawClient:
            client = await RawClient.connect(port)
            if hello:
                client.send({"type": "hello"})
                await client.until(b'"welcome"')
            return client

        warm = [await open_one() for _ in range(50)]
        before = servers.resident_bytes(pid)
        clients = [await open_one() for _ in range(size.connections)]
        after = servers.resident_bytes(pid)
        for client in warm + clients:
            await client.close()
        return (after - before) / size.connections

    with servers.bare() as (port, pid):
        bare = await cost(port, pid, hello=False)
    with servers.gateway() as (port, pid):
        ours = await cost(port, pid, hello=True)
    detail = f"{ours / 1024:.1f} kB of {bare / 1024:.1f} kB"
    return [Row("memory of an idle connection, to bare Starlette", ours / bare, 1.3, True, detail)]


SCENARIOS: tuple[Callable[[Size], Awaitable[list[Row]]], ...] = (throughput, replay, abort_latency, idle_memory)
