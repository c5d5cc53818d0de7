"""What a person would write by hand: a Starlette loop; no persistence, no resume, no second tab.

``python -m tests.bench.servers.loop PORT``. A message ``{"text": order, "sessions": n}`` starts n runs, whose events go
out as they come; ``{"join": true}`` makes the connection a viewer, to whom ``{"text": order, "all": true}`` broadcasts.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.bench.servers.engines import flat_out

FINISH = '{"type":"run-finish"}'
viewers: set[WebSocket] = set()


async def endpoint(ws: WebSocket) -> None:
    """Serve one connection."""
    await ws.accept()
    try:
        while True:
            command: dict[str, Any] = orjson.loads(await ws.receive_text())
            if "join" in command:
                viewers.add(ws)
                await ws.send_text('{"type":"joined"}')
            elif "all" in command:
                await broadcast(command["text"])
            else:
                count = command.get("sessions", 1)
                await asyncio.gather(*(run(ws, f"s{number}", command["text"]) for number in range(count)))
    except WebSocketDisconnect:
        return
    finally:
        viewers.discard(ws)


async def run(ws: WebSocket, session_id: str, text: str) -> None:
    """Send each event of a run as it comes."""
    async for event in flat_out(abort=asyncio.Event(), mode="prompt", session_id=session_id, messages=said(text)):
        await ws.send_text(orjson.dumps(event).decode())
    await ws.send_text(FINISH)


async def broadcast(text: str) -> None:
    """Send each event of a run to every viewer, encoded once."""
    async for event in flat_out(abort=asyncio.Event(), mode="prompt", session_id="all", messages=said(text)):
        data = orjson.dumps(event).decode()
        for viewer in list(viewers):
            await viewer.send_text(data)
    for viewer in list(viewers):
        await viewer.send_text(FINISH)


def said(text: str) -> list[dict[str, Any]]:
    """Make a user message of it."""
    return [{"role": "user", "parts": [{"type": "text", "text": text}]}]


def serve(app: Any) -> None:
    """Serve on the port of the command line, as the gateway has itself served."""
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
        access_log=False,
        backlog=2048,
    )


app = Starlette(routes=[WebSocketRoute("/ws", endpoint)])

if __name__ == "__main__":
    serve(app)
