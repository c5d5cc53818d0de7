"""The way out of one connection: once a turn, straight into a socket that takes it, by a task where it does not."""

from __future__ import annotations

import asyncio
import json
import weakref
from typing import Any

import pytest

from gateway.pump import Pump, Turns
from protocol.connection import Connection, ConnectionLimits
from protocol.errors import CloseCode

LIMITS = ConnectionLimits(
    max_frame_bytes=65536, commands_per_s=50, heartbeat_s=20.0, hello_timeout=10.0, auth_required=False
)


class Wire:
    """A server's side of a socket: what was written, in order, and whether it takes more."""

    def __init__(self) -> None:
        self.said: list[Any] = []
        self.ways: list[str] = []
        self.ready = True
        self.breaks = False
        self.takes = asyncio.Event()
        self.takes.set()

    def say(self, text: bytes) -> None:
        if self.breaks:
            raise RuntimeError("the transport is closed")
        self._wrote("straight", json.loads(text))

    async def receive(self) -> Any:
        """Nobody reads here: it tells whose socket it is."""

    async def send(self, message: Any) -> None:
        await self.takes.wait()
        is_close = message["type"] == "websocket.close"
        self._wrote("task", message["code"] if is_close else json.loads(message["text"]))

    def _wrote(self, way: str, what: Any) -> None:
        self.ways.append(way)
        self.said += what if isinstance(what, list) else [what]


def pump_of(wire: Wire, turns: Turns | None = None, *, batch: bool = True) -> Pump:
    pump = Pump(turns or Turns(), Connection(LIMITS, 0.0), wire.receive, wire.send, 5.0)
    pump.outbox.batch = batch
    return pump


def reply(number: int) -> dict[str, Any]:
    return {"type": "pong", "id": str(number)}


def numbers(wire: Wire) -> list[Any]:
    return [frame if isinstance(frame, int) else int(frame["id"]) for frame in wire.said]


async def turn(times: int = 3) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def test_what_a_turn_brings_is_one_message_and_no_task() -> None:
    wire = Wire()
    pump, tasks = pump_of(wire), asyncio.all_tasks()
    for number in range(3):
        pump.outbox.reply(reply(number))
    assert wire.said == [], "not in the middle of something"
    await turn()
    assert (numbers(wire), wire.ways) == ([0, 1, 2], ["straight"])
    assert asyncio.all_tasks() == tasks


async def test_a_socket_that_does_not_take_it_is_waited_for_by_a_task_that_ends_when_it_has() -> None:
    wire = Wire()
    pump, tasks = pump_of(wire, batch=False), asyncio.all_tasks()
    wire.ready = False
    wire.takes.clear()
    pump.outbox.reply(reply(0))
    await turn()
    wire.ready = True  # what comes now waits behind what is being sent
    pump.outbox.reply(reply(1))
    await turn()
    assert wire.said == []
    wire.takes.set()
    await turn()
    pump.outbox.reply(reply(2))
    await turn()
    assert (numbers(wire), wire.ways) == ([0, 1, 2], ["task", "task", "straight"])
    assert asyncio.all_tasks() == tasks


async def test_on_another_server_everything_goes_through_its_send() -> None:
    wire = Wire()

    async def receive() -> Any: ...

    pump = Pump(Turns(), Connection(LIMITS, 0.0), receive, wire.send, 5.0)
    for number in range(2):
        pump.outbox.reply(reply(number))
        await turn()
    assert (numbers(wire), wire.ways) == ([0, 1], ["task", "task"])


async def test_the_replies_go_before_the_close_and_nothing_after_it() -> None:
    wire = Wire()
    pump = pump_of(wire)
    pump.outbox.reply(reply(0))
    pump.close(CloseCode.DRAIN, "drain", flush=True)
    pump.close(CloseCode.INTERNAL, "the first one counts", flush=False)
    await turn()
    pump.outbox.reply(reply(1))
    await turn()
    assert numbers(wire) == [0, CloseCode.DRAIN]
    assert pump.broken


async def test_one_that_breaks_does_not_keep_the_others_from_theirs() -> None:
    turns, broken, whole = Turns(), Wire(), Wire()
    broken.breaks = True
    first, second = pump_of(broken, turns), pump_of(whole, turns)
    first.outbox.reply(reply(0))
    second.outbox.reply(reply(1))
    await turn()
    assert (first.broken, second.broken, numbers(whole)) == (True, False, [1])


async def test_what_cannot_be_written_ends_the_connection_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    wire = Wire()
    pump = pump_of(wire)

    def fails(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("a fault of ours")

    pump.outbox.reply(reply(0))
    monkeypatch.setattr("gateway.outbox.codec.message", fails)
    await turn(5)
    assert wire.said == [CloseCode.INTERNAL]
    assert "a fault of ours" in caplog.text


@pytest.mark.parametrize("what", ["a message", "the close"])
async def test_a_send_that_is_blocked_for_too_long_is_given_up(what: str) -> None:
    wire = Wire()
    pump = pump_of(wire)
    wire.ready = False
    wire.takes.clear()
    if what == "a message":
        pump.outbox.reply(reply(0))
    else:
        pump.close(CloseCode.DRAIN, "drain", flush=False)
    await turn()
    now = asyncio.get_running_loop().time()
    broken = []
    for seconds in (1, 6):
        pump.tick(now + seconds)
        broken.append(pump.broken)
    assert broken == [False, True]
    assert pump.closing is not None
    assert pump.closing[0] == (CloseCode.TOO_SLOW if what == "a message" else CloseCode.DRAIN)
    await turn()
    assert len(asyncio.all_tasks()) == 1


async def test_a_task_that_was_stopped_before_it_began_is_let_go() -> None:
    wire = Wire()
    pump = pump_of(wire)
    wire.ready = False
    pump.outbox.reply(reply(0))
    pump.flush()
    task = weakref.ref(next(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))
    await pump.stop()
    await turn()
    assert task() is None, "its cancellation remembers where it struck, and so the pump"


async def test_a_stopped_pump_waits_for_its_task_and_is_woken_no_more() -> None:
    wire = Wire()
    pump = pump_of(wire)
    wire.ready = False
    wire.takes.clear()
    pump.outbox.reply(reply(0))
    await turn()
    assert len(asyncio.all_tasks()) == 2
    await pump.stop()
    assert len(asyncio.all_tasks()) == 1
    pump.outbox.reply(reply(1))
    await turn()
    assert wire.said == []
