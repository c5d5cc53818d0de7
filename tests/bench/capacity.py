"""``python -m tests.bench.capacity``: what a node, Redis and PostgreSQL carry here, and what follows from that.

Prints the tables of ``gateway/deploy/CAPACITY.md``: the first is measured, the second computed from it for up to a
million connections. Asserts nothing.
"""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.stores.pg_address import Address
from gateway.stores.shared import SharedPostgresStore
from tests.bench import stores
from tests.bench.cluster import node
from tests.bench.rivals.product import connect
from tests.bench.scenarios.latency import OURS, PACE, Crowd, no_collection
from tests.cluster.support import RedisServer
from tests.support_postgres import Postgres

if TYPE_CHECKING:
    from tests.bench.process import Server

CROWD = 300
IDLE = 2000
SECONDS = 5.0
LOAD = 0.6
"""How full a core, a Redis or a PostgreSQL may be planned: the rest is for bursts, failover and deploys."""

NODE_BYTES = 512 * 1024 * 1024
"""What connections may take of one node's memory."""

ACTIVE = 0.1
"""Share of the connections whose agent is speaking: people read and think most of the time."""

REDIS_BYTES = 400
"""A published chunk of one token, for one node that follows the session."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one of each carries."""

    bytes_per_connection: float
    cpu_per_token: float
    """Seconds of a core, from the engine's yield to the socket, PostgreSQL's and Redis's client included."""
    rows_per_s: float
    """Chunks that one writer commits to PostgreSQL in groups of a hundred sessions, fenced, with fsync."""
    publishes_per_s: float


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _node(server: Server) -> tuple[float, float]:
    before = server.private_bytes()
    idle = [await connect(server.port) for _ in range(IDLE)]
    await asyncio.sleep(1)
    each = (server.private_bytes() - before) / IDLE
    for client in idle:
        client.close()
    crowd = Crowd()
    with no_collection():
        await crowd.gather(CROWD, OURS, server.port)
        await asyncio.sleep(1)
        crowd.listening = True
        used = _cpu_seconds(server.pid)
        await asyncio.sleep(SECONDS)
        used = _cpu_seconds(server.pid) - used
        crowd.listening = False
        crowd.leave()
    return each, used / len(crowd.samples)


def _publishes(redis: RedisServer) -> float:
    command = ["redis-benchmark", "-p", str(redis.port), "-n", "200000", "-c", "50", "-P", "16", "--csv"]
    port = str(redis.port)
    with subprocess.Popen(["redis-cli", "-p", port, "subscribe", "a-channel"], stdout=subprocess.DEVNULL) as subscriber:
        said = subprocess.run(
            [*command, "publish", "a-channel", "x" * REDIS_BYTES], capture_output=True, text=True, check=True
        )
        subscriber.kill()
    return float(said.stdout.splitlines()[-1].split('","')[1].strip('"'))


async def measure() -> Measured:
    """Measure one of each, one after the other."""
    with ExitStack() as stack:
        postgres = Postgres("fsync=on").create()
        stack.callback(postgres.destroy)
        redis = RedisServer().start()
        stack.callback(redis.stop)
        with node(postgres, redis) as server:
            each, cpu = await _node(server)
        rates = await stores.measure(SharedPostgresStore(Address(postgres.database())), 3.0)
        sessions, _ = stores.SHAPES[1]
        return Measured(each, cpu, rates[1] * sessions, _publishes(redis))


def plan(measured: Measured, connections: int) -> dict[str, int]:
    """Work out what so many connections need, if :data:`ACTIVE` of them stream at 25 tokens a second."""
    tokens = connections * ACTIVE / PACE
    by_cpu = tokens * measured.cpu_per_token / LOAD
    by_memory = connections * measured.bytes_per_connection / NODE_BYTES
    nodes = max(2, math.ceil(by_cpu), math.ceil(by_memory))
    return {
        "connections": connections,
        "streams": round(connections * ACTIVE),
        "tokens/s": round(tokens),
        "nodes": nodes,
        "PostgreSQL": max(1, math.ceil(tokens / (measured.rows_per_s * LOAD))),
        "Redis": max(1, math.ceil(tokens / (measured.publishes_per_s * LOAD))),
    }


async def main() -> None:
    """Print both tables."""
    found = await measure()
    print("| measured here | |\n|---|---|")
    print(f"| memory of an idle connection | {found.bytes_per_connection / 1024:.1f} KiB |")
    print(f"| time of a core per token of a stream at 25 tokens/s | {found.cpu_per_token * 1e6:.0f} µs |")
    print(f"| chunks per second that one node commits to PostgreSQL | {found.rows_per_s:,.0f} |")
    print(f"| chunks per second that one Redis publishes | {found.publishes_per_s:,.0f} |\n")
    rows = [plan(found, connections) for connections in (1_000, 10_000, 100_000, 1_000_000)]
    print("| " + " | ".join(rows[0]) + " |\n|" + "---:|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(f"{value:,}" for value in row.values()) + " |")


if __name__ == "__main__":
    asyncio.run(main())
