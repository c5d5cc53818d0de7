"""Attach: snapshot, live or replay, and never a hole between the past and now."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.fold import first_seq, is_event
from tests.e2e.support import Server, View, agree, check_log, fresh, spec

if TYPE_CHECKING:
    from pathlib import Path


async def test_without_a_seq_comes_a_snapshot(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        attached = await b.ok("attach", session_id=session)
        assert attached["type"] == "attached"
        assert attached["session_id"] == session
        assert (attached["recovery"], attached["status"], attached["role"]) == ("snapshot", "idle", "owner")
        assert attached["seq"] == a.view(session).seq
        assert attached["epoch"] == a.view(session).epoch
        snapshot = await b.until("snapshot", session_id=session)
        assert (snapshot["seq"], snapshot["epoch"]) == (attached["seq"], attached["epoch"])
        assert (snapshot["run_id"], snapshot["pending"], snapshot["queue"]) == (None, [], [])
        assert (snapshot["has_more"], snapshot["resumable"]) == (False, False)
        assert b.view(session).fold.state() == a.view(session).fold.state()


async def test_at_the_head_it_is_live(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        held = a.view(session)
        attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=held.seq)
        assert (attached["recovery"], attached["seq"]) == ("live", held.seq)
        await b.barrier()
        assert not [f for f in b.frames if f["type"] == "snapshot" or is_event(f)]


async def test_behind_the_head_it_is_a_replay_of_exactly_the_rest(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        await a.run(session)
        held, events = a.view(session), a.events(session)
    for seq in range(1, held.seq):
        async with server.client() as b:
            attached = await b.ok("attach", session_id=session, epoch=held.epoch, seq=seq)
            assert (attached["recovery"], attached["seq"]) == ("replay", held.seq)
            await b.until("run-finish", session_id=session)
            assert b.events(session) == [e for e in events if e["seq"] > seq]
            assert not [f for f in b.frames if f["type"] == "snapshot"]


@pytest.mark.parametrize("epoch", [None, "ep_unknown"])
async def test_seq_0_replays_a_log_that_is_held_whole_whatever_the_epoch(server: Server, epoch: str | None) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        fields: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        attached = await b.ok("attach", session_id=session, seq=0, **fields)
        assert attached["recovery"] == "replay"
        assert attached["epoch"] == a.view(session).epoch
        await b.until("run-finish", session_id=session)
        assert b.events(session) == a.events(session)
        check_log(b.events(session))


@pytest.mark.parametrize("epoch", [None, "ep_unknown"])
async def test_another_or_absent_epoch_gets_a_snapshot(server: Server, epoch: str | None) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        fields: dict[str, Any] = {} if epoch is None else {"epoch": epoch}
        attached = await b.ok("attach", session_id=session, seq=2, **fields)
        assert attached["recovery"] == "snapshot"
        assert attached["epoch"] == a.view(session).epoch
        await b.until("snapshot", session_id=session)


async def test_an_owner_ahead_of_the_head_makes_a_new_epoch_for_every_cursor(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        old, head = a.view(session).epoch, a.view(session).seq
        attached = await b.ok("attach", session_id=session, epoch=old, seq=head + 10)
        assert attached["recovery"] == "snapshot"
        assert attached["epoch"] != old
        await b.until("snapshot", session_id=session, epoch=attached["epoch"])
        told = await a.until("attached", session_id=session, epoch=attached["epoch"])
        assert told["recovery"] == "snapshot"
        await a.until("snapshot", session_id=session, epoch=attached["epoch"])
        await a.run(session, "again")
        await b.until("run-finish", session_id=session)
        await agree(server, a, session)
        await agree(server, b, session)


async def test_an_observer_ahead_of_the_head_is_only_answered_by_a_snapshot(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        old, head = a.view(session).epoch, a.view(session).seq
        attached = await b.ok("attach", session_id=session, epoch=old, seq=head + 10, role="observer")
        assert (attached["recovery"], attached["epoch"], attached["seq"]) == ("snapshot", old, head)
        await b.until("snapshot", session_id=session)
        await a.barrier()
        assert [f["type"] for f in a.frames].count("attached") == 1
        assert (await server.snapshot(session))["epoch"] == old


async def test_an_unknown_session_is_session_not_found(server: Server) -> None:
    async with server.client() as c:
        await c.fails("session_not_found", "attach", session_id=fresh())


async def test_status_and_role_are_told(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        ack = await a.holding(session)
        attached = await b.ok("attach", session_id=session, role="observer")
        assert (attached["status"], attached["role"]) == ("running", "observer")
        snapshot = await b.until("snapshot", session_id=session)
        assert (snapshot["status"], snapshot["run_id"], snapshot["resumable"]) == ("running", ack["run_id"], False)
        await a.ok("abort", session_id=session)
        await b.until("run-finish", session_id=session)
        await agree(server, b, session)


async def test_attaching_again_replaces_the_cursor(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        live = c.events(session)
        count = len(c.frames)
        attached = await c.ok("attach", session_id=session, epoch=c.view(session).epoch, seq=0)
        assert attached["recovery"] == "replay"
        await c.until("run-finish", session_id=session)
        again = [f for f in c.frames[count:] if is_event(f)]
        assert again == live
        count = len(c.frames)
        await c.run(session, "more")
        more = [f for f in c.frames[count:] if is_event(f)]
        seqs = [f["seq"] for f in more]
        assert len(set(seqs)) == len(seqs), "one cursor, not two"
        await agree(server, c, session)


async def test_attaching_again_in_mid_run_is_no_disconnect(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as c:
        await c.holding(session, gate=str(gate), fields={"grace_s": 0})
        for role in ("observer", "owner"):
            attached = await c.ok("attach", session_id=session, seq=0, role=role)
            assert attached["role"] == role
        gate.touch()
        assert (await c.until("run-finish", session_id=session, status="completed"))["error"] is None


async def test_detach_stops_the_events(server: Server, gate: Path) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.holding(session, gate=str(gate))
        await b.ok("attach", session_id=session)
        ack = await b.ok("detach", session_id=session)
        assert (ack["type"], ack["command"]) == ("ack", "detach")
        gate.touch()
        await a.until("run-finish", session_id=session, status="completed")
        seen = len(b.frames)
        await b.barrier()
        assert not [f for f in b.frames[seen:] if is_event(f)]


async def test_detach_with_abort_aborts_at_once(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.holding(session)
        await b.ok("attach", session_id=session, role="observer")
        await a.ok("detach", session_id=session, run="abort")
        assert (await b.until("run-finish", session_id=session))["status"] == "aborted"


async def test_detach_from_what_is_not_attached_is_not_attached(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.run(session)
        await b.fails("not_attached", "detach", session_id=session)


async def test_history_pages_back_to_the_first_message(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        for n in range(6):
            await c.run(session, f"question {n}")
        whole = (await agree(server, c, session))["messages"]
        assert len(whole) == 12
        paged: list[Any] = []
        more = True
        while more:
            before = {"before": paged[0]["id"]} if paged else {}
            page = await c.ok("history", session_id=session, limit=5, **before)
            assert page["type"] == "history"
            assert page["session_id"] == session
            assert 1 <= len(page["messages"]) <= 5
            paged = page["messages"] + paged
            more = page["has_more"]
        assert paged == whole


async def test_history_before_an_unknown_message_is_message_not_found(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        await c.run(session)
        await c.fails("message_not_found", "history", session_id=session, before="msg_nowhere")
        await c.fails("session_not_found", "history", session_id=fresh())


async def test_a_snapshot_holds_at_most_50_messages_and_history_has_the_rest(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        for n in range(28):
            await c.run(session, f"question {n}")
        snapshot = await agree(server, c, session)
        assert snapshot["has_more"] is True
        assert len(snapshot["messages"]) == 50
        older = await c.ok("history", session_id=session, before=snapshot["messages"][0]["id"])
        assert older["has_more"] is False
        assert older["messages"] + snapshot["messages"] == c.view(session).fold.messages


async def test_a_second_tab_sees_the_live_stream(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.prompt(session, spec("words", words=200, delay=0.005))
        await a.until("text-delta", session_id=session)
        assert (await b.ok("attach", session_id=session))["recovery"] == "snapshot"
        await a.until("run-finish", session_id=session)
        await b.until("run-finish", session_id=session)
        assert a.view(session).fold.state() == b.view(session).fold.state()
        assert not b.view(session).dropped, "nothing is sent twice"
        await agree(server, a, session)
        await agree(server, b, session)


@pytest.mark.parametrize("batch", [False, True])
async def test_attaching_at_any_moment_loses_and_repeats_nothing(server: Server, batch: bool) -> None:
    session = fresh()
    async with server.client() as a:
        await a.prompt(session, spec("words", words=300, delay=0.003))
        await a.until("text-delta", session_id=session)

        async def follow(n: int) -> None:
            async with server.client(batch=batch) as b:
                for k in range(3):
                    fields: dict[str, Any] = {"seq": 0} if (n + k) % 2 else {}
                    b.views.clear()
                    attached = await b.ok("attach", session_id=session, role="observer", **fields)
                    if attached["recovery"] == "snapshot":
                        await b.until("snapshot", session_id=session)
                    await b.caught_up(session, attached["seq"] + 3)
                await b.idle(session, timeout=25)
                await agree(server, b, session)
                assert not b.view(session).dropped

        async with asyncio.timeout(30):
            await asyncio.gather(*(follow(n) for n in range(8)), a.until("run-finish", session_id=session, timeout=25))


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_a_client_cut_off_again_and_again_ends_with_the_servers_transcript(
    server: Server, seed: int, batch: bool
) -> None:
    """Invariant 5: any number of reconnects, exactly the server's transcript."""
    chance = random.Random(seed)
    session = fresh()
    views: dict[str, View] = {}
    client = server.client(views=views, batch=batch)
    async with client:
        await client.prompt(session, spec("words", words=400, delay=0.002), on_disconnect="continue")
        await client.until("text-delta", session_id=session)
        await client.cut()
    cuts = 0
    async with asyncio.timeout(60):
        while True:
            view = views[session]
            view.attaching.clear()
            wanted = {"session_id": session, "epoch": view.epoch, "seq": view.seq}
            async with server.client(views=views, batch=batch, attach=[wanted]) as client:
                for _ in range(chance.randrange(60)):
                    if view.fold.status == "idle":
                        break
                    await client.next()
                if view.fold.status == "idle":
                    await agree(server, client, session)
                    break
                cuts += 1
                await client.cut()
    assert cuts > 1
    assert not view.dropped, "a reconnect repeats nothing"
    assert first_seq(view.applied[0]) == 1
    check_log(await server.log(session))
