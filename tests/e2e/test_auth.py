"""With `--token`: nobody gets in without it, on the socket or beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.support import Server, agree, fresh

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

ARGS = ("--token", "secret")
SETTINGS = {"hello_timeout": 0.5}
BEARER = {"authorization": "Bearer secret"}


async def test_the_token_in_the_hello_opens_the_connection(server: Server) -> None:
    session = fresh()
    async with server.client(token="secret") as c:
        await c.run(session)
        await agree(server, c, session, **BEARER)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [("ping", {}), ("prompt", {"text": "Hi"}), ("abort", {}), ("attach", {"session_id": "s"}), ("watch", {"on": True})],
)
async def test_any_other_first_command_is_unauthorized_then_4401(
    server: Server, kind: str, fields: dict[str, Any]
) -> None:
    async with server.client(hello=False) as c:
        await c.send({"type": kind, "id": "x-1", **fields})
        error = await c.until("error")
        assert (error["code"], error["id"]) == ("unauthorized", "x-1")
        assert await c.closed() == 4401
        assert [f["type"] for f in c.frames] == ["error"]


@pytest.mark.parametrize("token", [None, "", "wrong", "secret ", "Secret"])
async def test_a_hello_without_the_right_token_is_unauthorized_then_4401(server: Server, token: str | None) -> None:
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "id": "h-1", **({} if token is None else {"token": token})})
        error = await c.until("error")
        assert (error["code"], error["id"]) == ("unauthorized", "h-1")
        assert await c.closed() == 4401
        assert not [f for f in c.frames if f["type"] == "welcome"]


async def test_no_hello_in_time_is_4408(server: Server) -> None:
    async with server.client(hello=False) as c:
        assert await c.closed() == 4408


async def test_bad_frames_do_not_put_off_the_hello(server: Server) -> None:
    async with server.client(hello=False) as c:
        await c.send_raw("nonsense")
        assert await c.closed() in (4408, 4401)


async def test_after_the_hello_its_timeout_is_over(server: Server) -> None:
    async with server.client(token="secret") as c, server.client(hello=False) as late:
        assert await late.closed() == 4408
        await c.barrier()


async def test_a_second_hello_with_the_same_token_is_an_ack(server: Server) -> None:
    async with server.client(token="secret") as c:
        ack = await c.ok("hello", token="secret")
        assert (ack["type"], ack["command"]) == ("ack", "hello")
        await c.barrier()


async def test_a_second_hello_with_a_wrong_token_is_an_error(server: Server) -> None:
    async with server.client(token="secret") as c:
        assert (await c.call("hello", token="wrong"))["code"] in ("unauthorized", "forbidden")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/sessions", None),
        ("GET", "/api/sessions/s", None),
        ("PATCH", "/api/sessions/s", {"title": "x"}),
        ("DELETE", "/api/sessions/s", None),
        ("POST", "/api/sessions/s/prompt", {"text": "Hi"}),
        ("POST", "/api/sessions/s/abort", {}),
    ],
)
@pytest.mark.parametrize("header", [None, "Bearer wrong", "Basic secret", "secret"])
async def test_rest_without_the_bearer_is_401_unauthorized(
    server: Server, method: str, path: str, body: Any, header: str | None
) -> None:
    answer = await server.http(method, path, body, headers={} if header is None else {"authorization": header})
    assert (answer.status, answer.code) == (401, "unauthorized")


async def test_rest_with_the_bearer_works(server: Server) -> None:
    session = fresh()
    answer = await server.http("POST", f"/api/sessions/{session}/prompt", {"text": "Hi"}, headers=BEARER)
    assert answer.status == 202
    assert (await server.http("GET", f"/api/sessions/{session}", headers=BEARER)).status == 200


async def test_health_needs_no_token(server: Server) -> None:
    assert (await server.http("GET", "/healthz")).status == 200
    assert (await server.http("GET", "/readyz")).status == 200


async def test_one_token_is_one_principal_on_socket_and_rest(server: Server) -> None:
    session = fresh()
    async with server.client(token="secret") as a, server.client(token="secret") as b:
        await a.run(session)
        assert (await b.ok("attach", session_id=session))["recovery"] == "snapshot"
        answer = await server.http("GET", f"/api/sessions/{session}", headers=BEARER)
        assert answer.body["session_id"] == session


async def test_the_token_is_in_no_log(server: Server) -> None:
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "token": "another-secret-token"})
        assert await c.closed() == 4401
    async with server.client(token="secret") as c:
        await c.barrier()
    assert "another-secret-token" not in server.logs()


async def test_the_token_can_come_from_the_environment(launch: Launch) -> None:
    server = launch(token="from-the-environment")
    async with server.client(token="from-the-environment") as c:
        await c.barrier()
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "token": "secret"})
        assert await c.closed() == 4401
