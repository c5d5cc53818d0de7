"""What several nodes on one database are promised: one owner, no write without its lease, no Stop forgotten."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import psycopg
import pytest

from gateway.stores.base import AbortFlag, Claim, Commit, Compaction
from gateway.stores.pg_address import Address
from gateway.stores.shared import SharedPostgresStore
from tests.contract.test_store import chunk, command, row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LONG_S = 600.0
DEAD_S = -1.0
"""A lease that has run out already: what waiting for it would bring about, without the wait."""


async def seen(database: str, query: str, *values: object) -> None:
    """Wait until a query finds something."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as looking:
        for _ in range(2000):
            if await (await looking.execute(query, values)).fetchone():
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"nothing found: {query}")


@pytest.fixture
async def nodes(database: str) -> AsyncIterator[list[SharedPostgresStore]]:
    """Three stores on one database; their nodes are called a, b and c, and alive."""
    stores = [SharedPostgresStore(Address(database)) for _ in "abc"]
    await asyncio.gather(*(store.open() for store in stores))  # all at once, on an empty database
    for name, store in zip("abc", stores, strict=True):
        await store.renew(name, LONG_S)
    yield stores
    for store in stores:
        await store.close()


async def test_the_first_to_claim_owns_until_it_dies(nodes: list[SharedPostgresStore]) -> None:
    a, b, c = nodes
    first = await a.claim("p", "s1", "a")
    assert first.node_id == "a"
    assert await b.claim("p", "s1", "b") == first
    assert await a.claim("p", "s1", "a") == first, "claiming what one has changes nothing"
    await a.renew("a", DEAD_S)
    second = await b.claim("p", "s1", "b")
    assert (second.node_id, second.fence > first.fence) == ("b", True)
    assert await c.claim("p", "s1", "c") == second
    await a.renew("a", LONG_S)
    assert await a.claim("p", "s1", "a") == second, "who comes back has lost what was taken over"


async def test_a_node_that_comes_back_before_anybody_took_over_still_owns(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    first = await a.claim("p", "s1", "a")
    await a.renew("a", DEAD_S)
    assert await a.commit([Commit(1, row(), chunk=chunk(1, 1), fence=first.fence)]) == frozenset()
    await a.renew("a", LONG_S)
    assert await b.claim("p", "s1", "b") == first


async def test_a_process_that_stops_in_the_middle_of_a_transaction_holds_nobody_up(
    nodes: list[SharedPostgresStore], database: str
) -> None:
    """It has sent a part and not the end: the server waits for the rest, counts no time, and keeps the locks."""
    _, b, _ = nodes
    await b.renew("zombie", LONG_S)
    first = await b.claim("p", "s1", "zombie")
    with psycopg.connect(database, application_name="agent-gateway zombie", autocommit=True) as frozen:
        machine = frozen.pgconn
        machine.enter_pipeline_mode()
        for statement in (b"begin", b"select 1 from leases where fence = %d for key share" % first.fence):
            machine.send_query_params(statement, None)
        machine.send_flush_request()
        machine.flush()
        await seen(database, "select 1 from pg_locks where mode = 'RowShareLock' and pid = %s", machine.backend_pid)
        await b.renew("b", LONG_S)  # its lease is good: it is let be
        await b.renew("zombie", DEAD_S)
        taking = asyncio.create_task(b.claim("p", "s1", "b"))
        await seen(
            database,
            "select 1 from pg_locks where not granted and %s = any(pg_blocking_pids(pid))",
            machine.backend_pid,
        )
        await nodes[2].renew("c", LONG_S)
        assert (await taking).node_id == "b"
        machine.finish()


async def test_sessions_of_different_principals_have_owners_of_their_own(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    assert (await a.claim("p", "s1", "a")).node_id == "a"
    assert (await b.claim("q", "s1", "b")).node_id == "b"


async def test_of_many_that_claim_at_once_exactly_one_wins(nodes: list[SharedPostgresStore]) -> None:
    for n in range(20):
        if n % 2:  # half of them are taken over from the dead
            await nodes[0].renew("dead", LONG_S)
            await nodes[0].claim("p", f"s{n}", "dead")
            await nodes[0].renew("dead", DEAD_S)
        racers = [(store, name) for store, name in zip(nodes, "abc", strict=True) for _ in range(4)]
        claims = await asyncio.gather(*(store.claim("p", f"s{n}", name) for store, name in racers))
        assert len({(claim.node_id, claim.fence) for claim in claims}) == 1, claims
        assert claims[0].node_id in "abc"


async def test_release_and_leave_let_go(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    fences = [(await a.claim("p", f"s{n}", "a")).fence for n in range(3)]
    await a.release(fences[:1])
    await a.release([*fences[:1], 10**12])
    taken = await b.claim("p", "s0", "b")
    assert (taken.node_id, taken.fence > fences[-1]) == ("b", True)
    assert (await b.claim("p", "s1", "b")).node_id == "a"
    await a.leave("a")
    assert (await b.claim("p", "s1", "b")).node_id == "b"
    assert (await b.renew("b", LONG_S)).alive == {"b", "c"}


async def test_renewals_tell_who_is_alive(nodes: list[SharedPostgresStore]) -> None:
    assert (await nodes[0].renew("a", LONG_S)).alive == {"a", "b", "c"}
    await nodes[1].renew("b", DEAD_S)
    assert (await nodes[0].renew("a", LONG_S)).alive == {"a", "c"}


# -- fenced commits


async def test_a_commit_without_its_lease_is_refused_and_the_others_go_through(
    nodes: list[SharedPostgresStore],
) -> None:
    a, b, _ = nodes
    lost, kept = (await a.claim("p", "s1", "a")).fence, (await a.claim("p", "s2", "a")).fence
    await a.commit([Commit(1, row(), chunk=chunk(1, 1), fence=lost), Commit(2, row(2), chunk=chunk(1, 1), fence=kept)])
    await a.release([lost])
    await b.claim("p", "s1", "b")
    group = [
        Commit(2, chunk=chunk(2, 2), commands=[command("kept", 2)], fence=kept),
        Commit(
            1,
            row(title="no"),
            chunk=chunk(2, 2),
            commands=[command("lost")],
            compaction=Compaction(1, b"no", [], 1),
            fence=lost,
        ),
        Commit(3, row(3), chunk=chunk(1, 1)),
    ]
    assert await a.commit(group) == {1}
    found = [await b.load("p", f"s{n}") for n in (1, 2, 3)]
    assert [[c.last_seq for c in f.chunks] if f else None for f in found] == [[1], [1, 2], [1]]
    assert found[0] is not None
    assert (found[0].row.title, found[0].checkpoint) == (None, None)
    assert await b.command("p", "lost") is None
    assert await b.command("p", "kept") is not None


async def test_what_was_taken_over_can_neither_be_written_nor_deleted_nor_acknowledged(
    nodes: list[SharedPostgresStore],
) -> None:
    a, b, _ = nodes
    old = (await a.claim("p", "s1", "a")).fence
    await a.commit([Commit(1, row(), chunk=chunk(1, 1), fence=old)])
    await a.renew("a", DEAD_S)
    new = (await b.claim("p", "s1", "b")).fence
    assert await a.commit([Commit(1, row(), delete=True, fence=old)]) == {1}
    assert await a.commit([Commit(1, fence=old)]) == {1}, "a commit of nothing would be acknowledged too"
    assert await b.commit([Commit(1, chunk=chunk(2, 2), fence=new)]) == frozenset()


async def test_a_command_that_another_node_has_committed_is_refused_alone(nodes: list[SharedPostgresStore]) -> None:
    """A client that sent it again elsewhere: one of the two takes effect, and no third session pays for it."""
    a, b, _ = nodes
    odd = "c\0\1'{,}\\"
    fences = [(await a.claim("p", "s1", "a")).fence, (await b.claim("p", "s2", "b")).fence]

    def once(sid: int) -> Commit:
        return Commit(sid, row(sid), chunk=chunk(1, 1), commands=[command(odd, sid)], fence=fences[sid - 1])

    other = (await b.claim("p", "s9", "b")).fence
    third = Commit(9, row(9), chunk=chunk(1, 1), commands=[command("x", 9)], fence=other)
    refused = await asyncio.gather(a.commit([once(1)]), b.commit([third, once(2)]))
    assert sorted(map(len, refused)) == [0, 1]
    kept = await a.command("p", odd)
    assert kept is not None
    winner, loser = ("s1", "s2") if kept.session_id == "s1" else ("s2", "s1")
    assert await a.session("p", winner) is not None
    assert await a.session("p", loser) is None
    assert await a.session("p", "s9") is not None
    assert await a.command("p", "x") is not None


async def test_a_claim_waits_for_a_commit_under_way_and_then_sees_it(
    nodes: list[SharedPostgresStore], database: str
) -> None:
    """Or the new owner would read the log without what the old one commits a moment later."""
    a, b, _ = nodes
    fence = (await a.claim("p", "s1", "a")).fence
    await a.commit([Commit(1, row(), fence=fence)])
    await a.renew("a", DEAD_S)
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("select 1 from sessions where sid = 1 for update")
        committing = asyncio.ensure_future(a.commit([Commit(1, row(title="in"), chunk=chunk(1, 1), fence=fence)]))
        await _waits(database, 1)
        claiming = asyncio.ensure_future(b.claim("p", "s1", "b"))
        await _waits(database, 2)
        assert not claiming.done()
        await blocker.rollback()
        assert await committing == frozenset()
        assert (await claiming).node_id == "b"
    found = await b.load("p", "s1")
    assert found is not None
    assert (found.row.title, len(found.chunks)) == ("in", 1)


async def _waits(database: str, count: int) -> None:
    query = "select count(*) from pg_locks where not granted and pid in (select pid from pg_stat_activity"
    async with asyncio.timeout(10):
        async with await psycopg.AsyncConnection.connect(database, autocommit=True) as watcher:
            while True:
                found = await (await watcher.execute(f"{query} where datname = current_database())")).fetchone()
                if found is not None and found[0] >= count:
                    return


async def test_an_owner_that_loses_its_lease_under_load_leaves_no_gap(nodes: list[SharedPostgresStore]) -> None:
    """Whoever is told that it owns goes on where the log ends; the one before must be refused from there on."""
    head, last = 0, -1
    for turn in range(12):
        store, name = nodes[turn % 3], "abc"[turn % 3]
        claim = await store.claim("p", "s1", name)
        assert claim.node_id == name
        assert claim.fence > last
        last = claim.fence
        found = await store.load("p", "s1")
        head = found.chunks[-1].last_seq if found is not None else 0

        async def write(store: SharedPostgresStore = store, fence: int = claim.fence, seq: int = head) -> int:
            while not await store.commit([Commit(1, row(), chunk=chunk(seq + 1, seq + 1), fence=fence)]):
                seq += 1
            return seq

        writing = asyncio.ensure_future(write())
        while (found := await store.load("p", "s1")) is None or len(found.chunks) < head + 3:
            pass
        await store.renew(name, DEAD_S)
        after, successor = nodes[(turn + 1) % 3], "abc"[(turn + 1) % 3]
        await after.renew(successor, LONG_S)
        await after.claim("p", "s1", successor)
        seen = await after.load("p", "s1")
        assert seen is not None
        assert await writing == seen.chunks[-1].last_seq, "what was acknowledged is what the next owner reads"
        last = (await after.claim("p", "s1", successor)).fence - 1
    final = await nodes[0].load("p", "s1")
    assert final is not None
    assert [c.first_seq for c in final.chunks] == list(range(1, len(final.chunks) + 1))


# -- orphans


async def test_orphans_are_active_sessions_without_a_living_owner(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    await a.commit([Commit(n, row(n, active=n != 4)) for n in range(1, 5)])
    await a.claim("p", "s1", "a")
    await b.claim("p", "s2", "b")
    await b.claim("p", "s4", "b")
    assert sorted(await a.orphans(10)) == [("p", "s3")]
    await b.renew("b", DEAD_S)
    assert sorted(await a.orphans(10)) == [("p", "s2"), ("p", "s3")]
    assert len(await a.orphans(1)) == 1


# -- durable aborts


async def test_abort_flags_are_given_to_the_owner_until_cleared(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    assert await b.request_abort("p", "s1", b"{}") is None
    claim = await a.claim("p", "s1", "a")
    assert await b.request_abort("p", "s1", b'{"n":1}') == "a"
    assert await b.request_abort("p", "s1", b'{"n":2}') == "a"
    flag = AbortFlag("p", "s1", claim.fence, (b'{"n":1}', b'{"n":2}'))
    assert (await b.renew("b", LONG_S)).aborts == []
    assert (await a.renew("a", LONG_S)).aborts == [flag]
    assert (await a.renew("a", LONG_S)).aborts == [flag], "until it is cleared"
    await b.request_abort("p", "s1", b'{"n":3}')
    await a.clear_aborts([flag])
    assert (await a.renew("a", LONG_S)).aborts == [AbortFlag("p", "s1", claim.fence, (b'{"n":3}',))]
    await a.clear_aborts([flag])
    assert len((await a.renew("a", LONG_S)).aborts) == 1, "a flag that is not at the front is not cleared"


async def test_flags_outlive_their_owner(nodes: list[SharedPostgresStore]) -> None:
    a, b, c = nodes
    await a.claim("p", "s1", "a")
    await a.renew("a", DEAD_S)
    assert await c.request_abort("p", "s1", b"{}") == "a"
    claim = await b.claim("p", "s1", "b")
    assert claim == Claim("b", claim.fence, (b"{}",))
    assert (await c.claim("p", "s1", "c")).aborts == (), "they are the owner's business"
    await b.clear_aborts([AbortFlag("p", "s1", claim.fence, claim.aborts)])
    assert (await b.renew("b", LONG_S)).aborts == []


async def test_a_flag_can_be_left_while_a_commit_holds_the_lease(
    nodes: list[SharedPostgresStore], database: str
) -> None:
    a, b, _ = nodes
    fence = (await a.claim("p", "s1", "a")).fence
    await a.commit([Commit(1, row(), fence=fence)])
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("select 1 from sessions where sid = 1 for update")
        committing = asyncio.ensure_future(a.commit([Commit(1, row(), fence=fence)]))
        await _waits(database, 1)
        assert await b.request_abort("p", "s1", b"{}") == "a"
        assert not committing.done()
        await blocker.rollback()
        await committing


async def test_latches_hold_for_their_time(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    assert await a.latched("p", "c") is None
    await a.latch("p", "c", "why", 60)
    assert await b.latched("p", "c") == "why"
    assert await b.latched("q", "c") is None
    await a.latch("p", "c", "again", -1)
    assert await b.latched("p", "c") is None
    await a.latch("p", "d", "", 60)
    await a.sweep(0, 0)
    assert await b.latched("p", "d") == ""


# -- replicas


async def test_tail_and_heads_tell_a_replica_what_it_missed(nodes: list[SharedPostgresStore]) -> None:
    a, b, _ = nodes
    await a.commit([Commit(1, row(), chunk=chunk(1, 3)), Commit(2, row(2, epoch="other"))])
    await a.commit([Commit(1, chunk=chunk(4, 9))])
    assert await b.tail(1, 3) == [chunk(4, 9)]
    assert await b.tail(1, 2) == [chunk(1, 3), chunk(4, 9)]
    assert await b.tail(1, 9) == []
    assert await b.heads([1, 2, 3]) == {1: ("ep1", 9), 2: ("other", 0)}
    await a.commit([Commit(1, compaction=Compaction(9, b"fold", [], 9))])
    assert await b.heads([1]) == {1: ("ep1", 9)}, "compacted away is not gone"
    assert await b.heads([]) == {}
    await a.commit([Commit(1, row(), delete=True)])
    assert await b.heads([1]) == {}
