"""(f) a crowd that comes back at once; (g) a long log replayed to one client."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients.raw import RawSocket
from tests.bench.measure import Contestant, Outcome, Target, in_turn, ratios
from tests.bench.process import gateway, module
from tests.bench.rivals.base import Stopwatch
from tests.bench.rivals.http import ResumableStream
from tests.bench.rivals.product import FINISH, connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tests.bench.plan import Plan

AT_ONCE = 50
"""Sessions that are filled at once."""


async def reconnect(plan: Plan) -> Outcome:
    """(f): the rival sends the very same messages, prepared beforehand, and has to find and build nothing."""
    with gateway(commands_per_s=10_000, retain_s=3600) as ours, tempfile.TemporaryDirectory() as folder:
        hellos = await fill(ours.port, plan.crowd, plan.missed)
        prepared = Path(folder) / "messages.jsonl"
        await record(ours.port, hellos, prepared)
        with module("tests.bench.servers.prepared", str(prepared)) as theirs:
            lines = [{"line": number} for number in range(len(hellos))]
            values = await in_turn(
                min(plan.rounds, 3),
                {
                    "gateway": Contestant(storm(ours.port, hellos), ours),
                    "prepared messages": Contestant(storm(theirs.port, lines), theirs),
                },
            )
    return Outcome(
        "f",
        f"{plan.crowd} clients back at once, {plan.missed} missed events each",
        "s",
        "lower",
        values,
        targets=[
            Target("to prepared messages", ratios(values["gateway"], values["prepared messages"]), 1.5, at_most=True)
        ],
    )


async def fill(port: int, sessions: int, events: int) -> list[dict[str, object]]:
    """Run so many sessions to their end; give the hello of a client of each that has missed all but the start."""
    hellos: list[dict[str, object]] = []
    text = json.dumps({"distinct": events})
    client = await connect(port)
    for start in range(0, sessions, AT_ONCE):
        names = [f"s{number}" for number in range(start, min(start + AT_ONCE, sessions))]
        for name in names:
            client.send({"type": "prompt", "session_id": name, "text": text})
        await client.until(FINISH, len(names))
        hellos += [{"session_id": name, "seq": 5, "role": "observer"} for name in names]
    client.close()
    client = await connect(port)
    for hello in hellos:
        client.send({"type": "attach", **hello, "seq": 2**40})
        attached = await client.until(b'"type":"attached"')
        hello["epoch"] = attached.split(b'"epoch":"')[1].split(b'"')[0].decode()
    client.close()
    return [{"type": "hello", "batch": True, "attach": [hello]} for hello in hellos]


async def record(port: int, hellos: Sequence[object], path: Path) -> None:
    """Write down what each returning client is sent."""
    with path.open("w") as file:
        for hello in hellos:
            client = await RawSocket.connect(port)
            heard: list[str] = []
            over = asyncio.get_running_loop().create_future()

            def hear(payload: bytes, heard: list[str] = heard, over: asyncio.Future[None] = over) -> None:
                heard.append(payload.decode())
                if FINISH in payload:
                    over.set_result(None)

            client.listen = hear
            client.send(hello)
            await over
            client.close()
            file.write(json.dumps(heard) + "\n")


def storm(port: int, asks: Sequence[object]) -> Callable[[], Awaitable[float]]:
    """Make a measurement: everybody connects and asks; seconds until everybody has all."""

    async def one(ask: object) -> RawSocket:
        client = await RawSocket.connect(port)
        client.send(ask)
        await client.until(FINISH)
        return client

    async def measure() -> float:
        watch = Stopwatch()
        clients = await asyncio.gather(*(one(ask) for ask in asks))
        seconds = watch.seconds
        for client in clients:
            client.close()
        return seconds

    return measure


async def long_log(plan: Plan) -> Outcome:
    """(g): the client counts, it does not parse."""
    rival = ResumableStream()
    lacks = rival.missing() if plan.rivals else "in the full run only"
    with gateway(retain_s=3600, retain_bytes=2**30) as ours, tempfile.TemporaryDirectory() as folder:
        hellos = await fill(ours.port, 1, plan.replayed)
        prepared = Path(folder) / "messages.jsonl"
        await record(ours.port, hellos, prepared)
        with module("tests.bench.servers.prepared", str(prepared)) as theirs:
            contestants = {
                "gateway": Contestant(_rate(plan, storm(ours.port, hellos)), ours),
                "prepared messages": Contestant(_rate(plan, storm(theirs.port, [{"line": 0}])), theirs),
            }
            if lacks is not None:
                values = await in_turn(plan.rounds, contestants)
            else:
                with rival.serve() as third:
                    id_, held = await rival.hold(third.port, plan.replayed)
                    resumed = _rate(plan, lambda: rival.resume(third.port, id_))
                    values = await in_turn(plan.rounds, contestants | {rival.name: Contestant(resumed, third)})
                    held.close()
    return Outcome(
        "g",
        f"replay of {plan.replayed:,} events",
        "events/s",
        "higher",
        values,
        targets=[Target("to a million events a second", [value / 1e6 for value in values["gateway"]], 1.0)],
        left_out={} if lacks is None else {rival.name: lacks},
    )


def _rate(plan: Plan, seconds: Callable[[], Awaitable[float]]) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        return plan.replayed / await seconds()

    return measure
