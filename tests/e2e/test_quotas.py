"""What one principal, one address, one session and one run may take, and what it hears when it wants more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.e2e.support import Server, fresh, spec

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

ARGS = ("--token", "alice,bob")
SETTINGS = {
    "max_connections_per_principal": 3,
    "max_connections_per_address": 2,
    "max_runs_per_principal": 2,
    "max_runs": 3,
    "max_prompt_bytes": 1000,
    "max_session_messages": 4,
}
ALICE = {"authorization": "Bearer alice"}


async def test_one_connection_too_many_is_rate_limited_then_4105(server: Server) -> None:
    async with server.client(token="alice"), server.client(token="alice"):
        async with server.client(token="alice"):
            async with server.client(hello=False) as c:
                await c.send({"type": "hello", "id": "h", "token": "alice"})
                error = await c.reply("h")
                assert (error["code"], error["retryable"]) == ("rate_limited", True)
                assert error["retry_after_s"] > 0
                assert await c.closed() == 4105
            async with server.client(token="bob") as other:
                await other.barrier()
        # Its place is free once the server has seen the end of it, which the client need not wait for.
        async with asyncio.timeout(20):
            while not await let_in(server, "alice"):
                pass


async def let_in(server: Server, token: str) -> bool:
    async with server.client(hello=False) as c:
        await c.send({"type": "hello", "token": token})
        return bool((await c.next())["type"] == "welcome")


async def test_who_is_not_let_in_takes_nobodys_place(server: Server) -> None:
    for _ in range(5):
        async with server.client(hello=False) as c:
            await c.send({"type": "hello", "token": "wrong"})
            assert await c.closed() == 4401
    async with server.client(token="alice") as c:
        await c.barrier()


async def test_one_address_too_many_is_429_at_the_handshake(server: Server) -> None:
    """The proxy's header is believed where it comes from this machine."""

    def dial(address: str) -> connect:
        url = f"ws://127.0.0.1:{server.port}/ws"
        return connect(url, additional_headers={"x-forwarded-for": address}, proxy=None, compression=None)

    async with dial("192.0.2.7"), dial("192.0.2.7"):
        with pytest.raises(InvalidStatus) as caught:
            async with dial("192.0.2.7"):
                pass
        assert caught.value.response.status_code == 429
        assert caught.value.response.headers["retry-after"] == "1"
        async with dial("192.0.2.8"):
            pass
    # Its places are free once the server has seen the end of them.
    async with asyncio.timeout(20):
        while not await opens(dial("192.0.2.7")):
            pass


async def opens(dialled: connect) -> bool:
    try:
        async with dialled:
            return True
    except InvalidStatus as refused:
        if refused.response.status_code != 429:
            raise
        return False


async def test_this_machines_own_address_is_not_counted(server: Server) -> None:
    async with (
        server.client(hello=False),
        server.client(hello=False),
        server.client(hello=False),
        server.client(token="alice") as c,
    ):
        await c.barrier()


async def test_one_run_too_many_is_rate_limited_until_one_ends(server: Server) -> None:
    one, two, three = fresh(), fresh(), fresh()
    async with server.client(token="alice") as alice, server.client(token="bob") as bob:
        await alice.holding(one)
        await alice.holding(two)
        error = await alice.fails("rate_limited", "prompt", session_id=three, text="Hi")
        assert (error["retryable"], error["retry_after_s"]) == (True, 1.0)
        answer = await server.http("POST", f"/api/sessions/{three}/prompt", {"text": "Hi"}, headers=ALICE)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "rate_limited", "1")
        await alice.ok("prompt", session_id=one, text="later", on_busy="queue")  # takes the place of the one before
        await bob.holding(fresh())
        await bob.fails("rate_limited", "prompt", text="Hi")  # three in all
        await alice.ok("abort", session_id=two)
        await alice.until("run-finish", session_id=two)
        assert (await alice.run(three))["status"] == "completed"
        await alice.ok("abort", session_id=one)
        await alice.until("run-finish", session_id=one)
        await bob.ok("abort")


async def test_a_refused_prompt_leaves_no_session_behind(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as c:
        await c.fails("too_large", "prompt", session_id=session, text="x" * 1001)
        await c.fails("session_not_found", "attach", session_id=session)
        parts = [{"type": "text", "text": "é" * 600}]
        await c.fails("too_large", "prompt", session_id=session, messages=[{"role": "user", "parts": parts}])
        assert (await c.run(session, "x" * 1000))["status"] == "completed"


async def test_a_full_session_is_too_large_until_something_is_replaced(server: Server) -> None:
    session = fresh()
    async with server.client(token="alice") as c:
        await c.run(session)
        first = c.view(session).fold.messages[0]["id"]
        await c.run(session)
        error = await c.fails("too_large", "prompt", session_id=session, text="Hi")
        assert error["retryable"] is False
        finish = await c.run(session, "again", replaces=first)
        assert finish["status"] == "completed"
        assert len((await server.snapshot(session, **ALICE))["messages"]) == 2


async def test_a_run_that_says_too_much_is_stopped_by_policy(launch: Launch) -> None:
    server = launch(max_run_bytes=100_000)
    session = fresh()
    async with server.client() as c:
        finish = await c.run(session, spec("flood", events=1000, bytes=1000))
        assert (finish["status"], finish["reason"]) == ("aborted", "policy")
        asked = next(e for e in c.events(session) if e["type"] == "abort-requested")
        assert "100000 bytes" in asked["detail"]
        said = sum(1000 for e in c.events(session) if e["type"] == "tool-progress")
        assert 0 < said <= 110_000
        assert (await c.run(session))["status"] == "completed"


async def test_a_run_without_a_deadline_has_the_servers_and_none_is_longer_than_its_longest(launch: Launch) -> None:
    server = launch(run_deadline=0.2, max_run_deadline=0.4)
    async with server.client() as c:
        for fields in ({}, {"deadline_s": 600}):
            finish = await c.run(fresh(), spec("hold"), **fields)
            assert (finish["status"], finish["reason"]) == ("aborted", "deadline")


async def test_without_authentication_nobody_has_to_share_a_principals_limits(launch: Launch) -> None:
    server = launch(max_connections_per_principal=1, max_runs_per_principal=1)
    async with server.client() as a, server.client() as b:
        await a.holding(fresh())
        await b.holding(fresh())
        await a.ok("abort")
        await b.ok("abort")
