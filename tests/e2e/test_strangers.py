"""Who may talk to a gateway that has no token: this machine, by its own names."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import httpx

from tests.e2e.support import ROOT, Server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch


async def _status(server: Server, host: str) -> int:
    async with httpx.AsyncClient(base_url=server.origin, trust_env=False) as client:
        return (await client.get("/api/sessions", headers={"host": host})).status_code


async def test_a_strangers_name_for_this_address_is_refused(launch: Launch) -> None:
    """DNS rebinding: evil.example resolves to 127.0.0.1, and the page's own origin matches its Host."""
    server = launch()
    assert await _status(server, f"evil.example:{server.port}") == 403
    assert await _status(server, f"localhost:{server.port}") == 200
    assert await _status(server, f"127.0.0.1:{server.port}") == 200


async def test_a_name_that_was_given_is_served(launch: Launch) -> None:
    server = launch(hosts="chat.example")
    assert await _status(server, "chat.example") == 200
    assert await _status(server, "evil.example") == 403


async def test_with_a_token_any_name_is_served(launch: Launch) -> None:
    server = launch(token="secret")
    assert await _status(server, "chat.example") == 401


def test_another_address_than_loopback_needs_a_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gateway", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--token" in done.stderr
    assert len(done.stderr.splitlines()) == 1
