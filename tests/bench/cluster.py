"""``python -m tests.bench.cluster``: what a second node brings, and what it costs to look on from another one.

Two nodes on one PostgreSQL and one Redis, each node on a core of its own, everything else where there is room: on a
machine of two cores the second node shares its core with the clients, the database and Redis. Asserts nothing.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from uuid import uuid4

from tests.bench.measure import Contestant, in_turn, ratios
from tests.bench.process import CLIENT_CORE, free_port, pin, running
from tests.bench.rivals.base import Stopwatch
from tests.bench.rivals.product import FINISH, connect
from tests.cluster.support import RedisServer
from tests.support_postgres import Postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.process import Server

SESSIONS = 50
EVENTS = 200_000
ROUNDS = 5


@contextmanager
def node(postgres: Postgres, redis: RedisServer, address: str | None = None) -> Iterator[Server]:
    """Start a node; ``address`` is the database of the nodes before it."""
    port = free_port()
    command = [sys.executable, "-m", "gateway", "serve", "tests.bench.servers.engines:flat_out", "--port", str(port)]
    command += ["--store", address or postgres.database(), "--bus", redis.url, "--log-level", "warning"]
    with running(command, port, {"GATEWAY_DRAIN": "0", "GATEWAY_COMMANDS_PER_S": "10000"}) as server:
        yield server


async def _flood(ports: list[int], *, watched_at: int | None = None) -> float:
    """Give engine events a second of :data:`SESSIONS` sessions, spread over nodes."""
    clients = [await connect(port) for port in ports]
    looking = await connect(watched_at) if watched_at is not None else None
    each = SESSIONS // len(ports)
    text = json.dumps({"events": EVENTS // SESSIONS})
    names = [str(uuid4()) for _ in range(SESSIONS)]
    parts = [names[number * each : (number + 1) * each] for number in range(len(ports))]
    for client, mine in zip(clients, parts, strict=True):  # so that each node owns its sessions before it counts
        for name in mine:
            client.send({"type": "prompt", "session_id": name, "text": json.dumps({"events": 1})})
        await client.until(FINISH, each)
    if looking is not None:
        for name in names:
            looking.send({"type": "attach", "session_id": name, "role": "observer"})
        await looking.until(b'"type":"snapshot"', SESSIONS)
    watch = Stopwatch()
    for client, mine in zip(clients, parts, strict=True):
        for name in mine:
            client.send({"type": "prompt", "session_id": name, "text": text})
    await asyncio.gather(*(client.until(FINISH, each) for client in clients))
    if looking is not None:
        await looking.until(FINISH, SESSIONS)
        looking.close()
    seconds = watch.seconds
    for client in clients:
        client.close()
    return EVENTS / seconds


async def main() -> None:
    """Print the ratios."""
    pin(CLIENT_CORE)
    with ExitStack() as stack:
        postgres = Postgres("fsync=on").create()
        stack.callback(postgres.destroy)
        redis = RedisServer().start()
        stack.callback(redis.stop)
        address = postgres.database()
        one = stack.enter_context(node(postgres, redis, address))
        two = stack.enter_context(node(postgres, redis, address))
        pin(CLIENT_CORE, two.pid)
        values = await in_turn(
            ROUNDS,
            {
                "one node": Contestant(lambda: _flood([one.port])),
                "two nodes": Contestant(lambda: _flood([one.port, two.port])),
                "one node, watched from the other": Contestant(lambda: _flood([one.port], watched_at=two.port)),
            },
        )
    base = values["one node"]
    for name, rates in values.items():
        found = ratios(rates, base)
        print(
            f"{statistics.median(found):6.2f}  ({min(found):.2f} to {max(found):.2f})  {name}: "
            f"{statistics.median(rates):,.0f} engine events/s"
        )


if __name__ == "__main__":
    asyncio.run(main())
