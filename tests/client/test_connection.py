"""The client against a server that the test plays."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest

from gateway.client import Closed, CommandError, Gateway, Session, Unreachable, connect
from gateway.client.backoff import Backoff
from tests.client.scripted_server import Conversation, Frame, ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


async def no_sleep(delay: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as scripted:
        yield scripted


def client(server: ScriptedServer, **options: Any) -> Gateway:
    return connect(server.url, sleep=no_sleep, backoff=Backoff(rand=lambda: 0.0), **options)


async def both(client: Coroutine[Any, Any, Any], server: Coroutine[Any, Any, Any]) -> Any:
    """Run both sides of an exchange; gives what the client got."""
    async with asyncio.TaskGroup() as group:
        mine = group.create_task(client)
        group.create_task(server)
    return mine.result()


class Peer:
    """Both ends: the client under test, and the test's end of its socket."""

    def __init__(self, gateway: Gateway, conversation: Conversation) -> None:
        self.gateway = gateway
        self.server = conversation

    async def prompted(self, session: Session, **options: Any) -> Frame:
        """Let the session prompt, and start run ``r`` at seq 1 to 3; gives the prompt."""
        frame: Frame = {}

        async def answer() -> None:
            frame.update(await self.server.recv())
            await self.server.send(
                {"type": "ack", "id": frame["id"], "command": "prompt", "session_id": session.id, "run_id": "r"},
                attached(session, 0),
                event(session, 1, "run-start", mode="prompt"),
                event(session, 2, "message-start", message_id="m", role="assistant"),
                event(session, 3, "text-start", message_id="m", part_id="p"),
            )

        ack = await both(session.prompt("hi", **options), answer())
        assert ack["run_id"] == "r"
        return frame


def attached(session: Session, seq: int, recovery: str = "live", **fields: Any) -> Frame:
    return {
        "type": "attached",
        "session_id": session.id,
        "epoch": "e",
        "seq": seq,
        "recovery": recovery,
        "status": "idle",
        "role": "owner",
        **fields,
    }


def event(session: Session, seq: int, type_: str, **fields: Any) -> Frame:
    return {"type": type_, "session_id": session.id, "seq": seq, "run_id": "r", "time": 1, **fields}


def said(session: Session, seq: int, text: str) -> Frame:
    return event(session, seq, "text-delta", message_id="m", part_id="p", text=text)


def finish(session: Session, seq: int) -> Frame:
    return event(session, seq, "run-finish", status="completed", reason=None, error=None, settled=True)


@pytest.fixture
async def peer(server: ScriptedServer) -> AsyncIterator[Peer]:
    gateway = client(server)
    conversation: list[Conversation] = []

    async def welcome() -> None:
        conversation.append(await server.accept())
        await conversation[0].welcome()

    await both(gateway.__aenter__(), welcome())
    yield Peer(gateway, conversation[0])
    await gateway.close()


async def next_conversation(server: ScriptedServer) -> tuple[Conversation, Frame]:
    conversation = await server.accept()
    return conversation, await conversation.welcome()


async def test_says_hello_and_is_open_once_welcomed(server: ScriptedServer) -> None:
    heard: list[str] = []
    gateway = client(server, token="t", client={"name": "x"}, on_status=heard.append)
    hellos: list[Frame] = []

    async def welcome() -> None:
        hellos.append((await next_conversation(server))[1])

    await both(gateway.__aenter__(), welcome())
    assert gateway.status == "open"
    await gateway.close()
    assert hellos == [{"type": "hello", "batch": True, "attach": [], "token": "t", "client": {"name": "x"}}]
    assert heard == ["open", "closed"]


async def test_leaving_closes_on_purpose(peer: Peer) -> None:
    assert await both(peer.server.closed(), peer.gateway.close()) == 1000
    assert peer.gateway.closed is not None
    with pytest.raises(Closed):
        await peer.gateway.session("s").prompt("late")


async def test_a_server_that_is_not_there_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="no gateway at"):
        async with connect("ws://127.0.0.1:9/ws"):
            pass


async def test_an_address_that_is_none_is_unreachable() -> None:
    with pytest.raises(Unreachable, match="WebSocket address"):
        async with connect("not a url"):
            pass


async def test_a_refusal_tells_why(server: ScriptedServer) -> None:
    async def refuse() -> None:
        conversation = await server.accept()
        await conversation.recv()
        await conversation.send({"type": "error", "code": "unauthorized", "message": "bad token", "retryable": False})
        await conversation.close(4401, "unauthenticated")

    with pytest.raises(ExceptionGroup) as caught:
        await both(client(server).__aenter__(), refuse())
    (error,) = caught.value.exceptions
    assert isinstance(error, Closed)
    assert (error.code, error.reason) == (4401, "bad token")


async def test_reads_a_run_to_its_end(peer: Peer) -> None:
    session = peer.gateway.session()
    prompt = await peer.prompted(session, on_busy="queue", grace_s=1)
    assert {name: prompt[name] for name in ("type", "text", "on_busy", "grace_s", "session_id")} == {
        "type": "prompt",
        "text": "hi",
        "on_busy": "queue",
        "grace_s": 1,
        "session_id": session.id,
    }
    assert "deadline_s" not in prompt
    await peer.server.send(said(session, 4, "Hel"), said(session, 5, "lo"), finish(session, 6))
    seen = [frame async for frame in session.events(until="r")]
    assert [frame["seq"] for frame in seen] == [1, 2, 3, 4, 5, 6]
    assert session.state.messages[-1]["parts"][0]["text"] == "Hello"
    assert session.state.status == "idle"


async def test_a_refused_command_raises_its_error(peer: Peer) -> None:
    async def refuse() -> None:
        frame = await peer.server.recv()
        await peer.server.send(
            {
                "type": "error",
                "id": frame["id"],
                "code": "rate_limited",
                "message": "slow",
                "retryable": True,
                "retry_after_s": 2,
            }
        )

    with pytest.raises(ExceptionGroup) as caught:
        await both(peer.gateway.session("s").resume(), refuse())
    (error,) = caught.value.exceptions
    assert isinstance(error, CommandError)
    assert (error.code, error.retry_after_s, error.retryable) == ("rate_limited", 2, True)


async def test_every_command_says_what_it_should(peer: Peer) -> None:
    session = peer.gateway.session("s")

    async def exchange(call: Coroutine[Any, Any, Any], reply: Frame) -> tuple[Frame, Any]:
        sent: Frame = {}

        async def answer() -> None:
            sent.update(await peer.server.recv())
            await peer.server.send({"session_id": "s", **reply, "id": sent["id"]})

        result = await both(call, answer())
        del sent["id"]
        return sent, result

    ack = {"type": "ack", "command": "x"}
    runs = [{"session_id": "s", "run_id": "r", "state": "requested"}]
    assert await exchange(session.abort(reason="no"), ack | {"runs": runs}) == (
        {"type": "abort", "session_id": "s", "reason": "no"},
        runs,
    )
    sent, _ = await exchange(session.respond("q", "allow", {"n": 1}), ack)
    assert sent == {
        "type": "respond",
        "session_id": "s",
        "request_id": "q",
        "decision": "allow",
        "value": {"n": 1},
    }
    page = {"type": "history", "messages": [], "has_more": False}
    sent, got = await exchange(session.history("m9", 10), page)
    assert sent == {"type": "history", "session_id": "s", "before": "m9", "limit": 10}
    assert got["has_more"] is False
    sent, got = await exchange(session.attach("observer"), attached(session, 3, role="observer"))
    assert sent == {"type": "attach", "session_id": "s", "role": "observer"}
    assert session.state.role == "observer"
    sent, _ = await exchange(session.detach(abort=True), ack)
    assert sent == {"type": "detach", "session_id": "s", "run": "abort"}
    assert [frame async for frame in session.events()] == []


async def test_comes_back_and_goes_on_where_it_was(peer: Peer, server: ScriptedServer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    await peer.server.send(said(session, 4, "a"))
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 4:
            pass
        peer.server.cut()
        again, hello = await next_conversation(server)
        assert hello["attach"] == [{"session_id": "s", "role": "owner", "epoch": "e", "seq": 4}]
        await again.send(said(session, 5, "ignored: before the attached"))
        await again.send(attached(session, 5, "replay"), said(session, 4, "a"), said(session, 5, "b"))
        assert (await anext(events))["text"] == "b"
    assert session.state.messages[-1]["parts"][0]["text"] == "ab"


async def test_a_subscription_refused_for_now_is_tried_again_when_the_server_said(
    peer: Peer, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    async def sleep(delay: float) -> None:
        slept.append(delay)

    monkeypatch.setattr(peer.gateway, "_sleep", sleep)
    monkeypatch.setattr(peer.gateway, "_backoff", Backoff(base=1, cap=4, rand=lambda: 1.0))
    session = peer.gateway.session("s")
    await peer.prompted(session)
    refusal = {"type": "error", "session_id": "s", "code": "store_unavailable", "message": "down", "retryable": True}
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 3:
            pass
        peer.server.cut()
        again, hello = await next_conversation(server)
        assert [target["seq"] for target in hello["attach"]] == [3]
        slept.clear()
        await again.send(refusal | {"retry_after_s": 2.5})
        for _ in range(4):
            attach = await again.recv()
            assert {**attach, "id": ""} == {"type": "attach", "id": "", **hello["attach"][0]}
            await again.send(refusal | {"id": attach["id"]})
        attach = await again.recv()
        await again.send(attached(session, 4, "replay", id=attach["id"]), said(session, 4, "a"))
        assert (await anext(events))["text"] == "a"
        assert slept == [2.5 + 1, 2, 4, 4, 4], "what the server said, and a backoff with a bound"


async def test_a_subscription_refused_for_good_ends(peer: Peer, server: ScriptedServer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 3:
            pass
        peer.server.cut()
        again, _ = await next_conversation(server)
        await again.send({"type": "error", "session_id": "s", "code": "forbidden", "message": "", "retryable": False})
        with pytest.raises(CommandError) as caught:
            await anext(events)
        assert caught.value.code == "forbidden"


async def test_an_attach_that_waits_for_its_time_leaves_with_the_client(
    peer: Peer, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    peer.server.cut()
    again, _ = await next_conversation(server)
    waits = asyncio.Event()

    async def sleep(delay: float) -> None:
        waits.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(peer.gateway, "_sleep", sleep)
    await again.send({"type": "error", "session_id": "s", "code": "draining", "message": "", "retryable": True})
    async with asyncio.timeout(5):
        await waits.wait()
        assert "_attach_again" in str(asyncio.all_tasks())
        frame = {"type": "error", "session_id": "s", "code": "not_attached", "message": "", "retryable": False}

        async def refuse() -> None:
            await again.send(frame | {"id": (await again.recv())["id"]})

        async def detach() -> None:
            with pytest.raises(CommandError):
                await session.detach()

        await both(detach(), refuse())
        assert session._state.planned is None, "who detaches is not attached later"
        await peer.gateway.close()
    assert "_attach_again" not in str(asyncio.all_tasks())


async def test_sends_an_unanswered_prompt_again_under_its_id(peer: Peer, server: ScriptedServer) -> None:
    session = peer.gateway.session("s")

    async def lose_it_once() -> None:
        first = await peer.server.recv()
        peer.server.cut()
        again, hello = await next_conversation(server)
        assert hello["attach"] == []
        assert await again.recv() == first
        await again.send(
            {"type": "ack", "id": first["id"], "command": "prompt", "session_id": "s", "run_id": "r", "duplicate": True}
        )

    ack = await both(session.prompt("once", id="my-id"), lose_it_once())
    assert (ack["id"], ack["duplicate"]) == ("my-id", True)


async def test_a_command_waits_while_the_connection_is_down(peer: Peer, server: ScriptedServer) -> None:
    peer.server.cut()

    async def answer() -> None:
        again, _ = await next_conversation(server)
        frame = await again.recv()
        await again.send({"type": "ack", "id": frame["id"], "command": "abort", "runs": []})

    assert await both(peer.gateway.session("s").abort(), answer()) == []


async def test_tries_again_until_the_handshake_succeeds(peer: Peer, server: ScriptedServer) -> None:
    server.refuse = 3
    peer.server.cut()
    await next_conversation(server)
    assert server.refuse == 0


@pytest.mark.parametrize("code", [4400, 4403, 4409, 1000, 1009])
async def test_stays_away_after_a_final_code(peer: Peer, code: int) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 3:
            pass
        await peer.server.close(code, "why")
        if code == 1000:
            with pytest.raises(StopAsyncIteration):
                await anext(events)
        else:
            with pytest.raises(Closed) as caught:
                await anext(events)
            assert caught.value.code == code
    with pytest.raises(Closed):
        await session.abort()


@pytest.mark.parametrize("code", [1001, 1012, 4100, 4102, 4199])
async def test_comes_back_after_the_others(peer: Peer, server: ScriptedServer, code: int) -> None:
    await peer.server.close(code)
    await next_conversation(server)


async def test_takes_a_fresh_token_for_every_connection(server: ScriptedServer) -> None:
    tokens = iter(["one", "two"])

    async def fresh() -> str:
        return next(tokens)

    gateway = client(server, token=fresh)
    first: list[Conversation] = []

    async def welcome() -> None:
        conversation, hello = await next_conversation(server)
        assert hello["token"] == "one"
        first.append(conversation)

    await both(gateway.__aenter__(), welcome())
    await first[0].close(4101, "expired")
    assert (await next_conversation(server))[1]["token"] == "two"
    await gateway.close()


async def test_a_goaway_opens_the_new_socket_before_the_old_one_is_left(peer: Peer, server: ScriptedServer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    await peer.server.send(said(session, 4, "a"), {"type": "goaway", "reason": "drain", "retry_after_s": 0})
    fresh = await server.accept()  # while the old one is open
    await peer.server.send(said(session, 5, "too late for this socket"))
    assert await peer.server.closed() == 1000
    hello = await fresh.welcome()
    assert hello["attach"] == [{"session_id": "s", "role": "owner", "epoch": "e", "seq": 4}]
    await fresh.send(attached(session, 5, "replay"), said(session, 5, "b"), finish(session, 6))
    text = "".join([frame.get("text", "") async for frame in session.events(until="r")])
    assert text == "ab"


async def test_a_goaway_with_nobody_else_there_waits_for_the_end(peer: Peer, server: ScriptedServer) -> None:
    server.refuse = 5
    session = peer.gateway.session("s")
    await peer.prompted(session)
    await peer.server.send({"type": "goaway", "reason": "drain", "retry_after_s": 0})
    await server.refused.wait()
    await peer.server.send(said(session, 4, "still heard"))
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 4:
            pass
    await peer.server.close(4100, "drain")
    _, hello = await next_conversation(server)
    assert hello["attach"][0]["seq"] == 4


async def test_a_silent_server_is_left_after_two_heartbeats(server: ScriptedServer) -> None:
    gateway = client(server)

    async def welcome() -> None:
        await (await server.accept()).welcome(heartbeat_s=0.02)

    await both(gateway.__aenter__(), welcome())
    await next_conversation(server)
    await gateway.close()


async def test_many_sessions_share_one_socket(peer: Peer) -> None:
    one, two = peer.gateway.session("one"), peer.gateway.session("two")
    await peer.prompted(one)
    await peer.prompted(two)
    await peer.server.send(said(two, 4, "2"), said(one, 4, "1"), finish(two, 5), finish(one, 5))
    for session in (one, two):
        assert [frame["session_id"] async for frame in session.events(until="r")] == [session.id] * 5
    assert one.state.messages[-1]["parts"][0]["text"] == "1"
    assert peer.gateway.session("one") is one


async def test_a_gap_attaches_again(peer: Peer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    await peer.server.send(said(session, 5, "b"))
    attach = await peer.server.recv()
    assert (attach["type"], attach["epoch"], attach["seq"]) == ("attach", "e", 3)
    await peer.server.send(
        attached(session, 5, "replay", id=attach["id"]),
        said(session, 4, "a"),
        said(session, 5, "b"),
        finish(session, 6),
    )
    assert "".join([frame.get("text", "") async for frame in session.events(until="r")]) == "ab"


async def test_a_cancelled_command_is_forgotten(peer: Peer) -> None:
    session = peer.gateway.session("s")
    task = asyncio.ensure_future(session.history())
    sent = await peer.server.recv()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await peer.server.send({"type": "history", "id": sent["id"], "session_id": "s", "messages": [], "has_more": False})
    await peer.prompted(session)


async def test_one_reader_at_a_time(peer: Peer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    async with aclosing(session.events()) as events:
        await anext(events)
        with pytest.raises(RuntimeError, match="already has a reader"):
            await anext(session.events())


async def test_a_reader_ends_when_the_client_leaves(peer: Peer) -> None:
    session = peer.gateway.session("s")
    await peer.prompted(session)
    async with aclosing(session.events()) as events:
        while (await anext(events))["seq"] < 3:
            pass
        waiting = asyncio.ensure_future(anext(events, None))
        await peer.gateway.close()
        assert await waiting is None


async def test_a_command_on_its_way_is_not_sent_twice_under_one_id(peer: Peer) -> None:
    session = peer.gateway.session("s")
    task = asyncio.ensure_future(session.prompt("a", id="same"))
    await peer.server.recv()
    with pytest.raises(Exception, match="on its way already"):
        await session.prompt("b", id="same")
    task.cancel()
    await asyncio.wait([task])


async def test_the_client_leaves_no_task_behind(server: ScriptedServer) -> None:
    before = asyncio.all_tasks()
    gateway = client(server)
    await both(gateway.__aenter__(), next_conversation(server))
    await gateway.close()
    left = {task for task in asyncio.all_tasks() - before if "gateway client" in task.get_name()}
    assert left == set()
