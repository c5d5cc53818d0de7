"""uvicorn's protocols with our bounds, fed by hand: what they write, when they wait, and that nothing of them stays."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uvicorn import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.server import ServerState
from websockets.frames import Frame, Opcode

from gateway import Gateway, sockets
from gateway.endpoint import Link
from gateway.sockets import SLICE_BYTES, BoundedWebSocket, http_protocol, text_head
from tests.test_endpoint import silent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n%b\r\n"
)
DEFLATE = b"Sec-WebSocket-Extensions: permessage-deflate\r\n"


class Wire(asyncio.Transport):
    """A socket's other end: what was written, and the protocol that is told."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.written = b""
        self.wrote = asyncio.Event()
        self.closing = False
        self.paused = False
        self.shut = asyncio.Event()
        self.cut = asyncio.Event()
        self.protocol: Any = None

    def write(self, data: Any) -> None:
        self.written += data
        self.wrote.set()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def close(self) -> None:
        self.closing = True
        self.shut.set()

    def is_closing(self) -> bool:
        return self.closing

    def abort(self) -> None:
        self.closing = True
        self.cut.set()

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    async def until(self, text: bytes) -> None:
        """Wait until something has been written."""
        async with asyncio.timeout(5):
            while text not in self.written:
                self.wrote.clear()
                await self.wrote.wait()


def masked(text: str) -> bytes:
    return Frame(Opcode.TEXT, text.encode()).serialize(mask=True)


def config_of(app: Any, *, packed: bool = False) -> Config:
    config = Config(
        app, ws=BoundedWebSocket, http=http_protocol(10, 10), ws_per_message_deflate=packed, log_config=None
    )
    config.load()
    return config


def connected(config: Config, *, extra: bytes = b"") -> tuple[Wire, Any]:
    """Connect and upgrade; gives the wire, whose protocol is the WebSocket by then, and the protocol that was first."""
    wire = Wire()
    assert isinstance(config.http_protocol_class, type)
    first = cast("Any", config.http_protocol_class)(config=config, server_state=ServerState(), app_state={})
    first.connection_made(wire)
    first.data_received(UPGRADE % extra)
    assert isinstance(wire.protocol, BoundedWebSocket)
    return wire, first


class App:
    """Accepts, and waits to be told what to send."""

    def __init__(self) -> None:
        self.accepted = asyncio.Event()
        self.over = asyncio.Event()
        self.send: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        self.send = send
        self.accepted.set()
        await self.over.wait()


@given(st.integers(0, 300) | st.integers(65_500, 65_600) | st.integers(0, 200_000))
def test_a_text_message_has_the_head_that_websockets_gives_it(size: int) -> None:
    assert text_head(size) + b"x" * size == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)


async def test_text_goes_out_as_one_frame() -> None:
    app = App()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    before = len(wire.written)
    for text in ("", "é" * 100, "x" * 70_000):
        await app.send({"type": "websocket.send", "text": text})
        assert wire.written[before:] == Frame(Opcode.TEXT, text.encode()).serialize(mask=False)
        before = len(wire.written)
    await app.send({"type": "websocket.send", "bytes": b"raw"})
    assert wire.written[before:] == Frame(Opcode.BINARY, b"raw").serialize(mask=False)
    app.over.set()


async def test_a_socket_that_takes_nothing_is_waited_for() -> None:
    app = App()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    wire.protocol.pause_writing()
    before = wire.written
    sending = asyncio.create_task(app.send({"type": "websocket.send", "text": "late"}))
    await asyncio.sleep(0)
    assert (wire.written, sending.done()) == (before, False)
    wire.protocol.resume_writing()
    await sending
    assert wire.written == before + b"\x81\x04late"
    app.over.set()


async def test_where_compression_was_agreed_text_is_compressed() -> None:
    app = App()
    wire, _ = connected(config_of(app, packed=True), extra=DEFLATE)
    await app.accepted.wait()
    before = len(wire.written)
    await app.send({"type": "websocket.send", "text": "x" * 10_000})
    assert wire.written[before] == 0xC1, "the bit that says so is set"
    assert len(wire.written) - before < 200
    app.over.set()


@pytest.mark.parametrize("how", ["lost", "closed by the peer", "closed by us"])
async def test_after_the_end_nothing_more_is_written(how: str) -> None:
    app = App()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    if how == "lost":
        wire.protocol.connection_lost(None)
    elif how == "closed by the peer":
        wire.protocol.data_received(Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
    else:
        await app.send({"type": "websocket.close"})
    before = wire.written
    with pytest.raises(RuntimeError if how == "closed by us" else ClientDisconnected):
        await app.send({"type": "websocket.send", "text": "too late"})
    assert wire.written == before
    app.over.set()


@contextmanager
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def test_of_a_connection_that_has_ended_nothing_waits_for_the_garbage_collector(tmp_path: Path) -> None:
    gateway = Gateway(silent, store=f"sqlite:///{tmp_path / 'g.db'}")
    config = config_of(gateway.asgi)
    async with gateway.lifespan():
        with no_collector():
            wire, first = connected(config)
            wire.protocol.data_received(masked(json.dumps({"type": "hello"})))
            await wire.until(b'"welcome"')
            (link,) = gateway.endpoint.links
            left = [weakref.ref(held) for held in (first, wire.protocol, wire.protocol.conn)]
            task = link.task
            assert task is not None
            wire.protocol.connection_lost(None)
            wire.protocol = None  # as a transport does
            del first, link, wire
            await asyncio.wait([task])
            del task
            assert [ref() for ref in left] == [None, None, None]
            assert not any(isinstance(held, Link) for held in gc.get_objects())


class Hasty:
    """Closes at the first message, and is done."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.receive":
            pass
        await send({"type": "websocket.close", "code": 4105})
        self.done.set()


CLOSE = Frame(Opcode.CLOSE, b"\x0f\xa0").serialize(mask=True)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_answer_to_our_close_is_heard_behind_whatever_came_before_it() -> None:
    app = Hasty()
    wire, _ = connected(config_of(app))
    await wire.until(b"101")
    wire.protocol.data_received(masked("x" * 90) * 300)
    await app.done.wait()
    await turns(20)
    assert not wire.paused, "the peer's answer would lie there until a timer ends it all"
    wire.protocol.data_received(CLOSE)
    await turns(2)
    assert wire.closing
    assert wire.protocol.close_timer is None


@pytest.mark.parametrize(("frames", "heard"), [(4_000, True), (10_000, False)])
async def test_who_floods_on_after_our_close_is_parsed_in_slices_and_not_for_long(frames: int, heard: bool) -> None:
    app = Hasty()
    wire, _ = connected(config_of(app))
    await wire.until(b"101")
    wire.protocol.data_received(masked("one"))
    await app.done.wait()
    await turns(2)
    parsed: list[int] = []
    parse = wire.protocol.conn.receive_data

    def counted(data: bytes) -> None:
        parsed.append(len(data))
        parse(data)

    wire.protocol.conn.receive_data = counted
    flood = masked("") * frames + CLOSE
    wire.protocol.data_received(flood)
    assert parsed == [SLICE_BYTES]
    await turns(len(flood) // SLICE_BYTES + 2)
    assert max(parsed) == SLICE_BYTES
    assert wire.closing
    assert (sum(parsed) == len(flood)) == heard, "its close came last"
    assert sum(parsed) <= sockets.AFTER_BYTES


@pytest.mark.parametrize("how", ["closed by the peer", "forced"])
async def test_a_server_that_leaves_can_leave_a_socket_that_is_closing_already(how: str) -> None:
    app = App()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    if how == "forced":
        wire.protocol.conn.send_close(4102)
    else:
        wire.protocol.data_received(CLOSE)
    wire.protocol.shutdown()
    assert wire.cut.is_set(), "what waits for it holds nobody up"
    app.over.set()


async def test_what_a_peer_that_has_closed_does_not_read_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "LINGER_S", 0.01)
    app = App()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    wire.protocol.data_received(CLOSE)
    app.over.set()
    async with asyncio.timeout(5):
        await wire.cut.wait()


class Slow:
    """Takes messages when told to, and keeps them."""

    def __init__(self) -> None:
        self.accepted = asyncio.Event()
        self.go_on = asyncio.Event()
        self.over = asyncio.Event()
        self.heard: list[Any] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})
        self.accepted.set()
        await self.go_on.wait()
        while not self.heard or self.heard[-1]["type"] != "websocket.disconnect":
            self.heard.append(await receive())
        self.over.set()


async def test_a_close_that_is_read_when_the_connection_is_lost_still_says_that_it_was_meant() -> None:
    app = Slow()
    wire, _ = connected(config_of(app))
    await app.accepted.wait()
    wire.protocol.data_received(masked("x" * 90) * 300 + Frame(Opcode.CLOSE, b"\x03\xe8").serialize(mask=True))
    wire.closing = True  # as a transport is that has failed to write
    wire.protocol.connection_lost(ConnectionResetError())
    app.go_on.set()
    async with asyncio.timeout(5):
        await app.over.wait()
    assert len(app.heard) == 1 + 300 + 1
    assert app.heard[-1] == {"type": "websocket.disconnect", "code": 1000, "reason": ""}


@pytest.mark.parametrize(
    "extra",
    [b"Cookie: %b\r\n" % (b"c" * 9000), b"X: y\r\n" * 200, b"Content-Length: 5\r\n"],
    ids=["a line", "lines", "a body"],
)
async def test_a_head_that_is_too_much_for_a_handshake_is_refused_and_not_left_waiting(extra: bytes) -> None:
    app = App()
    wire, _ = connected(config_of(app), extra=extra)
    await turns(20)
    assert wire.written.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert wire.closing
    assert not app.accepted.is_set()


@pytest.mark.parametrize("how", ["closed with it", "kept alive"])
async def test_the_rest_of_a_response_waits_for_its_reader_for_so_long_only(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "BODY_FACTOR", 1)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"body"})

    config = Config(app, ws=BoundedWebSocket, http=http_protocol(10, 0.01), timeout_keep_alive=0, log_config=None)
    config.load()
    wire = Wire()
    first = cast("Any", config.http_protocol_class)(config=config, server_state=ServerState(), app_state={})
    first.connection_made(wire)
    close = b"Connection: close\r\n" if how == "closed with it" else b""
    first.data_received(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n%b\r\n" % close)
    await wire.until(b"body")
    async with asyncio.timeout(5):
        await wire.shut.wait()
        first.resume_writing()  # so little is left that a next response could be written: there is none
        await wire.cut.wait()
