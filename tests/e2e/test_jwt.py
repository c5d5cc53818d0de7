"""`--jwt-…` on a real server, with an issuer of one's own on loopback."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import RSAAlgorithm

from tests.e2e.support import Server, fresh, spec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.conftest import Launch

SECRET = "a-secret-of-at-least-thirty-two-bytes"
ARGS = ("--jwt-audience", "chat", "--jwt-issuer", "https://issuer.example", "--jwt-leeway", "0")
SETTINGS = {"jwt_secret": SECRET, "hello_timeout": 2}
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def token(name: str = "ann", *, lasts: float = 60, key: Any = SECRET, algorithm: str = "HS256", **more: Any) -> str:
    claims = {"sub": name, "aud": "chat", "iss": "https://issuer.example", "exp": time.time() + lasts, **more}
    return jwt.encode(claims, key, algorithm, headers={"kid": "one"})


class Issuer(ThreadingHTTPServer):
    """Serves a key set; a test takes it down and up."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.up = True
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/jwks"


class Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(200 if self.server.up else 500)
        self.end_headers()
        key = RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "one", "use": "sig"}
        self.wfile.write(json.dumps({"keys": [key]}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_token_opens_socket_and_rest_for_its_subject(server: Server) -> None:
    session = fresh()
    async with server.client(token=token()) as c:
        assert c.welcome["auth_expires_at"] > time.time() * 1000
        await c.run(session)
    mine = {"authorization": f"Bearer {token()}"}
    assert (await server.http("GET", f"/api/sessions/{session}", headers=mine)).status == 200
    other = {"authorization": f"Bearer {token('bob')}"}
    assert (await server.http("GET", f"/api/sessions/{session}", headers=other)).code == "session_not_found"


@pytest.mark.parametrize(
    "wrong",
    [
        {"lasts": -1},
        {"aud": "mail"},
        {"iss": "https://evil.example"},
        {"key": SECRET.replace("a", "b")},
        {"sub": 7},
    ],
)
async def test_a_wrong_token_is_unauthorized_then_4401(server: Server, wrong: dict[str, Any]) -> None:
    made = token(**wrong) if "sub" not in wrong else jwt.encode({"aud": "chat", **wrong}, SECRET, "HS256")
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "id": "h", "token": made})
        error = await c.reply("h")
        assert (error["code"], error["retryable"]) == ("unauthorized", False)
        assert made not in error["message"]
        assert await c.closed() == 4401
    answer = await server.http("GET", "/api/sessions", headers={"authorization": f"Bearer {made}"})
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")


async def test_a_later_token_on_the_open_socket_keeps_it_and_its_run(server: Server) -> None:
    session = fresh()
    async with server.client(token=token(lasts=2)) as c:
        ack = await c.holding(session)
        before = c.welcome["auth_expires_at"]
        renewed = await c.ok("hello", token=token(lasts=60))
        assert renewed["auth_expires_at"] > before
        await c.fails("forbidden", "hello", token=token("bob"))
        await c.fails("unauthorized", "hello", token=token(lasts=-1))
        while time.time() * 1000 < before + 500:
            await c.barrier()
        done = await c.ok("abort", session_id=session)
        assert [run["run_id"] for run in done["runs"]] == [ack["run_id"]]


async def test_without_one_the_socket_ends_with_4101_and_the_run_waits_for_its_owner(server: Server) -> None:
    session = fresh()
    async with server.client(token=token(lasts=1)) as c:
        await c.prompt(session, spec("hold"))
        assert await c.closed() == 4101
    async with server.client(token=token()) as c:
        attached = await c.ok("attach", session_id=session)
        assert attached["status"] == "running"
        await c.ok("abort", session_id=session)


async def test_a_public_key_in_a_file(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    server = launch(jwt_key=path)
    async with server.client(token=token(key=KEY, algorithm="RS256")) as c:
        await c.barrier()
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "token": token()})
        assert await c.closed() == 4401


async def test_an_issuer_that_is_down_costs_a_close_that_says_come_back(launch: Launch, issuer: Issuer) -> None:
    issuer.up = False
    server = launch(jwt_jwks=issuer.url)
    made = token(key=KEY, algorithm="RS256")
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "id": "h", "token": made})
        error = await c.reply("h")
        assert (error["code"], error["retryable"]) == ("internal", True)
        assert "issuer" in error["message"]
        assert error["retry_after_s"] > 0
        assert await c.closed() == 4104
    answer = await server.http("GET", "/api/sessions", headers={"authorization": f"Bearer {made}"})
    assert (answer.status, answer.code) == (503, "internal")
    assert int(answer.headers["retry-after"]) > 0
    assert "HTTP 500" in server.stderr()


async def test_an_issuers_keys_are_kept_while_it_is_down(launch: Launch, issuer: Issuer) -> None:
    server = launch(jwt_jwks=issuer.url)
    async with server.client(token=token(key=KEY, algorithm="RS256")) as c:
        issuer.up = False
        await c.ok("hello", token=token(key=KEY, algorithm="RS256"))
    async with server.client(token=token(key=KEY, algorithm="RS256")) as c:
        await c.barrier()
    assert issuer.asked == 1


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"jwt_secret": "short"}, "32 bytes"),
        ({"jwt_key": "/nowhere/key.pem"}, "cannot read"),
        ({"jwt_jwks": "ftp://issuer"}, "https"),
        ({"jwt_secret": SECRET, "jwt_algorithms": "RS256"}, "does not fit"),
        ({"jwt_secret": SECRET, "token": "x"}, "choose one"),
    ],
)
def test_a_setting_that_cannot_be_costs_one_line(launch: Launch, settings: dict[str, Any], why: str) -> None:
    server = launch(start=False, **settings)
    server.spawn()
    assert server.exit_code() == 2
    assert why in server.stderr()
    assert len(server.stderr().splitlines()) == 1
    assert SECRET not in server.stderr()
