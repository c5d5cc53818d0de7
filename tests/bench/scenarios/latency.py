"""(c) delivery latency of a thousand streams; (e) how soon an abort is done, idle and under that load."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.bench.clients.raw import RawSocket, SocketIO
from tests.bench.measure import PATIENCE_S, Contestant, Outcome, Target, in_turn, percentile, ratios
from tests.bench.process import gateway
from tests.bench.rivals.loop import Loop
from tests.bench.rivals.product import FINISH, Product, Untuned, connect
from tests.bench.rivals.sockets import PythonSocketIO

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.bench.plan import Plan
    from tests.bench.rivals.base import Rival

PACE = 0.04
MOST_S = 100
"""A run that is forgotten ends by itself."""

STAMP = re.compile(rb"t(\d{12,}) ")


Client = TypeVar("Client", bound=RawSocket)


@dataclass(frozen=True, slots=True)
class Side(Generic[Client]):
    """How a rival's clients connect and start a run; nobody waits for an answer of a server that is out of breath."""

    rival: Rival
    connect: Callable[[int], Awaitable[Client]]
    start: Callable[[Client, str], None]


OURS = Side(Product(), connect, lambda client, text: client.send({"type": "prompt", "text": text}))
LOOP = Side(Loop(), RawSocket.connect, lambda client, text: client.send({"text": text}))
SOCKETIO = Side(PythonSocketIO(), SocketIO.open, lambda client, text: client.emit("start", {"text": text}))
UNTUNED = Side(Untuned(), connect, OURS.start)


class Crowd:
    """Clients that each follow a paced run; every token says when it was due."""

    def __init__(self) -> None:
        self.clients: list[RawSocket] = []
        self.samples: list[float] = []
        """Milliseconds from when a token was due to when it was here."""
        self.listening = False

    def hear(self, payload: bytes) -> None:
        """Note how late each token of a message is."""
        if self.listening:
            now = time.perf_counter_ns()
            self.samples.extend((now - int(stamp)) / 1e6 for stamp in STAMP.findall(payload))

    async def gather(self, count: int, side: Side[Any], port: int) -> None:
        """Connect clients, then start their runs over a second, so that their beats are spread as strangers' are."""
        for _ in range(count):
            client = await side.connect(port)
            client.listen = self.hear
            self.clients.append(client)
        order = json.dumps({"pace": PACE, "seconds": MOST_S})
        for number, client in enumerate(self.clients):
            side.start(client, order)
            if number % 10 == 9:
                await asyncio.sleep(10 / count)

    def leave(self) -> None:
        """Hang up."""
        for client in self.clients:
            client.close()


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep this process's garbage collector out of the measurement."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


async def delivery(plan: Plan) -> Outcome:
    """(c): so many connections, each with a session of 25 tokens a second. Each turn has a fresh server."""
    curves: dict[str, list[float]] = {}

    def p99_of(side: Side[Any], crowd_size: int, name: str) -> Callable[[], Awaitable[float]]:
        async def measure() -> float:
            with side.rival.serve() as server, no_collection():
                crowd = Crowd()
                await crowd.gather(crowd_size, side, server.port)
                await asyncio.sleep(0.5)
                crowd.listening = True
                await asyncio.sleep(plan.paced_s)
                crowd.leave()
            curves.setdefault(name, []).extend(crowd.samples)
            return percentile(crowd.samples, 0.99)

        return measure

    values = await in_turn(
        min(plan.rounds, 2),
        {
            name: Contestant(p99_of(side, plan.crowd // parts, name))
            for side in (OURS, LOOP, UNTUNED, SOCKETIO)
            for parts, name in ((1, side.rival.name), (2, f"{side.rival.name}, half the load"))
        },
        warm_up=False,
    )
    notes = [f"{name}: {_percentiles(curve)}" for name, curve in curves.items()]
    targets = [
        Target(
            f"p99, to the Starlette loop{load}",
            ratios(values[f"gateway{load}"], values[f"Starlette loop{load}"]),
            1.5,
            at_most=True,
        )
        for load in ("", ", half the load")
    ]
    title = f"{plan.crowd} connections at 25 tokens/s each, delivery"
    return Outcome("c", title, "ms, p99", "lower", values, targets=targets, curves=curves, notes=notes)


def _percentiles(samples: list[float]) -> str:
    shown = (f"p{100 * share:g} {percentile(samples, share):.2f}" for share in (0.5, 0.99, 0.999))
    return f"{', '.join(shown)} ms of {len(samples):,} tokens"


async def abort(plan: Plan) -> Outcome:
    """(e): from an abort's frame to its ``run-finish`` at the client, beside pings and commits on the same server."""
    values: dict[str, list[float]] = {}
    curves: dict[str, list[float]] = {}
    targets = []
    for name, crowd_size in (("gateway", 0), ("gateway, under the load of (c)", plan.crowd)):
        bounds = []
        taken: list[float] = []
        for _ in range(min(plan.rounds, 2)):
            async with _loaded(crowd_size) as port:
                async with asyncio.timeout(PATIENCE_S):
                    pings, commits, aborts = await _aborts(port, plan.aborts // 5 if crowd_size else plan.aborts)
            taken.append(percentile(aborts, 0.99))
            bounds.append(5 * percentile(pings, 0.99) + 2 * percentile(commits, 0.99))
            curves.setdefault(f"{name}: abort", []).extend(aborts)
            curves.setdefault(f"{name}: ping", []).extend(pings)
            curves.setdefault(f"{name}: commit", []).extend(commits)
        values[name] = taken
        where = "under (c)" if crowd_size else "idle"
        targets.append(Target(f"p99 {where}, to 5 pings + 2 commits", ratios(taken, bounds), 1.0, at_most=True))
    notes = [f"{name}: {_percentiles(curve).replace('tokens', 'times')}" for name, curve in curves.items()]
    return Outcome("e", "abort to run-finish", "ms, p99", "lower", values, targets=targets, curves=curves, notes=notes)


@asynccontextmanager
async def _loaded(crowd_size: int) -> AsyncIterator[int]:
    with gateway(commands_per_s=10_000) as server, no_collection():
        crowd = Crowd()
        await crowd.gather(crowd_size, OURS, server.port)
        try:
            yield server.port
        finally:
            crowd.leave()


async def _aborts(port: int, count: int) -> tuple[list[float], list[float], list[float]]:
    """Give milliseconds of pings, of commits (a prompt's ack comes with one) and of aborts."""
    client = await connect(port)
    pings: list[float] = []
    commits: list[float] = []
    aborts: list[float] = []

    async def timed(frame: dict[str, object], needle: bytes, into: list[float]) -> None:
        start = time.perf_counter()
        client.send(frame)
        await client.until(needle)
        into.append((time.perf_counter() - start) * 1000)

    text = json.dumps({"wait": 1})
    for number in range(count):
        await timed({"type": "ping", "id": f"p{number}"}, b'"type":"pong","id"', pings)
        await timed({"type": "prompt", "session_id": "a", "text": text}, b'"command":"prompt"', commits)
        await client.until(b'"text-delta"')
        await timed({"type": "abort", "session_id": "a"}, FINISH, aborts)
    client.close()
    return pings, commits, aborts
