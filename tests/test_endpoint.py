"""The socket's rules that need an authenticator of one's own: driven as an ASGI application, without a server."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gateway import CommandError, Gateway, Principal
from gateway.ids import now_ms

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


async def silent(*, abort: asyncio.Event, mode: str, session_id: str, messages: Any) -> AsyncIterator[dict[str, Any]]:
    yield {"type": "text-delta", "text": "…"}
    await abort.wait()


class Tokens:
    """``name`` or ``name:milliseconds``: who it is and how long the token lasts."""

    required = True

    async def authenticate(self, token: str | None) -> Principal:
        if token == "crash":
            raise RuntimeError("the directory is down")
        if token == "banned":
            raise CommandError("forbidden", "banned")
        if token is None:
            raise CommandError("unauthorized", "no token")
        name, _, lasts = token.partition(":")
        return Principal(name, now_ms() + int(lasts) if lasts else None)


class Peer:
    """The other end of an ASGI socket."""

    def __init__(self) -> None:
        self._in: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._out: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._in.put_nowait({"type": "websocket.connect"})

    async def receive(self) -> dict[str, Any]:
        return await self._in.get()

    async def send(self, message: Any) -> None:
        self._out.put_nowait(dict(message))
        if message["type"] == "websocket.close":
            self._in.put_nowait({"type": "websocket.disconnect", "code": message["code"], "reason": ""})

    def say(self, **frame: Any) -> None:
        self._in.put_nowait({"type": "websocket.receive", "text": json.dumps(frame)})

    def leave(self, code: int) -> None:
        self._in.put_nowait({"type": "websocket.disconnect", "code": code, "reason": ""})

    async def hear(self, kind: str) -> dict[str, Any]:
        """The next frame of a type, or the close itself for ``close``."""
        async with asyncio.timeout(5):
            while True:
                message = await self._out.get()
                if message["type"] == "websocket.close":
                    assert kind == "close", message
                    return message
                if "text" in message and (frame := json.loads(message["text"]))["type"] == kind:
                    found: dict[str, Any] = frame
                    return found


@asynccontextmanager
async def serving(tmp_path: Path, **settings: Any) -> AsyncIterator[Gateway]:
    gateway = Gateway(silent, authenticator=Tokens(), store=f"sqlite:///{tmp_path / 'g.db'}", **settings)
    async with gateway.lifespan():
        yield gateway


@asynccontextmanager
async def socket(gateway: Gateway) -> AsyncIterator[Peer]:
    peer = Peer()
    scope = {"type": "websocket", "headers": [], "subprotocols": []}
    serving_it = asyncio.create_task(gateway.endpoint(scope, peer.receive, peer.send))
    yield peer
    peer.leave(1000)
    async with asyncio.timeout(5):
        await serving_it


async def test_a_hello_that_crashes_the_authenticator_acts_for_nobody(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, socket(gateway) as peer:
        peer.say(type="hello", token="crash")
        peer.say(type="prompt", id="p", text="hi", session_id="s")
        assert (await peer.hear("error"))["code"] == "internal"
        assert (await peer.hear("close"))["code"] == 4104
        assert gateway.hub.sessions == {}


async def test_a_forbidden_principal_is_closed_with_4403(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, socket(gateway) as peer:
        peer.say(type="hello", token="banned")
        assert (await peer.hear("error"))["code"] == "forbidden"
        assert (await peer.hear("close"))["code"] == 4403


async def test_a_token_that_expires_ends_the_connection_with_4101_and_the_run_waits(tmp_path: Path) -> None:
    async with serving(tmp_path, disconnect_grace=0) as gateway:
        async with socket(gateway) as peer:
            peer.say(type="hello", token="ann:300")
            assert "auth_expires_at" in await peer.hear("welcome")
            peer.say(type="prompt", id="p", text="hi", session_id="s")
            await peer.hear("text-delta")
            assert (await peer.hear("close"))["code"] == 4101
        # No grace of its own, but 60 s after 4101: the client has to fetch a token first.
        assert gateway.hub.sessions["ann", "s"].status == "running"
        async with socket(gateway) as again:
            again.say(type="hello", token="ann", attach=[{"session_id": "s"}])
            assert (await again.hear("attached"))["status"] == "running"


async def test_a_second_hello_brings_a_new_token_of_the_same_principal_only(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, socket(gateway) as peer:
        peer.say(type="hello", token="ann:100000")
        first = (await peer.hear("welcome"))["auth_expires_at"]
        peer.say(type="hello", id="2", token="ann:900000")
        renewed = await peer.hear("ack")
        assert (renewed["id"], renewed["command"]) == ("2", "hello")
        assert renewed["auth_expires_at"] > first
        peer.say(type="hello", id="3", token="bob")
        assert (await peer.hear("error"))["code"] == "forbidden"


async def test_another_principals_session_is_not_found(tmp_path: Path) -> None:
    async with serving(tmp_path) as gateway, socket(gateway) as ann, socket(gateway) as bob:
        ann.say(type="hello", token="ann")
        ann.say(type="prompt", text="hi", session_id="s")
        await ann.hear("text-delta")
        bob.say(type="hello", token="bob")
        for command in (
            {"type": "attach"},
            {"type": "abort"},
            {"type": "resume"},
            {"type": "history"},
            {"type": "respond", "request_id": "r", "decision": "allow"},
        ):
            bob.say(**command, session_id="s")
            assert (await bob.hear("error"))["code"] == "session_not_found"
        assert gateway.hub.sessions["ann", "s"].status == "running"
