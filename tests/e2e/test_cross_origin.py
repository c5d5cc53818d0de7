"""Pages of `--origins` read what HTTP answers them; nobody else's do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import fresh

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

APP = "https://app.example"
EVIL = "https://evil.example"
WHO_MAY_READ = "access-control-allow-origin"
WITH_COOKIES = "access-control-allow-credentials"


def preflight(origin: str, method: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
    }


async def test_a_named_origin_reads_answers_and_errors(launch: Launch) -> None:
    server = launch(origins=APP)
    session = fresh()
    async with server.client() as c:
        await c.run(session)
    for path, status in ((f"/ai/{session}", 200), ("/api/sessions", 200), ("/api/sessions/none", 404)):
        answer = await server.http("GET", path, headers={"origin": APP})
        assert (answer.status, answer.headers.get(WHO_MAY_READ)) == (status, APP), path
        assert "Origin" in answer.headers["vary"]
        assert WITH_COOKIES not in answer.headers


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
async def test_a_named_origin_may_send_a_token_and_json(launch: Launch, method: str) -> None:
    server = launch(origins=APP)
    asked = await server.http("OPTIONS", "/api/sessions/s", headers=preflight(APP, method))
    assert (asked.status, asked.headers.get(WHO_MAY_READ)) == (200, APP)
    strange = await server.http("OPTIONS", "/api/sessions/s", headers=preflight(EVIL, method))
    assert strange.status == 400
    assert WHO_MAY_READ not in strange.headers


@pytest.mark.parametrize("origins", ["", APP])
async def test_a_strange_origin_reads_nothing(launch: Launch, origins: str) -> None:
    server = launch(origins=origins)
    answer = await server.http("GET", "/api/sessions", headers={"origin": EVIL})
    assert answer.status == 403
    assert WHO_MAY_READ not in answer.headers


async def test_cookies_are_for_named_origins_only(launch: Launch) -> None:
    args = ("--token", "alice", "--cookie-name", "__Host-gateway")
    cookie = {"cookie": "__Host-gateway=alice"}
    named = await launch(args=args, origins=APP).http("GET", "/api/sessions", headers={"origin": APP, **cookie})
    assert (named.status, named.headers.get(WHO_MAY_READ), named.headers.get(WITH_COOKIES)) == (200, APP, "true")
    anybody = await launch(args=args, origins="*").http("GET", "/api/sessions", headers={"origin": EVIL, **cookie})
    assert (anybody.headers.get(WHO_MAY_READ), anybody.headers.get(WITH_COOKIES)) == ("*", None)
