"""``python -m tests.faults.latency``: what a hostile crowd costs the others, as a ratio to the quiet case.

One client measures round trips and whole runs, in turns of a second: alone, and beside a crowd in its own process that
floods, dribbles, does not read, and attaches and detaches. Wanted: medians at most twice the quiet ones. It asserts
nothing: the crowd needs a core, and on a machine whose cores are taken the ratio is the machine's.
"""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e.support import ROOT, Server, fresh, spec
from tests.faults.raw import HANDSHAKE, PING, TEXT, Raw, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tests.e2e.support import Client

ROUNDS = 8
SECOND = 1.0


async def repeat(raw: Raw, data: bytes, pause_s: float) -> None:
    """Send the same thing again and again, until it is not taken any more."""
    for _ in iter(int, 1):
        if not await raw.send_what_is_taken(data):
            return
        await asyncio.sleep(pause_s)


async def flood(port: int) -> None:
    async with Raw(port) as raw:
        await raw.upgrade()
        pings = frame(TEXT, b'{"type":"ping"}') * 100
        await repeat(raw, pings, 0.001)


async def ping_unread(port: int) -> None:
    async with Raw(port, window=4096) as raw:
        await raw.upgrade()
        await repeat(raw, frame(PING, b"p" * 100) * 10, 0.01)


async def dribble(port: int) -> None:
    async with Raw(port) as raw:
        for byte in HANDSHAKE:
            await raw.send(bytes([byte]))
            await asyncio.sleep(0.05)


async def never_read(port: int) -> None:
    async with Raw(port, window=4096) as raw:
        await raw.upgrade()
        text = spec("words", words=10_000, pad=500, delay=0.002)
        await raw.text(json.dumps({"type": "prompt", "session_id": fresh(), "text": text}))
        await asyncio.sleep(5)


async def come_and_go(port: int) -> None:
    async with Raw(port) as raw:
        await raw.upgrade()
        session = fresh()
        await raw.text(json.dumps({"type": "prompt", "session_id": session, "text": "Hi"}))
        pair = [{"type": "attach", "session_id": session}, {"type": "detach", "session_id": session}]
        data = b"".join(frame(TEXT, json.dumps(command).encode()) for command in pair)
        await repeat(raw, data, 0.02)


CROWD: tuple[tuple[int, Callable[[int], Coroutine[None, None, None]]], ...] = (
    (2, flood),
    (2, ping_unread),
    (20, dribble),
    (3, never_read),
    (3, come_and_go),
)


async def crowd(port: int) -> None:
    """All of them, again and again."""

    async def again(do: Callable[[int], Coroutine[None, None, None]]) -> None:
        while True:
            with suppress(OSError, AssertionError):
                await do(port)
            await asyncio.sleep(0.1)

    await asyncio.gather(*(again(do) for number, do in CROWD for _ in range(number)))


async def measured(c: Client) -> list[tuple[float, float]]:
    """Round trips, and prompts to their run's end, for a second."""
    taken = []
    over = time.monotonic() + SECOND
    while time.monotonic() < over:
        began = time.perf_counter()
        await c.barrier()
        middle = time.perf_counter()
        await c.run(fresh())
        taken.append((middle - began, time.perf_counter() - middle))
        await asyncio.sleep(0.01)
    return taken


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = {"GATEWAY_COMMANDS_PER_S": "1000", "GATEWAY_SEND_TIMEOUT": "2", "GATEWAY_HELLO_TIMEOUT": "2"}
        server = Server(Path(folder), env=settings).start()
        command = [sys.executable, "-m", "tests.faults.latency", str(server.port)]
        others = await asyncio.to_thread(subprocess.Popen, command, cwd=ROOT)
        quiet: list[tuple[float, float]] = []
        busy: list[tuple[float, float]] = []
        try:
            async with server.client() as c:
                for number in range(ROUNDS):
                    for signal_, into in ((signal.SIGSTOP, quiet), (signal.SIGCONT, busy)):
                        others.send_signal(signal_)
                        await asyncio.sleep(0.5)
                        found = await measured(c)
                        into += found if number else []  # the first round warms up
        finally:
            others.kill()
            others.wait()
            server.close()
    for at, name in enumerate(("round trip", "prompt to run-finish")):
        one, two = (statistics.median(pair[at] for pair in pairs) for pairs in (quiet, busy))
        print(f"{name}: {two / one:.2f} of the quiet {one * 1000:.2f} ms (wanted: at most 2)")


if __name__ == "__main__":
    asyncio.run(crowd(int(sys.argv[1])) if len(sys.argv) > 1 else main())
