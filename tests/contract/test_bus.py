"""What a bus promises, whichever it is: in order, at most once; it says who listens to nothing, and when it is away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.cluster.local import Exchange, LocalBus
from gateway.cluster.redis import RedisBus
from tests.cluster.support import Line, RedisServer, eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from gateway.cluster.base import Bus


class Ear:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.states: list[str] = []

    def received(self, channel: str, data: bytes) -> None:
        if data == b"poison":
            raise RuntimeError("nobody can use this")
        self.heard.append((channel, data))

    def restored(self) -> None:
        self.states.append("restored")

    def lost(self) -> None:
        self.states.append("lost")


class Bench:
    """Two buses, and a way to part the first from the second."""

    def __init__(self, kind: str, redis: RedisServer) -> None:
        self.line = Line(redis.port) if kind == "redis" else None
        self.buses: list[Any] = []
        if self.line is not None:
            self.buses = [RedisBus(f"redis://127.0.0.1:{self.line.port}"), RedisBus(redis.url)]
        else:
            exchange = Exchange()
            self.buses = [LocalBus(exchange), LocalBus(exchange)]
        self.ears = [Ear(), Ear()]

    def part(self) -> None:
        if self.line is not None:
            self.line.cut()
        else:
            self.buses[0].cut()

    def mend(self) -> None:
        if self.line is not None:
            self.line.mend()
        else:
            self.buses[0].mend()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    server = RedisServer().start()
    yield server
    server.stop()


@pytest.fixture(params=["local", "redis"])
async def bench(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Bench]:
    one = Bench(request.param, redis)
    for name, bus, ear in zip("ab", one.buses, one.ears, strict=True):
        await bus.start(ear, [name, "all"])
    assert all(bus.works for bus in one.buses)
    yield one
    for bus in one.buses:
        await bus.stop()
    if one.line is not None:
        one.line.close()


async def test_messages_arrive_once_and_in_order(bench: Bench) -> None:
    a: Bus = bench.buses[0]
    sent = [b"%d" % n for n in range(2000)]
    for data in sent:
        a.send("b", data)
    await eventually(lambda: len(bench.ears[1].heard) == 2000, "all of them")
    assert bench.ears[1].heard == [("b", data) for data in sent]
    assert not bench.ears[0].heard


async def test_a_channel_of_all_reaches_all(bench: Bench) -> None:
    bench.buses[0].send("all", b"\x00\xff\n")
    await eventually(lambda: all(ear.heard == [("all", b"\x00\xff\n")] for ear in bench.ears), "both")


async def test_it_is_said_where_nobody_listens(bench: Bench) -> None:
    said: list[str] = []
    bench.buses[0].send("nobody", b"x", lambda: said.append("nobody"))
    bench.buses[0].send("b", b"x", lambda: said.append("b"))
    await eventually(lambda: said and bench.ears[1].heard, "both")
    assert said == ["nobody"]


async def test_a_further_channel_can_be_listened_on_and_left(bench: Bench) -> None:
    a, b = bench.buses
    b.subscribe("more")

    async def taken() -> bool:
        a.send("more", b"x")
        await asyncio.sleep(0.01)
        return bool(bench.ears[1].heard)

    await eventually(taken, "a message")
    b.unsubscribe("more")

    async def left() -> bool:
        unheard = asyncio.Event()
        a.send("more", b"x", unheard.set)
        await asyncio.sleep(0.05)
        return unheard.is_set()

    await eventually(left, "nobody there")


async def test_what_cannot_be_used_stops_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    bench.buses[0].send("b", b"poison")
    bench.buses[0].send("b", b"after")
    await eventually(lambda: bench.ears[1].heard == [("b", b"after")], "what comes after")


async def test_it_says_when_it_is_away_and_when_it_is_back(bench: Bench) -> None:
    a = bench.buses[0]
    assert bench.ears[0].states == ["restored"]
    bench.part()
    await eventually(lambda: not a.works, "away")
    unheard = asyncio.Event()
    a.send("b", b"lost", unheard.set)
    await asyncio.wait_for(unheard.wait(), 10)
    bench.mend()
    await eventually(lambda: a.works, "back")
    assert bench.ears[0].states == ["restored", "lost", "restored"]
    a.send("b", b"found")
    await eventually(lambda: bench.ears[1].heard == [("b", b"found")], "what was sent afterwards")
    bench.buses[1].send("a", b"answer")
    await eventually(lambda: bench.ears[0].heard == [("a", b"answer")], "the way back")


async def test_a_line_that_says_nothing_is_noticed(redis: RedisServer) -> None:
    bench = Bench("redis", redis)
    a, ear, line = bench.buses[0], bench.ears[0], bench.line
    assert line is not None
    await a.start(ear, ["a"])
    line.silence()
    await eventually(lambda: not a.works, "silence noticed")
    line.mend()
    await eventually(lambda: a.works, "back")
    await a.stop()
    line.close()


async def test_what_waits_is_sent_before_it_stops(bench: Bench) -> None:
    bench.buses[0].send("b", b"last words")
    await bench.buses[0].stop()
    await eventually(lambda: bench.ears[1].heard == [("b", b"last words")], "them")


async def test_it_starts_without_redis_and_connects_when_there_is_one() -> None:
    server, ear = RedisServer(), Ear()
    bus = RedisBus(server.url)
    await bus.start(ear, ["a"])
    assert not bus.works
    assert ear.states == []
    await asyncio.to_thread(server.start)
    await eventually(lambda: bus.works, "connected")
    await bus.stop()
    server.stop()


def test_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"scheme|port|cast"):
        RedisBus("redis://127.0.0.1:port")


async def test_a_bus_stops_at_whatever_step_of_connecting_it_is(redis: RedisServer) -> None:
    for steps in range(150):
        bus = RedisBus(redis.url)
        starting = asyncio.create_task(bus.start(Ear(), ["one", "two"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await bus.stop()
        starting.cancel()
        await asyncio.wait([starting])
