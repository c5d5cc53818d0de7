"""A Starlette app that sends messages prepared beforehand: what replay costs where nothing has to be found or built.

``python -m tests.bench.servers.prepared PORT FILE``: the file's lines are one JSON list of messages per line; a client
that says ``{"line": n}`` gets those of line n.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from tests.bench.servers.loop import serve

prepared: list[list[str]] = []


async def endpoint(ws: WebSocket) -> None:
    """Send what is asked for."""
    await ws.accept()
    try:
        while True:
            command: dict[str, Any] = orjson.loads(await ws.receive_text())
            for message in prepared[command["line"]]:
                await ws.send_text(message)
    except WebSocketDisconnect:
        return


app = Starlette(routes=[WebSocketRoute("/ws", endpoint)])

if __name__ == "__main__":
    prepared.extend(orjson.loads(line) for line in Path(sys.argv[2]).read_bytes().splitlines())
    serve(app)
