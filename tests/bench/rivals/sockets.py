"""Rivals that speak Socket.IO: the loop on python-socketio, and Chainlit, which is built on it."""

from __future__ import annotations

import json
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import process
from tests.bench.clients.raw import SocketIO
from tests.bench.process import ROOT, Server, free_port, running
from tests.bench.rivals.base import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

FINISH = b'"run-finish"'


class PythonSocketIO:
    """The same loop on python-socketio on the same uvicorn."""

    name = "python-socketio"

    def missing(self) -> None:
        """Nothing."""

    def serve(self) -> AbstractContextManager[Server]:
        """Start it."""
        return process.module("tests.bench.servers.socketio_loop")

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Order runs."""
        client = await SocketIO.open(port)
        text = json.dumps({"events": events // sessions})
        watch = Stopwatch()
        client.emit("start", {"text": text, "sessions": sessions})
        await client.until(FINISH, sessions)
        seconds = watch.seconds
        client.close()
        return seconds


class Chainlit:
    """``chainlit run``; nothing is persisted, its data layer being off as it is by default."""

    name = "Chainlit"
    program = ROOT / ".venv-chainlit/bin/chainlit"

    def missing(self) -> str | None:
        """Its environment, made by ``tests/run bench``."""
        return None if self.program.exists() else "no .venv-chainlit: tests/run bench makes it"

    @contextmanager
    def serve(self) -> Iterator[Server]:
        """Start it in a folder of its own: it writes its configuration there."""
        port = free_port()
        app = ROOT / "tests/bench/servers/chainlit_app.py"
        with tempfile.TemporaryDirectory() as folder:
            command = [str(self.program), "run", str(app), "--headless", "--port", str(port), "--host", "127.0.0.1"]
            environ = {"CHAINLIT_APP_ROOT": folder, "OTEL_SDK_DISABLED": "true"}
            with running(command, port, environ, cwd=Path(folder)) as server:
                yield server

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Send one message, as its page does."""
        if sessions != 1:
            raise ValueError("a connection of Chainlit is one session")
        session_id = str(uuid.uuid4())
        auth = {"clientType": "webapp", "sessionId": session_id, "threadId": "", "userEnv": "", "chatProfile": ""}
        client = await SocketIO.open(port, "/ws/socket.io/", auth)
        client.emit("connection_successful")
        message = {
            "threadId": "",
            "id": str(uuid.uuid4()),
            "name": "user",
            "type": "user_message",
            "output": json.dumps({"events": events}),
            "createdAt": "2030-01-01T00:00:00.000Z",
        }
        watch = Stopwatch()
        client.emit("client_message", {"message": message, "fileReferences": []})
        await client.until(b'"output":"run-finish"')
        seconds = watch.seconds
        client.close()
        return seconds
