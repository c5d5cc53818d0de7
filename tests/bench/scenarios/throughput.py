"""(a) one session flat out; (b) fifty sessions on one connection."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from tests.bench.measure import Contestant, Outcome, Target, in_turn, ratios
from tests.bench.rivals.http import LangGraph, ResumableStream
from tests.bench.rivals.loop import Limit, Loop
from tests.bench.rivals.product import Product
from tests.bench.rivals.sockets import Chainlit, PythonSocketIO

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.bench.plan import Plan
    from tests.bench.process import Server
    from tests.bench.rivals.base import Rival

OWN_ENVIRONMENT: tuple[tuple[Rival, float], ...] = ((Chainlit(), 20), (LangGraph(), 50), (ResumableStream(), 4))
"""By what each one's events are divided: a turn should last about a second, be it a fast one or a slow one."""


def rate_of(
    flood: Callable[..., Awaitable[float]], port: int, events: int, sessions: int = 1, **how: Any
) -> Callable[[], Awaitable[float]]:
    """Make a measurement of a flood: engine events per second."""

    async def measure() -> float:
        return events / await flood(port, events, sessions, **how)

    return measure


async def one_session(plan: Plan) -> Outcome:
    """(a): an engine that never waits, one client."""
    everybody: list[tuple[Rival, float]] = [(Product(), 0.25), (Product("gateway, no batch", batch=False), 0.25)]
    everybody += [(Loop(), 1), (Limit(), 0.25), (PythonSocketIO(), 5)]
    left_out: dict[str, str] = {}
    for rival, fewer in OWN_ENVIRONMENT:
        lacks = rival.missing() if plan.rivals else "in the full run only"
        if lacks is None:
            everybody.append((rival, fewer))
        else:
            left_out[rival.name] = lacks
    with ExitStack() as stack:
        contestants: dict[str, Contestant] = {}
        for rival, fewer in everybody:
            server: Server = stack.enter_context(rival.serve())
            contestants[rival.name] = Contestant(rate_of(rival.flood, server.port, int(plan.events / fewer)), server)
        values = await in_turn(plan.rounds, contestants)
    ours = values["gateway"]
    return Outcome(
        "a",
        "one session flat out",
        "engine events/s",
        "higher",
        values,
        targets=[
            Target("to the Starlette loop", ratios(ours, values["Starlette loop"]), 2.0),
            Target("to python-socketio", ratios(ours, values["python-socketio"]), 6.0),
        ],
        left_out=left_out,
    )


async def fifty_sessions(plan: Plan) -> Outcome:
    """(b): events that may be joined (text), and events that may not (tool progress), each of which is stamped."""
    product, loop, sio = Product(), Loop(), PythonSocketIO()
    with product.serve() as ours, loop.serve() as theirs, sio.serve() as third:
        events = plan.events
        values = await in_turn(
            plan.rounds,
            {
                "gateway": Contestant(rate_of(product.flood, ours.port, 8 * events, 50), ours),
                "Starlette loop": Contestant(rate_of(loop.flood, theirs.port, events, 50), theirs),
                "gateway, stamped": Contestant(rate_of(product.flood, ours.port, events, 50, distinct=True), ours),
                "Starlette loop, stamped": Contestant(
                    rate_of(loop.flood, theirs.port, events, 50, distinct=True), theirs
                ),
                "python-socketio": Contestant(rate_of(sio.flood, third.port, events // 5, 50), third),
            },
        )
    return Outcome(
        "b",
        "50 sessions on one connection",
        "engine events/s",
        "higher",
        values,
        targets=[
            Target("to the loop, engine events", ratios(values["gateway"], values["Starlette loop"]), 4.0),
            Target(
                "to the loop, stamped events",
                ratios(values["gateway, stamped"], values["Starlette loop, stamped"]),
                2.5,
            ),
        ],
    )
