"""The headers on every answer, and the page's policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from gateway.headers import HEADERS, NOTHING, page_policy
from tests.e2e.support import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATHS = ["/", "/api/sessions", "/api/sessions/none", "/healthz", "/readyz", "/ws", "/nowhere", "/api/sessions?limit=x"]


@pytest.mark.parametrize(
    "host", ["example.com", "example.com:8000", "127.0.0.1:1", "[::1]:8000", "xn--bcher-kva.example", "EXAMPLE.com"]
)
def test_the_page_may_open_its_own_socket(host: str) -> None:
    assert f"connect-src 'self' ws://{host} wss://{host};".encode() in page_policy(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "*",
        "evil.example; script-src *",
        "a b",
        "a\r\nx: y",
        "a,b",
        "'self'",
        "a/b",
        "*.example",
        "a:b",
        "[::1",
    ],
)
def test_a_strange_host_adds_nothing_to_the_policy(host: str | None) -> None:
    assert b"connect-src 'self';" in page_policy(host)
    assert page_policy(host) == page_policy(None)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path, env={"GATEWAY_TOKEN": "known-token"})
    try:
        yield started.start()
    finally:
        started.close()


async def test_every_answer_has_them(server: Server) -> None:
    for path in PATHS:
        for method in ("GET", "POST", "DELETE"):
            answer = await server.http(method, path)
            for name, value in HEADERS.items():
                assert answer.headers[name.decode()] == value.decode(), (method, path, name)
            policy = answer.headers["content-security-policy"]
            page = answer.headers.get("content-type", "").startswith("text/html")
            assert (policy == NOTHING.decode()) is not page, (method, path)
            assert "access-control-allow-origin" not in answer.headers
