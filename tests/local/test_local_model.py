"""`gateway serve --model local`: real text of a real model over the socket, and a Stop in the middle of it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

import pytest

from gateway.client import connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """Serve the local model by its one flag."""
    command = [sys.executable, "-m", "gateway", "serve", "--model", "local", "--port", "0"]
    command += ["--store", f"sqlite:///{tmp_path}/local.db"]
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    line = (await server.stdout.readline()).decode()
    yield line.split()[-1].replace("http", "ws") + "/ws"
    server.terminate()
    assert await server.wait() == 0


async def test_real_text_a_stop_in_the_middle_and_a_resume_that_goes_on(url: str) -> None:
    async with connect(url) as gateway:
        session = gateway.session()
        ack = await session.prompt("Once upon a time, in a village by the sea,")
        pieces, began, stopped = 0, time.monotonic(), 0.0
        async for event in session.events(until=ack["run_id"]):
            if event["type"] == "text-delta":
                began = began if pieces else time.monotonic()
                pieces += 1
                if pieces == 30:
                    stopped = time.monotonic()
                    await session.abort()
            elif event["type"] == "run-finish":
                took, sealed = stopped - began, time.monotonic() - stopped
                assert event["status"] == "aborted"
                assert pieces < 60, "of 256 that it would have written"
                assert event["settled"] is True
        first = text_of(session.state.messages[-1])
        assert len(first.split()) > 10

        ack = await session.resume()
        async for event in session.events(until=ack["run_id"]):
            if event["type"] == "run-finish":
                assert event["status"] == "completed"
        second = session.state.messages[-1]
        assert len(text_of(second).split()) > 10
        assert second["usage"]["output_tokens"] > 30  # some hold a part of a character only
    print(f"\n{first!r}\n{text_of(second)!r}\n{29 / took:.1f} deltas/s, Stop to run-finish {sealed * 1000:.0f} ms")


def text_of(message: dict[str, object]) -> str:
    """Give what a message says."""
    parts = message["parts"]
    assert isinstance(parts, list)
    return "".join(part["text"] for part in parts if part["type"] == "text")
