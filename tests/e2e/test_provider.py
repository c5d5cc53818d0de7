"""`gateway serve --model …`: a provider behind the default agent, and Stop all the way to its socket."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.engine.dialects import DIALECTS, Dialect
from tests.engine.provider import provider

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Server


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    found: Dialect = request.param
    monkeypatch.setenv(found.key, "k")
    return found


def serve(launch: Launch, folder: Path, dialect: Dialect, url: str) -> Server:
    model = f"{dialect.name}:{dialect.model}"
    return launch("", model=model, model_url=url, store=f"sqlite:///{folder / 'g.db'}")


async def test_the_default_agent_answers_through_a_provider(launch: Launch, tmp_path: Path, dialect: Dialect) -> None:
    async with provider(dialect.whole("Hel", "lo")) as served:
        server = serve(launch, tmp_path, dialect, dialect.url(served))
        async with server.client() as c:
            assert (await c.run("s", "Hi"))["status"] == "completed"
            message = c.view("s").fold.messages[-1]
            assert [part["text"] for part in message["parts"]] == ["Hello"]
            usage = message["usage"]
            assert (usage["input_tokens"], usage["output_tokens"]) == (7, 3)
            assert ("cost" in usage) is (dialect.name != "openai")


async def test_stop_closes_the_providers_connection(launch: Launch, tmp_path: Path, dialect: Dialect) -> None:
    async with provider([*dialect.begun("Once"), None]) as served:
        server = serve(launch, tmp_path, dialect, dialect.url(served))
        async with server.client() as c:
            ack = await c.prompt("s", "Tell")
            await c.until("text-delta", run_id=ack["run_id"])
            await c.ok("abort", session_id="s")
            assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "aborted"
            async with asyncio.timeout(5):
                await served.closed.wait()


def test_a_missing_key_is_one_line_and_no_traceback(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    server = launch("", start=False, model="anthropic:claude-haiku-4-5")
    server.spawn()
    assert server.exit_code() == 2
    assert "ANTHROPIC_API_KEY" in server.stderr()
    assert server.stderr().count("\n") == 1
