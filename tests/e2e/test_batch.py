"""Batches and merged deltas: only for those who asked, and never past the sizes."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.e2e.fold import first_seq
from tests.e2e.support import Server, agree, check_log, fresh, spec

BATCH = 64 << 10
MESSAGE = 1 << 20


def size(message: str | bytes) -> int:
    return len(message.encode() if isinstance(message, str) else message)


async def test_without_batch_every_message_is_one_frame_and_nothing_is_merged(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client() as b:
        await a.prompt(session, spec("words", words=3000))
        await a.until("run-finish", session_id=session, timeout=30)
        await b.ok("attach", session_id=session, seq=0)
        await b.until("run-finish", session_id=session, timeout=30)
        for c in (a, b):
            assert all(isinstance(json.loads(m), dict) for m in c.messages)
            assert all(first_seq(e) == e["seq"] for e in c.events(session))
            check_log(c.events(session))


async def test_with_batch_a_replay_comes_in_arrays_within_64_kib(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client(batch=True) as b:
        await a.prompt(session, spec("words", words=2000, pad=50, delay=0.0001))
        await a.until("run-finish", session_id=session, timeout=30)
        await b.ok("attach", session_id=session, seq=0)
        await b.until("run-finish", session_id=session, timeout=30)
        check_log(b.events(session))
        for message in b.messages:
            parsed = json.loads(message)
            if isinstance(parsed, list) and len(parsed) > 1:
                assert size(message) <= BATCH
            assert size(message) <= MESSAGE
        await agree(server, b, session)
        assert a.view(session).fold.state() == b.view(session).fold.state()


async def test_merged_deltas_cover_consecutive_seqs_of_one_part(server: Server) -> None:
    session = fresh()
    async with server.client() as a, server.client(batch=True) as b:
        await a.prompt(session, spec("words", words=1000, delay=0.0005))
        await a.until("run-finish", session_id=session, timeout=30)
        await b.ok("attach", session_id=session, seq=0)
        await b.until("run-finish", session_id=session, timeout=30)
        single = {e["seq"]: e for e in a.events(session)}
        for e in b.events(session):
            if first_seq(e) == e["seq"]:
                assert {k: v for k, v in e.items() if k != "from"} == single[e["seq"]]
                continue
            covered = [single[n] for n in range(e["from"], e["seq"] + 1)]
            assert {c["type"] for c in covered} == {e["type"]}
            assert {c["part_id"] for c in covered} == {e["part_id"]}
            assert "".join(c["text"] for c in covered) == e["text"]


async def test_a_merge_is_cut_at_the_cursor(server: Server) -> None:
    session = fresh()
    async with server.client() as a:
        await a.prompt(session, spec("words", words=200, delay=0.001))
        await a.until("run-finish", session_id=session, timeout=30)
        held = a.view(session)
    for seq in range(1, held.seq, max(1, held.seq // 25)):
        async with server.client(batch=True) as b:
            b.view(session).fold.seq = seq
            await b.ok("attach", session_id=session, epoch=held.epoch, seq=seq)
            await b.until("run-finish", session_id=session)
            assert first_seq(b.events(session)[0]) == seq + 1
            assert not b.view(session).gaps
            assert not b.view(session).dropped


@pytest.mark.parametrize("batch", [False, True])
async def test_no_message_is_over_1_mib(server: Server, batch: bool) -> None:
    session = fresh()
    async with server.client(batch=batch) as a, server.client(batch=batch) as b, server.client(batch=batch) as c:
        for do in (
            spec("big"),
            spec("big", output=True),
            spec("words", words=40, pad=60_000),
            "x" * min(900_000, a.welcome["limits"]["max_frame_bytes"] - 1000),
        ):
            await a.prompt(session, do)
            await a.until("run-finish", session_id=session, timeout=30)
        attached = await b.ok("attach", session_id=session)
        assert attached["recovery"] == "snapshot"
        await b.until("snapshot", session_id=session)
        await c.ok("attach", session_id=session, seq=0)
        await c.caught_up(session, attached["seq"], timeout=30)
        for reader in (a, b, c):
            for message in reader.messages:
                assert size(message) <= MESSAGE
                parsed = json.loads(message)
                assert not isinstance(parsed, list) or len(parsed) == 1 or size(message) <= BATCH


async def test_history_stays_within_1_mib_too(server: Server) -> None:
    session = fresh()
    async with server.client() as c:
        for _ in range(4):
            await c.prompt(session, spec("big", bytes=500_000))
            await c.until("run-finish", session_id=session)
        count = 0
        before: dict[str, str] = {}
        async with asyncio.timeout(30):
            while True:
                page = await c.ok("history", session_id=session, limit=200, **before)
                count += len(page["messages"])
                if not page["has_more"]:
                    break
                assert page["messages"], "a page that has more goes on"
                before = {"before": page["messages"][0]["id"]}
        assert count == 8
        assert all(size(m) <= MESSAGE for m in c.messages)


async def test_a_batch_client_may_mix_with_a_plain_one(server: Server) -> None:
    session = fresh()
    async with server.client(batch=True) as a, server.client() as b:
        await a.prompt(session, spec("words", words=500))
        await b.ok("attach", session_id=session)
        for c in (a, b):
            await c.idle(session)
            await agree(server, c, session)
        assert a.view(session).fold.state() == b.view(session).fold.state()
