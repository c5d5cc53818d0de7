"""Senders that leave within a body: by themselves, or cut off for dribbling it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from gateway import Gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/api/sessions/s/prompt"), ("POST", "/api/sessions/s/abort"), ("PATCH", "/api/sessions/s")],
)


async def echo(*, abort: Any, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "text-delta", "text": "here"}


async def leave(tmp_path: Path, method: str, path: str) -> None:
    """Begin a body, and go."""
    said: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return said.pop(0)

    async def send(message: Any) -> None:
        pass

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
    }
    app = Gateway(echo, store=f"sqlite:///{tmp_path / 'g.db'}")
    async with app.lifespan():
        await app.asgi(scope, receive, send)


async def test_who_leaves_within_a_body_is_no_fault_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    await leave(tmp_path, method, path)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
