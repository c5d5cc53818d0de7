"""Clients that mean ill, or are just broken: memory stays bounded, the close code is the protocol's, others go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import agree, fresh, spec
from tests.faults import dice
from tests.faults.raw import BINARY, CLOSE, CONTINUATION, HANDSHAKE, PING, TEXT, Raw, bomb, frame, resident

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Server

SETTINGS = {"hello_timeout": 1, "send_timeout": 1, "commands_per_s": 200}
MIB = 1 << 20
NOISE = 24 * MIB
"""What a server may grow by for other reasons: caches and pools fill, the allocator keeps what it had."""


@contextlib.asynccontextmanager
async def bounded(server: Server, allowed: int) -> AsyncIterator[None]:
    """Watch the server's memory: it may grow by so much; and afterwards it serves as before."""
    async with server.client() as c:
        await c.run(fresh())
    before = top = resident(server.running.pid)

    async def watch() -> None:
        nonlocal top
        while True:
            top = max(top, resident(server.running.pid))
            await asyncio.sleep(0.01)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    print(f"memory: {(top - before) / MIB:.1f} MiB more of {(allowed + NOISE) / MIB:.0f} allowed")
    assert top - before < allowed + NOISE
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session))["status"] == "completed"
        await agree(server, c, session)


# Before the hello


async def test_five_thousand_sockets_that_never_say_hello(launch: Launch) -> None:
    """48 KiB each, three times what an idle connection was measured to cost; none of them is in the others' way."""
    server = launch()
    async with bounded(server, 5000 * 48 * 1024), contextlib.AsyncExitStack() as stack:
        for _ in range(50):
            some = [Raw(server.port) for _ in range(100)]
            for one in some:
                await stack.enter_async_context(one)
            await asyncio.gather(*(one.upgrade() for one in some))
        async with server.client() as c:
            assert (await c.run(fresh()))["status"] == "completed"


async def dribble(raw: Raw, data: bytes, ended: asyncio.Future[bytes]) -> None:
    """Send byte by byte, never silent for long, until the other side has had enough."""
    for byte in data:
        if ended.done() or not await raw.send_what_is_taken(bytes([byte])):
            return
        await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["silent", "dribbling", "dribbling headers", "half a body"])
async def test_a_request_that_never_gets_whole_is_cut(server: Server, how: str) -> None:
    began = time.monotonic()
    async with Raw(server.port) as raw:
        ended = asyncio.create_task(raw.read_to_the_end())
        match how:
            case "silent":
                pass
            case "dribbling":
                await dribble(raw, HANDSHAKE, ended)
            case "dribbling headers":
                await raw.send(HANDSHAKE)
                await dribble(raw, b"X: " + b"x" * 10_000, ended)
            case "half a body":
                await raw.send(
                    b"POST /api/sessions/s/prompt HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{"
                )
        await ended
    assert time.monotonic() - began < 12, "the handshake's second, the body's six, and room for a busy machine"


@pytest.mark.parametrize("line", ["X-More: " + "x" * 1000 + "\r\n", "x" * 10_000])
async def test_a_head_without_an_end_is_cut(server: Server, line: str) -> None:
    async with bounded(server, 0), Raw(server.port) as raw:
        ended = asyncio.create_task(raw.read_to_the_end())
        await raw.send(HANDSHAKE + b"X-More: ")
        sent = 0
        while sent < 200 * MIB and await raw.send_what_is_taken(line.encode() * 100):
            sent += len(line) * 100
        await ended
        assert sent < 200 * MIB


# Who does not read


async def test_a_response_that_nobody_reads_is_let_go(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session, spec("big", bytes=1_000_000))
    # A mebibyte each until it is cut, and the encoder's copy of it.
    async with bounded(server, 2 * 100 * MIB), contextlib.AsyncExitStack() as stack:
        idle = [await stack.enter_async_context(Raw(server.port, window=4096)) for _ in range(100)]
        for one in idle:
            await one.send(f"GET /api/sessions/{session} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        await asyncio.sleep(3)  # reading nothing is the attack
        taken = await asyncio.gather(*(one.read_to_the_end(patience=30) for one in idle))
        assert all(len(data) < MIB for data in taken), "all that the kernel had, and not the rest"


async def test_a_reader_of_one_byte_a_second_is_cut_off(server: Server) -> None:
    """What it has not read stays in the session's log, once for all: 32 MiB of it may be replayed."""
    session = fresh()
    async with bounded(server, 40 * MIB), Raw(server.port, window=4096) as raw:
        await raw.upgrade()
        await raw.text(
            json.dumps({"type": "prompt", "session_id": session, "text": spec("flood", events=800, bytes=30_000)})
        )
        loop = asyncio.get_running_loop()
        for _ in range(4):
            await loop.sock_recv(raw.sock, 1)
            await asyncio.sleep(1)
        await raw.read_to_the_end(patience=30)  # it ends, whatever of it arrives


async def test_pings_whose_answers_nobody_reads_cost_a_buffer(server: Server) -> None:
    """The transport's 64 KiB and the kernel's."""
    async with bounded(server, 0), Raw(server.port, window=4096) as raw:
        await raw.upgrade()
        pings = frame(PING, b"p" * 125) * 8000
        for _ in range(100):
            if not await raw.send_what_is_taken(pings, patience=5):
                break


async def test_a_message_in_a_million_empty_pieces_is_1009(server: Server) -> None:
    async with bounded(server, 0), Raw(server.port) as raw:
        await raw.upgrade()
        ended = asyncio.create_task(raw.close_code())
        pieces = frame(CONTINUATION, fin=False) * 10_000
        await raw.send(frame(TEXT, b"{", fin=False))
        for _ in range(100):
            if not await raw.send_what_is_taken(pieces):
                break
        assert await ended in (1009, 1006)


# What is sent


async def test_sixteen_megabytes_in_a_frame_are_1009(server: Server) -> None:
    """The server takes four times its limit to answer `too_large`, and closes past that."""
    async with bounded(server, 8 * MIB):
        for _ in range(20):
            async with Raw(server.port) as raw:
                await raw.upgrade()
                ended = asyncio.create_task(raw.close_code())
                await raw.send_what_is_taken(frame(TEXT, b"x" * (16 * MIB)), patience=10)
                assert await ended in (1009, 1006)


async def test_a_body_of_sixteen_megabytes_is_413(server: Server) -> None:
    async with bounded(server, 8 * MIB):
        answer = await server.http("POST", f"/api/sessions/{fresh()}/prompt", '{"text":"' + "x" * (16 * MIB) + '"}')
        assert (answer.status, answer.code) == (413, "too_large")


@pytest.mark.parametrize(
    "data",
    [
        "[" * 1_000_000,
        '{"a":' * 100_000,
        '{"type":"ping","x":NaN}',
        '{"type":"prompt","metadata":{"x":-Infinity},"text":"x"}',
        '{"type":"prompt","text":"\\ud800',
        '"\\ud800"',
        "null",
        "",
        "\x00",
        "1" * 100_000,
        '{"type":"ping",' * 1000,
    ],
    ids=lambda data: data[:24],
)
async def test_twenty_of_what_is_no_frame_are_4400(server: Server, data: str) -> None:
    async with bounded(server, 8 * MIB), Raw(server.port) as raw:
        await raw.upgrade()
        ended = asyncio.create_task(raw.close_code())
        for _ in range(20):
            await raw.send_what_is_taken(frame(TEXT, data.encode()))
        assert await ended == 4400


async def test_twenty_binary_frames_are_4400_and_bytes_that_are_no_text_1007(server: Server) -> None:
    async with Raw(server.port) as raw:
        await raw.upgrade()
        await raw.send(frame(BINARY, b"\xff\xfe") * 20)
        assert await raw.close_code() == 4400
    async with Raw(server.port) as raw:
        await raw.upgrade()
        await raw.send(frame(TEXT, b'{"type":"ping","id":"\xff"}'))
        assert await raw.close_code() == 1007


async def test_of_a_key_that_comes_twice_the_last_counts(server: Server) -> None:
    async with server.client() as c:
        await c.send_raw('{"type":"abort","type":"ping","id":"first","id":"last"}')
        assert (await c.reply("last"))["type"] == "pong"


async def test_a_flood_of_commands_is_4105(server: Server) -> None:
    async with bounded(server, 8 * MIB), Raw(server.port) as raw:
        await raw.upgrade()
        ended = asyncio.create_task(raw.close_code())
        pings = frame(TEXT, b'{"type":"ping"}') * 500
        for _ in range(40):
            if not await raw.send_what_is_taken(pings):
                break
        assert await ended == 4105


async def test_compressed_bombs_cost_one_slice_each(launch: Launch) -> None:
    """Four KiB unpack to four MiB, beside a message of at most four; and of a whole read there would be 65."""
    server = launch(compression="true", commands_per_s=100_000)
    sockets = 2
    async with bounded(server, sockets * 5 * 4 * MIB), contextlib.AsyncExitStack() as stack:
        raws = [await stack.enter_async_context(Raw(server.port)) for _ in range(sockets)]
        for raw in raws:
            await raw.upgrade(packed=True)
        many = bomb(3_900_000) * 40
        async with asyncio.timeout(60):
            await asyncio.gather(*(raw.send(many) for raw in raws))
        for raw in raws:
            await raw.send(frame(CLOSE, b"\x03\xe8"))
            assert await raw.close_code(patience=60) == 1000, "it got through all of them"
    async with bounded(server, 8 * MIB), Raw(server.port) as raw:
        await raw.upgrade(packed=True)
        await raw.send(bomb(16 * MIB))
        assert await raw.close_code() == 1009


@pytest.mark.timeout(60 + 60 * dice.TIMES)
async def test_attaching_and_detaching_for_ever_leaves_nothing(launch: Launch) -> None:
    """Twenty thousand here, a million with `FAULT_TIMES=50`."""
    server = launch()
    rounds, each = round(100 * dice.TIMES), 100
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        pair = [
            json.dumps({"type": "attach", "session_id": session, "seq": 0}),
            json.dumps({"type": "detach", "session_id": session}),
        ]
        at = []
        for _ in range(rounds):
            for text in pair * each:
                await c.send_raw(text)
            await c.barrier()
            c.frames.clear()
            c.messages.clear()
            c.unread.clear()
            c.views.clear()
            at.append(resident(server.running.pid))
        assert at[-1] - at[len(at) // 4] < 4 * MIB, "after the first quarter it does not grow"
        assert (await c.run(session))["status"] == "completed"
