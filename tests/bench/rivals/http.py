"""Rivals that stream over HTTP: LangGraph's in-memory server, and resumable-stream (AI SDK) on Redis."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.clients.raw import HttpStream
from tests.bench.process import ROOT, Server, free_port, running
from tests.bench.rivals.base import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

FINISH = b'"run-finish"'
SERVERS = ROOT / "tests/bench/servers"


class LangGraph:
    """``langgraph dev``: runs are streamed as server-sent events, kept in memory."""

    name = "LangGraph dev"
    program = ROOT / ".venv-langgraph/bin/langgraph"

    def missing(self) -> str | None:
        """Its environment, made by ``tests/run bench``."""
        return None if self.program.exists() else "no .venv-langgraph: tests/run bench makes it"

    @contextmanager
    def serve(self) -> Iterator[Server]:
        """Start it offline, in a folder of its own: it writes its state there."""
        port = free_port()
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(SERVERS / "langgraph_app.py", folder)
            config = {"dependencies": ["."], "graphs": {"agent": "./langgraph_app.py:graph"}}
            (Path(folder) / "langgraph.json").write_text(json.dumps(config))
            command = [str(self.program), "dev", "--no-browser", "--no-reload", "--port", str(port)]
            environ = {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1", "LOG_LEVEL": "error"}
            with running([*command, "--server-log-level", "error"], port, environ, cwd=Path(folder)) as server:
                yield server

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Stream a run without a thread."""
        if sessions != 1:
            raise ValueError("a stream of LangGraph is one run")
        body = {"assistant_id": "agent", "input": {"events": events}, "stream_mode": "custom"}
        watch = Stopwatch()
        client = await HttpStream.request(port, "POST", "/runs/stream", body)
        await client.until(FINISH)
        seconds = watch.seconds
        client.close()
        return seconds


class ResumableStream:
    """resumable-stream behind ``node:http``; the Redis that it needs is started with it, on the same core."""

    name = "resumable-stream"
    folder = ROOT / ".node-bench"

    def missing(self) -> str | None:
        """Redis, Node.js, and its packages, installed by ``tests/run bench``."""
        if not (self.folder / "node_modules/resumable-stream").exists():
            return "no .node-bench: tests/run bench makes it"
        lacking = [name for name in ("node", "redis-server") if shutil.which(name) is None]
        return f"no {lacking[0]}" if lacking else None

    @contextmanager
    def serve(self) -> Iterator[Server]:
        """Start Redis, then the server."""
        port, redis = free_port(), free_port()
        with tempfile.TemporaryDirectory() as folder:
            # As Redis comes: no file is written before a minute has passed.
            command = ["redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--dir", folder, "--save", ""]
            with running(command, redis):
                program = [str(shutil.which("node")), str(self.folder / "server.mjs"), str(port)]
                with running(program, port, {"REDIS_URL": f"redis://127.0.0.1:{redis}"}) as server:
                    yield server

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Start a stream and read it to its end."""
        if sessions != 1:
            raise ValueError("a response is one stream")
        watch = Stopwatch()
        client = await HttpStream.request(port, "POST", f"/new?id={uuid.uuid4()}&events={events}")
        await client.until(FINISH)
        seconds = watch.seconds
        client.close()
        return seconds

    async def hold(self, port: int, events: int) -> tuple[str, HttpStream]:
        """Start a stream that stays open after its events, so that it can be resumed."""
        id_ = str(uuid.uuid4())
        client = await HttpStream.request(port, "POST", f"/new?id={id_}&events={events}&hold=1")
        await client.until(FINISH)
        return id_, client

    async def resume(self, port: int, id_: str) -> float:
        """Join a held stream from its start; give the seconds until all of it is here."""
        watch = Stopwatch()
        client = await HttpStream.request(port, "GET", f"/resume?id={id_}")
        await client.until(FINISH)
        seconds = watch.seconds
        client.close()
        return seconds


def install() -> None:
    """Install resumable-stream from its lock, beside a copy of the server that uses it."""
    folder = ResumableStream.folder
    folder.mkdir(exist_ok=True)
    for name in ("package.json", "package-lock.json", "server.mjs"):
        shutil.copy(SERVERS / "resumable" / name, folder)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=folder, check=True)
