"""`gateway serve --model openai:…`: a provider behind the default agent, and Stop all the way to its socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.engine.provider import HEADERS, answer, chunk, provider

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Server


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")


def serve(launch: Launch, folder: Path, url: str) -> Server:
    return launch("", model="openai:local", model_url=url, store=f"sqlite:///{folder / 'g.db'}")


async def test_the_default_agent_answers_through_a_provider(launch: Launch, tmp_path: Path) -> None:
    async with provider(answer({"content": "Hel"}, {"content": "lo"})) as served:
        server = serve(launch, tmp_path, served.url)
        async with server.client() as c:
            assert (await c.run("s", "Hi"))["status"] == "completed"
            message = c.view("s").fold.messages[-1]
            assert [part["text"] for part in message["parts"]] == ["Hello"]
            assert message["usage"] == {"input_tokens": 7, "output_tokens": 3}


async def test_stop_closes_the_providers_connection(launch: Launch, tmp_path: Path) -> None:
    async with provider([HEADERS, chunk({"content": "Once"}), None]) as served:
        server = serve(launch, tmp_path, served.url)
        async with server.client() as c:
            ack = await c.prompt("s", "Tell")
            await c.until("text-delta", run_id=ack["run_id"])
            await c.ok("abort", session_id="s")
            assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "aborted"
            async with asyncio.timeout(5):
                await served.closed.wait()
