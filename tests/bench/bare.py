"""The rival that a person would write by hand: a Starlette loop, no persistence, no resume, no second tab."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.bench.engines import flat_out


async def endpoint(ws: WebSocket) -> None:
    """Each message ``{"text": order, "sessions": n}`` starts n runs whose events go out as they come."""
    await ws.accept()

    async def run(name: str, text: str) -> None:
        messages = [{"role": "user", "parts": [{"type": "text", "text": text}]}]
        async for event in flat_out(abort=asyncio.Event(), mode="prompt", session_id=name, messages=messages):
            await ws.send_text(orjson.dumps(event).decode())
        await ws.send_text('{"type":"run-finish"}')

    try:
        while True:
            command: dict[str, Any] = orjson.loads(await ws.receive_text())
            count = command.get("sessions", 1)
            await asyncio.gather(*(run(f"s{number}", command["text"]) for number in range(count)))
    except WebSocketDisconnect:
        return


app = Starlette(routes=[WebSocketRoute("/ws", endpoint)])

if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
    )
