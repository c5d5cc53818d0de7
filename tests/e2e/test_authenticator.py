"""An authenticator that breaks lets nobody in."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ROOT, Server, fresh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Embedded(Server):
    """The application under uvicorn instead of `gateway serve`."""

    def command(self) -> list[str]:
        base = [sys.executable, "-m", "uvicorn", "tests.e2e.embedded:app", "--ws", "websockets-sansio"]
        return [*base, "--port", str(self.port), "--log-level", "warning"]


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Server]:
    server = Embedded(tmp_path, env={"EMBEDDED_STORE": f"sqlite:///{tmp_path / 'g.db'}"}, cwd=ROOT)
    try:
        yield server.start()
    finally:
        server.close()


async def test_an_authenticator_that_fails_lets_nobody_in(embedded: Server) -> None:
    session = fresh()
    async with embedded.client(hello=False) as c:
        await c.send({"type": "hello", "id": "h", "token": "down"})
        await c.send({"type": "prompt", "session_id": session, "text": "Hi"})
        assert (await c.reply("h"))["code"] == "internal"
        assert await c.closed() == 4104
        assert [f["type"] for f in c.frames] == ["error"]
    async with embedded.client(token="known") as c:
        assert (await c.run(session))["status"] == "completed"
        await c.fails("internal", "hello", token="down")
        await c.barrier()
