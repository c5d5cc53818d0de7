"""`--cookie-name`: a cookie may carry the token, from our own pages and from nobody else's."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.e2e.support import Server, fresh

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

ARGS = ("--token", "alice,bob", "--cookie-name", "__Host-gateway")
SETTINGS = {"origins": "https://app.example"}
COOKIE = "theme=dark; __Host-gateway=alice; lang=de"
OWN = "own"


def headers(server: Server, origin: str | None, cookie: str | None = COOKIE) -> dict[str, str]:
    made = {} if cookie is None else {"cookie": cookie}
    if origin is not None:
        made["origin"] = server.origin if origin == OWN else origin
    return made


async def hello(server: Server, sent: dict[str, str], **fields: Any) -> dict[str, Any]:
    """The answer to a hello over a socket that was opened with these headers."""
    url = f"ws://127.0.0.1:{server.port}/ws"
    async with connect(url, additional_headers=sent, proxy=None, compression=None) as ws:
        await ws.send(json.dumps({"type": "hello", **fields}))
        answer: dict[str, Any] = json.loads(await ws.recv())
        if answer["type"] == "error":
            with pytest.raises(ConnectionClosed) as caught:
                await ws.recv()
            assert caught.value.rcvd is not None
            answer["closed"] = caught.value.rcvd.code
        return answer


@pytest.mark.parametrize("origin", [OWN, "https://app.example"])
async def test_our_own_page_and_a_named_one_need_no_other_token(server: Server, origin: str) -> None:
    assert (await hello(server, headers(server, origin)))["type"] == "welcome"


async def test_a_client_that_is_no_browser_cannot_use_the_cookie(server: Server) -> None:
    answer = await hello(server, headers(server, None))
    assert (answer["code"], answer["closed"]) == ("unauthorized", 4401)


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "https://app.example.evil.example"])
async def test_a_strange_page_is_refused_at_the_handshake(server: Server, origin: str) -> None:
    with pytest.raises(InvalidStatus) as caught:
        await hello(server, headers(server, origin))
    assert caught.value.response.status_code == 403


async def test_a_star_lets_no_page_use_the_cookie(launch: Launch) -> None:
    server = launch(args=ARGS, origins="*")
    answer = await hello(server, headers(server, "https://evil.example"))
    assert (answer["code"], answer["closed"]) == ("unauthorized", 4401)
    assert (await hello(server, headers(server, "https://evil.example"), token="alice"))["type"] == "welcome"
    assert (await hello(server, headers(server, OWN)))["type"] == "welcome"
    sent = headers(server, "https://e.x")
    assert (await server.http("POST", "/api/sessions/s/prompt", {"text": "Hi"}, headers=sent)).status == 401


@pytest.mark.parametrize(
    "cookie",
    [
        None,
        "",
        "__Host-gateway=",
        "__Host-gateway=mallory",
        "x__Host-gateway=alice",
        "__Host-gateway=mallory; __Host-gateway=alice",
        "__Host-gateway=alice; __Host-gateway=mallory",
    ],
)
async def test_a_wrong_or_a_planted_cookie_is_none(server: Server, cookie: str | None) -> None:
    answer = await hello(server, headers(server, OWN, cookie))
    assert (answer["code"], answer["closed"]) == ("unauthorized", 4401)
    assert (await server.http("GET", "/api/sessions", headers=headers(server, OWN, cookie))).status == 401


async def test_a_token_in_the_hello_or_header_is_taken_before_the_cookie(server: Server) -> None:
    session = fresh()
    async with server.client(token="bob") as c:
        await c.run(session)
    both = headers(server, OWN) | {"authorization": "Bearer bob"}
    assert (await server.http("GET", f"/api/sessions/{session}", headers=both)).status == 200
    assert (await server.http("GET", f"/api/sessions/{session}", headers=headers(server, OWN))).status == 404
    both = headers(server, OWN) | {"authorization": "Bearer wrong"}
    assert (await server.http("GET", "/api/sessions", headers=both)).status == 401
    assert (await hello(server, headers(server, OWN), token="wrong"))["closed"] == 4401


async def test_what_changes_something_needs_the_origin_and_what_reads_does_not(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as c:
        await c.run(session)
    path = f"/api/sessions/{session}"
    changes: list[tuple[str, str, Any]] = [
        ("POST", f"{path}/prompt", {"text": "Hi"}),
        ("POST", f"{path}/abort", {}),
        ("PATCH", path, {"title": "x"}),
        ("DELETE", path, None),
    ]
    for method, where, body in changes:
        for origin, status in ((None, 401), ("https://evil.example", 403), ("null", 403)):
            answer = await server.http(method, where, body, headers=headers(server, origin))
            assert answer.status == status, (method, where, origin)
    assert (await server.http("GET", path, headers=headers(server, None))).status == 200
    assert (await server.http("GET", path, headers=headers(server, "https://evil.example"))).status == 403
    for method, where, body in changes:
        assert (await server.http(method, where, body, headers=headers(server, OWN))).status < 300
