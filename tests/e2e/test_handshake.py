"""The handshake and the hello."""

from __future__ import annotations

import pytest
from websockets.exceptions import InvalidStatus

from tests.e2e.support import V1, Server, fresh


async def test_the_subprotocol_is_chosen_when_offered(server: Server) -> None:
    async with server.client() as c:
        assert c.ws.subprotocol == V1


async def test_the_subprotocol_is_chosen_among_unknown_ones(server: Server) -> None:
    async with server.client(subprotocols=["something.v9", V1]) as c:
        assert c.ws.subprotocol == V1


async def test_a_client_that_offers_none_is_served_v1(server: Server) -> None:
    async with server.client(subprotocols=None) as c:
        assert c.ws.subprotocol is None
        assert c.welcome["protocol"] == 1
        await c.run(fresh())


async def test_a_client_that_offers_only_unknown_ones_is_refused_with_400_and_the_known_ones(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await server.client(subprotocols=["agent-gateway.v999", "graphql-ws"]).open()
    assert refused.value.response.status_code == 400
    assert V1 in refused.value.response.body.decode()


async def test_a_foreign_origin_is_refused_at_the_handshake(server: Server) -> None:
    with pytest.raises(InvalidStatus) as refused:
        await server.client(origin="https://evil.example").open()
    assert 400 <= refused.value.response.status_code < 500


@pytest.mark.parametrize("origin", ["null", "http://127.0.0.1:1", "http://127.0.0.1.evil.example"])
async def test_an_origin_that_only_looks_alike_is_refused(server: Server, origin: str) -> None:
    with pytest.raises(InvalidStatus):
        await server.client(origin=origin).open()


async def test_the_same_origin_is_accepted(server: Server) -> None:
    async with server.client(origin=server.origin) as c:
        await c.barrier()


async def test_no_origin_is_accepted(server: Server) -> None:
    async with server.client(origin=None) as c:
        await c.barrier()


async def test_welcome_says_protocol_connection_server_heartbeat_and_limits(server: Server) -> None:
    async with server.client(hello=False) as c:
        welcome = await c.call("hello", id="h-1", client="tests", batch=False)
        assert welcome["type"] == "welcome"
        assert welcome["id"] == "h-1"
        assert welcome["protocol"] == 1
        assert isinstance(welcome["connection_id"], str)
        assert welcome["connection_id"]
        assert welcome["server"]
        assert welcome["heartbeat_s"] == 15
        assert {"max_frame_bytes", "max_sessions", "commands_per_s"} <= set(welcome["limits"])
        assert c.frames[0] == welcome, "before welcome only an error may come"


async def test_each_connection_has_its_own_id(server: Server) -> None:
    async with server.client() as a, server.client() as b:
        assert a.welcome["connection_id"] != b.welcome["connection_id"]


async def test_hello_without_an_id_is_welcomed_without_one(server: Server) -> None:
    async with server.client(hello=False) as c:
        await c.send({"type": "hello"})
        assert (await c.until("welcome")).get("id") is None


@pytest.mark.parametrize("first", ["ping", "prompt"])
async def test_any_other_first_command_implies_an_empty_hello(server: Server, first: str) -> None:
    async with server.client(hello=False) as c:
        reply = await c.ok(first, **({} if first == "ping" else {"text": "Hi"}))
        assert reply["type"] == ("pong" if first == "ping" else "ack")
        assert not any(f["type"] == "error" for f in c.frames)
        if any(f["type"] == "welcome" for f in c.frames):
            assert c.frames[0]["type"] == "welcome", "nothing but an error comes before welcome"


async def test_a_second_hello_without_a_token_is_an_error_and_the_connection_stays(server: Server) -> None:
    async with server.client() as c:
        assert (await c.call("hello", batch=True))["type"] == "error"
        await c.barrier()


async def test_the_attaches_of_a_hello_are_answered_in_order(server: Server) -> None:
    one, two, absent = fresh(), fresh(), fresh()
    async with server.client() as c:
        await c.run(one)
        await c.run(two)
    wanted = [{"session_id": two}, {"session_id": absent}, {"session_id": one, "seq": 0, "role": "observer"}]
    async with server.client(attach=wanted) as c:
        first = await c.until("attached")
        snapshot = await c.until("snapshot", session_id=two)
        assert (first["session_id"], first["recovery"]) == (two, "snapshot")
        assert snapshot["seq"] == first["seq"]
        third = await c.until("attached", session_id=one)
        assert (third["recovery"], third["role"]) == ("replay", "observer")
        answers = [f for f in c.frames if f["type"] in ("attached", "error")]
        assert [f["session_id"] for f in answers] == [two, absent, one]
        assert answers[1]["code"] == "session_not_found"
        assert c.frames[0]["type"] == "welcome"


async def test_a_hello_with_a_wrong_field_names_it(server: Server) -> None:
    async with server.client(hello=False) as c:
        reply = await c.fails("invalid", "hello", attach="not a list")
        assert "attach" in reply["message"]
