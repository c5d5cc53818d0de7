"""Tokens and passwords are in no log, no error and no dump; what somebody may have to answer for is in the trail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.support import HERE, ROOT, Server, fresh

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch

SECRET = "a-secret-of-at-least-thirty-two-bytes"


def trail(server: Server) -> list[dict[str, Any]]:
    """The audit trail in a server's log."""
    lines = [line.partition("gateway.audit: ")[2] for line in server.stderr().splitlines()]
    return [json.loads(line) for line in lines if line]


def gateway(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GATEWAY_")}
    command = [sys.executable, "-m", "gateway", *arguments]
    environment = clean | {"PYTHONPATH": str(ROOT)} | env
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("level", ["debug", "info"])
@pytest.mark.parametrize("kind", ["static", "jwt"])
async def test_no_token_is_in_any_log_however_it_came_and_whatever_the_level(
    launch: Launch, kind: str, level: str
) -> None:
    good, wrong = ("0123-known-token-4567", "89ab-unknown-token-cdef")
    if kind == "jwt":
        claims = {"sub": "ann", "exp": time.time() + 60}
        good, wrong = jwt.encode(claims, SECRET, "HS256"), jwt.encode(claims, SECRET[::-1], "HS256")
    settings: dict[str, Any] = {"token": good} if kind == "static" else {"jwt_secret": SECRET}
    server = launch(log_level=level, cookie_name="sid", **settings)
    url = f"ws://127.0.0.1:{server.port}/ws"
    for one in (good, wrong):
        async with server.client(hello=False) as c:
            await c.send({"type": "hello", "token": one})
            await c.send({"type": "hello", "token": one, "client": {"token": one}})
            await c.send({"type": "prompt", "token": one, "text": 7})
            await c.send_raw(f'{{"type":"hello","token":"{one}')
            await c.send({"type": "ping"})
            await c.until("error")
        sent = {"cookie": f"sid={one}", "origin": server.origin, "authorization": f"Bearer {one}"}
        async with connect(f"{url}?token={one}&access_token={one}", additional_headers=sent, proxy=None) as ws:
            await ws.send(json.dumps({"type": "hello"}))
            await ws.recv()
        with pytest.raises(InvalidStatus):
            async with connect(f"{url}?token={one}", additional_headers=sent | {"origin": "https://e.x"}, proxy=None):
                pass
        for headers in ({"authorization": f"Bearer {one}"}, {"authorization": one}, sent, {"cookie": f"sid={one}"}, {}):
            await server.http("GET", f"/api/sessions?token={one}", headers=headers)
            await server.http("POST", f"/api/sessions/s/prompt?access_token={one}", {"text": 7}, headers=headers)
            await server.http("GET", f"/nowhere?token={one}", headers=headers)
    server.terminate()
    await server.exited()
    log = server.logs()
    assert "authentication-failed" in log
    for one in (good, wrong, SECRET):
        assert one not in log
        assert one[-12:] not in log


async def test_a_token_in_the_address_is_no_token(launch: Launch) -> None:
    server = launch(token="known-token")
    assert (await server.http("GET", "/api/sessions?token=known-token&access_token=known-token")).status == 401
    async with connect(f"ws://127.0.0.1:{server.port}/ws?token=known-token", proxy=None) as ws:
        await ws.send(json.dumps({"type": "hello"}))
        assert json.loads(await ws.recv())["code"] == "unauthorized"


async def test_the_trail_names_failures_refusals_and_deletions(launch: Launch) -> None:
    server = launch(args=("--token", "known-token"))
    session = fresh()
    async with server.client(token="known-token") as c:
        await c.run(session)
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "token": "wrong\nINFO gateway.audit: {}"})
        assert await c.closed() == 4401
    async with server.client(hello=False) as c:
        await c.send({"type": "ping"})
        assert await c.closed() == 4401
    await server.http("GET", "/api/sessions")
    await server.http("GET", "/api/sessions", headers={"origin": "https://evil.example"})
    await server.http("DELETE", f"/api/sessions/{session}", headers={"authorization": "Bearer known-token"})
    entries = trail(server)
    assert [entry["event"] for entry in entries] == [
        "authentication-failed",
        "authentication-failed",
        "authentication-failed",
        "origin-refused",
        "session-deleted",
    ]
    assert {entry["address"] for entry in entries} == {"127.0.0.1"}
    assert entries[3]["origin"] == "https://evil.example"
    assert entries[4]["session_id"] == session
    assert entries[4]["principal"].startswith("token-")


def test_the_config_dump_says_where_each_setting_is_from_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('drain = 3\ncookie_name = "sid"\n')
    done = gateway(
        tmp_path,
        *("config", "--config", "gateway.toml", "--port", "9"),
        GATEWAY_TOKEN="0123-known-token",
        GATEWAY_STORE="postgresql://me:0123-password@db.example/chat",
        GATEWAY_MODEL_URL="https://me:0123-password@model.example/v1?api_key=0123-key",
        OPENAI_API_KEY="0123-openai-key",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "port = 9  # --port" in lines
    assert "drain = 3.0  # gateway.toml" in lines
    assert 'cookie_name = "sid"  # gateway.toml' in lines
    assert 'token = "***"  # GATEWAY_TOKEN' in lines
    assert 'store = "postgresql://me:***@db.example/chat"  # GATEWAY_STORE' in lines
    assert "heartbeat_s = 15.0  # default" in lines
    assert "# jwt_secret is not set" in lines
    assert "0123" not in done.stdout + done.stderr


def test_the_config_dump_is_a_config_file(tmp_path: Path) -> None:
    first = gateway(tmp_path, "config", "--origins", 'https://a.example,"quoted"')
    (tmp_path / "again.toml").write_text(first.stdout)
    again = gateway(tmp_path, "config", "--config", "again.toml")
    assert again.returncode == 0, again.stderr

    def values(text: str) -> list[str]:
        return [line.partition("  # ")[0] for line in text.splitlines()]

    assert values(again.stdout) == values(first.stdout)


@pytest.mark.parametrize("command", [("serve",), ("config",), ("migrate",)])
def test_an_error_about_an_address_hides_its_password(tmp_path: Path, command: tuple[str, ...]) -> None:
    for url in (
        "mysql://me:0123-password@db/x",
        "sqlite://me:0123-password@db/x",
        "sqlite:///x?password=0123-password",
    ):
        done = gateway(tmp_path, *command, "--store", url)
        assert "0123-password" not in done.stdout + done.stderr
        if command != ("config",):
            assert done.returncode == 2


def test_no_credential_is_printed_by_help_or_when_a_flag_is_wrong(tmp_path: Path) -> None:
    done = gateway(tmp_path, "serve", "--port", "none", GATEWAY_TOKEN="0123-token", GATEWAY_JWT_SECRET="0123" * 10)
    assert done.returncode == 2
    assert "0123" not in done.stdout + done.stderr
    assert HERE.name not in done.stderr
