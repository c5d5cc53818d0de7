"""The Python client against the real server: through crashes, drains and many sessions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from gateway.client import CommandError, Gateway, Session, connect
from gateway.client.backoff import Backoff
from protocol.transcript import Transcript
from tests.e2e.support import Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    own = Server(tmp_path, "scripted:engine", args=["--drain", "1"])
    try:
        own.start()
        yield own
    finally:
        own.close()


def client(server: Server) -> Gateway:
    return connect(f"ws://127.0.0.1:{server.port}/ws", backoff=Backoff(base=0.05, cap=0.2))


async def heard(session: Session, text: str) -> None:
    """Read until the session said ``text``."""
    async with asyncio.timeout(15), aclosing(session.events()) as events:
        async for _ in events:
            if session.state.messages and text in str(session.state.messages[-1]["parts"]):
                return


async def agrees(server: Server, session: Session) -> None:
    """Check that the client holds what a fresh reader of the whole log gets."""
    fresh = Transcript()
    frames = await server.log(session.id)
    fresh.apply({"type": "attached", "seq": 0, "epoch": "", "recovery": "replay", "status": "idle"})
    for frame in frames:
        fresh.apply(frame)
    assert session.state.messages == fresh.messages
    assert (session.state.seq, session.state.status) == (fresh.seq, fresh.status)


async def test_prompts_and_reads_a_run(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("count")
        text = "".join([event.get("text", "") async for event in session.events(until=ack["run_id"])])
        assert text == "1 2 3"
        assert ack["session_id"] == session.id
        assert "queued" not in ack
        again = await session.prompt("count", on_busy="queue")
        kinds = [event["type"] async for event in session.events(until=again["run_id"])]
        assert kinds[-1] == "run-finish"
        assert len(session.state.messages) == 4
        await agrees(server, session)


async def test_aborts_and_resumes(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("hold")
        await heard(session, "Once")
        assert await session.abort(reason="enough") == [
            {"session_id": session.id, "run_id": ack["run_id"], "state": "requested"}
        ]
        last = [event async for event in session.events(until=ack["run_id"])][-1]
        assert (last["status"], last["reason"]) == ("aborted", "user")
        assert session.state.resumable
        resumed = await session.resume()
        assert [event async for event in session.events(until=resumed["run_id"])][-1]["status"] == "completed"
        with pytest.raises(CommandError) as caught:
            await session.resume()
        assert caught.value.code == "not_resumable"
        await agrees(server, session)


async def test_answers_an_approval(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("ask")
        async with aclosing(session.events(until=ack["run_id"])) as events:
            async for event in events:
                if event["type"] == "approval-request":
                    assert session.state.status == "waiting"
                    await session.respond(event["request_id"], "allow")
        (part,) = session.state.messages[-1]["parts"]
        assert (part["state"], part["output"]) == ("output-available", "deleted")


async def test_a_crash_is_a_reconnect_and_a_lost_run(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("hold")
        await heard(session, "Once")
        await server.crash()
        async with asyncio.timeout(20):
            last = [event async for event in session.events(until=ack["run_id"])][-1]
        assert last["status"] == "lost"
        assert (await session.resume())["run_id"] != ack["run_id"]
        await heard(session, "a time")


async def test_a_prompt_that_was_sent_into_a_crash_runs_once(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        server.kill()
        prompt = asyncio.ensure_future(session.prompt("count"))
        await server.restart()
        async with asyncio.timeout(20):
            ack = await prompt
            async with aclosing(session.events(until=ack["run_id"])) as events:
                async for _ in events:
                    pass
        assert [message["role"] for message in session.state.messages] == ["user", "assistant"]
        await agrees(server, session)


async def test_a_socket_that_breaks_again_and_again_costs_nothing(server: Server) -> None:
    heard: list[str] = []
    gateway = connect(
        f"ws://127.0.0.1:{server.port}/ws", backoff=Backoff(base=0.001, cap=0.001), on_status=heard.append
    )
    async with gateway:
        session = gateway.session()
        ack = await session.prompt("story")
        said = ""
        cuts = 0
        async with asyncio.timeout(30), aclosing(session.events(until=ack["run_id"])) as events:
            async for event in events:
                said += event.get("text", "")
                if len(said) > 100 * (cuts + 1) and gateway._socket is not None:
                    cuts += 1
                    gateway._socket.transport.abort()
        assert cuts >= 5
        assert heard.count("reconnecting") >= 5
        assert said == "".join(f"{number} " for number in range(300))
        await agrees(server, session)


async def test_a_drain_is_survived(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("hold")
        await heard(session, "Once")
        server.terminate()
        async with asyncio.timeout(20):
            last = [event async for event in session.events(until=ack["run_id"])][-1]
            assert (last["status"], last["reason"]) == ("aborted", "shutdown")
            assert await server.exited() == 0
            await server.restart()
            again = await session.resume()
            assert [event async for event in session.events(until=again["run_id"])][-1]["status"] == "completed"
        await agrees(server, session)


async def test_many_sessions_on_one_socket(server: Server) -> None:
    async with client(server) as gateway:

        async def one() -> Session:
            session = gateway.session()
            ack = await session.prompt("count")
            async with aclosing(session.events(until=ack["run_id"])) as events:
                async for _ in events:
                    pass
            return session

        async with asyncio.timeout(20):
            sessions = await asyncio.gather(*(one() for _ in range(50)))
        for session in sessions:
            assert session.state.messages[-1]["parts"][0]["text"] == "1 2 3"


async def test_a_second_client_continues_the_conversation(server: Server) -> None:
    async with client(server) as gateway:
        session = gateway.session()
        ack = await session.prompt("count")
        async with aclosing(session.events(until=ack["run_id"])) as events:
            async for _ in events:
                pass
        async with client(server) as other:
            copy = other.session(session.id)
            attached = await copy.attach("observer")
            assert attached["recovery"] == "snapshot"
            first = await anext(copy.events())
            assert first["type"] == "snapshot"
            assert copy.state.messages == session.state.messages
            page = await copy.history(before=copy.state.messages[-1]["id"])
            assert [message["role"] for message in page["messages"]] == ["user"]
