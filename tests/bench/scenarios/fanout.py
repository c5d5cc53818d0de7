"""(d) one session to many observers."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from tests.bench.clients.raw import RawSocket, SocketIO
from tests.bench.measure import Contestant, Outcome, Target, in_turn, ratios
from tests.bench.rivals.base import Stopwatch
from tests.bench.rivals.loop import Loop
from tests.bench.rivals.product import Product, connect
from tests.bench.rivals.sockets import PythonSocketIO

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.bench.plan import Plan


class Audience:
    """Clients that each wait for the end of the same run."""

    def __init__(self, clients: list[RawSocket]) -> None:
        self._clients = clients
        for client in clients:
            client.listen = self._hear

    def _hear(self, payload: bytes) -> None:
        if b'"run-finish"' in payload:
            self._waiting -= 1
            if not self._waiting:
                self._done.set_result(None)

    async def seconds(self, start: Callable[[], None]) -> float:
        """Start a run and wait until everybody has seen its end."""
        self._waiting = len(self._clients)
        self._done = asyncio.get_running_loop().create_future()
        watch = Stopwatch()
        start()
        await self._done
        return watch.seconds


async def fan_out(plan: Plan) -> Outcome:
    """(d): what is counted is engine events times observers."""
    # Fewer where each takes long: a round should last seconds.
    some, few = plan.broadcast // 4, plan.broadcast // 10
    with Product().serve() as ours, Loop().serve() as theirs, PythonSocketIO().serve() as third:
        owner = await connect(ours.port)
        owner.send({"type": "prompt", "session_id": "shared", "text": json.dumps({"events": 1})})
        await owner.until(b'"run-finish"')
        watching = Audience([await _observer(ours.port) for _ in range(plan.observers)])
        viewing = Audience([await _viewer(theirs.port) for _ in range(plan.observers)])
        joined = Audience([await _joined(third.port) for _ in range(plan.observers)])
        loop, sio = await RawSocket.connect(theirs.port), await SocketIO.open(third.port)

        def prompt(order: dict[str, int]) -> Callable[[], None]:
            return lambda: owner.send({"type": "prompt", "session_id": "shared", "text": json.dumps(order)})

        def broadcast(order: dict[str, int]) -> Callable[[], None]:
            return lambda: loop.send({"text": json.dumps(order), "all": True})

        def emit(order: dict[str, int]) -> Callable[[], None]:
            return lambda: sio.emit("start", {"text": json.dumps(order), "all": True})

        async def rate(audience: Audience, start: Callable[[], None], events: int) -> float:
            return events * plan.observers / await audience.seconds(start)

        # None is paused: a server that stands still for longer than its ping timeout drops everybody.
        values = await in_turn(
            min(plan.rounds, 3),
            {
                "gateway": Contestant(lambda: rate(watching, prompt({"events": plan.broadcast}), plan.broadcast)),
                "Starlette broadcast": Contestant(lambda: rate(viewing, broadcast({"events": some}), some)),
                "gateway, stamped": Contestant(
                    lambda: rate(watching, prompt({"distinct": plan.broadcast}), plan.broadcast)
                ),
                "Starlette broadcast, stamped": Contestant(lambda: rate(viewing, broadcast({"distinct": some}), some)),
                "python-socketio room": Contestant(lambda: rate(joined, emit({"events": few}), few)),
            },
        )
    return Outcome(
        "d",
        f"one session to {plan.observers} observers",
        "deliveries/s",
        "higher",
        values,
        targets=[
            Target("to a bare broadcast, engine events", ratios(values["gateway"], values["Starlette broadcast"]), 3.0),
            Target(
                "to a bare broadcast, stamped events",
                ratios(values["gateway, stamped"], values["Starlette broadcast, stamped"]),
                3.0,
            ),
        ],
    )


async def _observer(port: int) -> RawSocket:
    client = await connect(port)
    client.send({"type": "attach", "session_id": "shared", "role": "observer"})
    await client.until(b'"type":"snapshot"')
    return client


async def _viewer(port: int) -> RawSocket:
    client = await RawSocket.connect(port)
    client.send({"join": True})
    await client.until(b'"joined"')
    return client


async def _joined(port: int) -> RawSocket:
    client = await SocketIO.open(port)
    client.emit("join")
    await client.until(b'"joined"')
    return client
