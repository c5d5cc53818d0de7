"""(h) what an idle connection and an attached idle session hold in memory; (i) from start to first token."""

from __future__ import annotations

import asyncio
import resource
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients.raw import RawSocket, SocketIO
from tests.bench.database import EPOCH, HEAD, database_with, name_of
from tests.bench.measure import Contestant, Outcome, Target, in_turn, ratios
from tests.bench.process import Server, gateway
from tests.bench.rivals.base import Rival, Stopwatch
from tests.bench.rivals.loop import Loop
from tests.bench.rivals.product import Product, connect
from tests.bench.rivals.sockets import PythonSocketIO
from tests.bench.scenarios.throughput import OWN_ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.bench.plan import Plan

PER_SOURCE = 20_000
"""Connections from one loopback address: it has some 28,000 ports."""

SESSIONS_EACH = 1000
"""Sessions attached on one connection: as many as the gateway allows by default."""

REST_S = 0.5
"""How long a session has to be at rest until it leaves memory; by default the gateway gives it a minute."""

LEAVING_S = 2
"""How long the sessions of one connection get to leave before the next attaches as many: it is what is left of them
that is measured, not what the memory of a crowd leaves behind in Python's allocator."""

IN_FLIGHT = 200
"""Attaches sent before the first is answered; the gateway lets 256 wait."""


def raise_file_limit(files: int) -> None:
    """Allow this process and those it starts so many open files. Raises OSError where the machine does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= files:
        return
    if hard != resource.RLIM_INFINITY and hard < files:
        raise OSError(f"{files} open files are needed and the machine allows {hard}: raise ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


async def memory(plan: Plan) -> Outcome:
    """(h): private memory of the server's process after, less before, by their number."""
    raise_file_limit(plan.idle + 500)
    values = await in_turn(
        1,
        {
            "gateway": Contestant(_per_connection(plan, Product(), _open_product)),
            "Starlette": Contestant(_per_connection(plan, Loop(), _open_loop)),
            "python-socketio": Contestant(_per_connection(plan, PythonSocketIO(), _open_socketio)),
        },
        warm_up=False,
    )
    # What little they hold comes in steps of a MiB, the size of Python's arenas: so more than once.
    values |= await in_turn(
        plan.rounds, {"gateway, attached session": Contestant(lambda: _per_session(plan))}, warm_up=False
    )
    sessions = [value / 1024 for value in values["gateway, attached session"]]
    return Outcome(
        "h",
        f"memory of {plan.idle:,} idle connections, and of as many attached idle sessions",
        "bytes each",
        "lower",
        values,
        targets=[
            Target(
                "a connection, to bare Starlette", ratios(values["gateway"], values["Starlette"]), 1.15, at_most=True
            ),
            Target("an attached session, to 1 kB", sessions, 1.0, at_most=True),
        ],
        notes=[
            f"attached sessions: {SESSIONS_EACH:,} on a connection, attached {LEAVING_S} s ago or longer, with"
            f" GATEWAY_EVICT_S={REST_S}"
        ],
    )


async def _open_product(port: int, source: str) -> RawSocket:
    return await connect(port, source=source)


async def _open_loop(port: int, source: str) -> RawSocket:
    return await RawSocket.connect(port, source=source)


async def _open_socketio(port: int, source: str) -> RawSocket:
    return await SocketIO.open(port)


def _per_connection(
    plan: Plan, rival: Rival, open_one: Callable[[int, str], Awaitable[RawSocket]]
) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        with rival.serve() as server:
            clients = [await open_one(server.port, "127.0.0.2") for _ in range(50)]
            before = await _settled(server)
            for number in range(plan.idle):
                clients.append(await open_one(server.port, f"127.0.0.{3 + number // PER_SOURCE}"))
            after = await _settled(server)
            for client in clients:
                client.close()
            return (after - before) / plan.idle

    return measure


async def _per_session(plan: Plan) -> float:
    """Attach stored sessions, let them leave memory, and look at what is left while all are attached."""
    with tempfile.TemporaryDirectory() as folder:
        store = database_with(plan.idle + SESSIONS_EACH, Path(folder))
        with gateway(store=store, evict_s=REST_S, commands_per_s=100_000) as server:
            clients = [await _attached(server.port, plan.idle, SESSIONS_EACH)]  # what is made once, is made now
            await asyncio.sleep(LEAVING_S)
            before = await _settled(server)
            for first in range(0, plan.idle, SESSIONS_EACH):
                clients.append(await _attached(server.port, first, min(SESSIONS_EACH, plan.idle - first)))
                await asyncio.sleep(LEAVING_S)
            after = await _settled(server)
            for client in clients:
                client.close()
            return (after - before) / plan.idle


async def _attached(port: int, first: int, count: int) -> RawSocket:
    client = await connect(port)
    for start in range(first, first + count, IN_FLIGHT):
        some = range(start, min(start + IN_FLIGHT, first + count))
        for number in some:
            client.send({"type": "attach", "session_id": name_of(number), "epoch": EPOCH, "seq": HEAD})
        await client.until(b'"type":"attached"', len(some))
    return client


async def _settled(server: Server) -> int:
    """Read the memory once it no longer changes."""
    last = server.private_bytes()
    for _ in range(20):
        await asyncio.sleep(0.2)
        now = server.private_bytes()
        if abs(now - last) < 64 * 1024:
            return now
        last = now
    return last


async def start_up(plan: Plan) -> Outcome:
    """(i): from starting the process, with nothing on disk yet, to the end of a run of one token."""
    everybody: list[Rival] = [Product(), Loop(), PythonSocketIO()]
    left_out: dict[str, str] = {}
    for rival, _ in OWN_ENVIRONMENT:
        lacks = rival.missing() if plan.rivals else "in the full run only"
        if lacks is None:
            everybody.append(rival)
        else:
            left_out[rival.name] = lacks

    def seconds(rival: Rival) -> Callable[[], Awaitable[float]]:
        async def measure() -> float:
            watch = Stopwatch()
            with rival.serve() as server:
                await rival.flood(server.port, 1)
                return watch.seconds

        return measure

    contestants = {rival.name: Contestant(seconds(rival)) for rival in everybody}
    values = await in_turn(min(plan.rounds, 2), contestants, warm_up=False)
    return Outcome("i", "start to first token", "s", "lower", values, left_out=left_out)
