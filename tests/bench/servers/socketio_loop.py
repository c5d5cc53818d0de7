"""The same loop on python-socketio, with its room broadcast. ``python -m tests.bench.servers.socketio_loop PORT``."""

from __future__ import annotations

import asyncio
from typing import Any

import socketio

from tests.bench.servers.engines import flat_out
from tests.bench.servers.loop import said, serve

sio: Any = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins="*")


@sio.on("start")  # type: ignore[untyped-decorator]
async def start(sid: str, order: dict[str, Any]) -> None:
    """Start runs whose events go to who asked, or to a room."""
    to = "viewers" if "all" in order else sid
    await asyncio.gather(*(run(to, f"s{number}", order["text"]) for number in range(order.get("sessions", 1))))


@sio.on("join")  # type: ignore[untyped-decorator]
async def join(sid: str) -> None:
    """Make a viewer of the connection."""
    await sio.enter_room(sid, "viewers")
    await sio.emit("joined", to=sid)


async def run(to: str, session_id: str, text: str) -> None:
    """Emit each event as it comes."""
    async for event in flat_out(abort=asyncio.Event(), mode="prompt", session_id=session_id, messages=said(text)):
        await sio.emit("event", event, to=to)
    await sio.emit("event", {"type": "run-finish"}, to=to)


app = socketio.ASGIApp(sio)

if __name__ == "__main__":
    serve(app)
