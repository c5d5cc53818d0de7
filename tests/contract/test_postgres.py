"""PostgreSQL alone: what a server on a network can suffer, and what may not come of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest

from gateway.stores import pg_connection
from gateway.stores.base import Commit, StoreUnavailable, StoreUnusable
from gateway.stores.migrate import LATEST
from gateway.stores.pg_address import Address
from gateway.stores.postgres import PostgresStore
from gateway.stores.shared import SharedPostgresStore
from tests.contract.test_store import chunk, command, row
from tests.support_postgres import PASSWORD, Postgres

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

T = TypeVar("T")


@pytest.fixture
async def store(database: str) -> AsyncIterator[PostgresStore]:
    opened = PostgresStore(Address(database))
    await opened.open()
    yield opened
    await opened.close()


async def refusal(address: str) -> str:
    with pytest.raises(StoreUnusable) as caught:
        await PostgresStore(Address(address)).open()
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert PASSWORD not in text
    return text


async def eventually(attempt: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Do it as soon as the store can, by itself, again."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await attempt()
            except StoreUnavailable:
                await asyncio.sleep(0.01)


async def until(server: Postgres, query: str, wanted: list[tuple[Any, ...]]) -> None:
    """Wait until the server gives this answer."""
    deadline = time.monotonic() + 30
    while server.sql(query) != wanted:
        assert time.monotonic() < deadline, query
        await asyncio.sleep(0.02)


async def append_until_lost(store: PostgresStore, head: int) -> int:
    """Commit one event after the other; give the last that was acknowledged."""
    with contextlib.suppress(StoreUnavailable):
        while True:
            await store.commit([Commit(1, chunk=chunk(head + 1, head + 1))])
            head += 1
    return head


# -- at the start


async def test_what_cannot_be_opened_is_refused_with_one_line_that_has_no_password(database: str) -> None:
    assert "Connection refused" in await refusal(f"postgresql://gw:{PASSWORD}@127.0.0.1:1,127.0.0.1:2/db")
    assert "does not exist" in await refusal(database + "x")
    wrong = await refusal(database.replace(PASSWORD, PASSWORD + "x"))
    assert "authentication failed" in wrong
    assert PASSWORD + "x" not in wrong


async def test_a_newer_schema_and_somebody_elses_database_are_refused_and_left_alone(
    postgres: Postgres, database: str
) -> None:
    name = database.rpartition("/")[2]
    postgres.sql("create table recipes (name text)", name)
    assert "something else" in await refusal(database)
    postgres.sql("drop table recipes", name)
    store = PostgresStore(Address(database))
    await store.open()
    await store.close()
    postgres.sql("update alembic_version set version_num = '9999'", name)
    assert "newer" in await refusal(database)
    assert postgres.sql("select version_num from alembic_version", name) == [("9999",)]
    postgres.sql(f"update alembic_version set version_num = '{LATEST}'", name)
    await store.open()
    await store.close()


async def test_a_database_that_cannot_hold_every_text_is_refused(postgres: Postgres) -> None:
    postgres.sql("create database narrow owner gw encoding 'LATIN1' locale 'C' template template0")
    assert "must be UTF8" in await refusal(postgres.address("narrow"))
    postgres.drop(postgres.address("narrow"))


async def test_a_second_gateway_is_refused_while_the_first_one_lives(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stores.postgres.HELD_S", 0.1)
    await store._writer.fetch("drop table latches; update alembic_version set version_num = '0001'")
    assert "in use by another gateway" in await refusal(database)
    found = await store._writer.fetch("select version_num from alembic_version")
    assert found == [("0001",)], "no upgrade under a gateway that is at work"
    with pytest.raises(StoreUnusable, match="in use"):  # nor as a node of a cluster
        await SharedPostgresStore(Address(database)).open()
    await store.commit([Commit(1, row())])


async def test_a_standby_is_no_place_to_write(own: Postgres) -> None:
    standby = own.standby()
    try:
        assert "read-only" in await refusal(standby.address("postgres"))
    finally:
        standby.destroy()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:pw@h:1/db", "postgresql://h:1/db"),
        ("postgresql://u:pw@h1:1,h2:2/db?pool_size=3", "postgresql://h1:1,h2:2/db"),
        ("postgresql://u:pw@h1,h2:2/db", "postgresql://h1,h2:2/db"),
        ("postgres:///db?host=/run/pg&password=pw", "postgresql:///run/pg/db"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    assert str(Address(url)) == shown


@pytest.mark.parametrize("url", ["postgresql://u:pw@[h/db", "postgresql://h/db?pool_size=0", "postgresql://h/?no=pw"])
def test_a_bad_address_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        Address(url)
    assert "pw" not in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


# -- the server goes and comes back


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL], ids=["fast", "immediate", "kill"])
async def test_a_server_that_was_restarted_while_nothing_went_on_is_not_even_noticed(
    own: Postgres, how: signal.Signals
) -> None:
    store = PostgresStore(Address(own.database()))
    await store.open()
    await store.commit([Commit(1, row(), chunk=chunk(1, 1))])
    await asyncio.gather(*(store.load("p", "s1") for _ in range(20)))  # connections in the pool, soon stale
    own.stop(how)
    own.start()
    await store.commit([Commit(1, chunk=chunk(2, 2))])
    found = await asyncio.gather(*(store.load("p", "s1") for _ in range(20)))
    assert {len(f.chunks) for f in found if f is not None} == {2}
    await store.close()


async def test_nothing_acknowledged_is_lost_when_the_server_crashes_under_load(own: Postgres) -> None:
    store = PostgresStore(Address(own.database()))
    await store.open()
    await store.commit([Commit(1, row())])
    head = 0
    for _ in range(3):
        asyncio.get_running_loop().call_later(0.1, own.stop)
        acknowledged = await append_until_lost(store, head)
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.load("p", "s1")
        assert time.monotonic() - started < 5, "a server that is not there is told at once"
        own.start()
        found = await eventually(lambda: store.load("p", "s1"))
        assert found is not None
        before, head = head, len(found.chunks)
        assert before < acknowledged <= head <= acknowledged + 1, "and at most the one that was under way"
    await store.close()


async def test_a_commit_whose_answer_was_lost_has_happened_or_never_will(store: PostgresStore, database: str) -> None:
    """The link is cut while the server still works on the commit: it may not appear after it was looked for."""
    await store.commit([Commit(1, row())])
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("select 1 from sessions where sid = 1 for update")
        committing = asyncio.ensure_future(store.commit([Commit(1, row(title="late"), chunk=chunk(1, 1))]))
        await _waiting_for_a_lock(blocker)
        connection = store._writer._connection
        assert connection is not None
        with pg_connection.watched(connection, 0.0):
            await asyncio.wait([committing])
        with pytest.raises(StoreUnavailable):
            await committing
        # The server has not noticed: its process waits for the lock still.
        found = await store.load("p", "s1")
        assert found is not None
        assert (found.row.title, len(found.chunks)) == (None, 0)
        await blocker.rollback()
    await store.commit([Commit(1, chunk=chunk(1, 1))])  # it would clash with the late one
    found = await store.load("p", "s1")
    assert found is not None
    assert (found.row.title, len(found.chunks)) == (None, 1)


async def _waiting_for_a_lock(connection: psycopg.AsyncConnection[Any]) -> None:
    async with asyncio.timeout(10):
        while True:
            found = await (await connection.execute("select count(*) from pg_locks where not granted")).fetchone()
            if found is not None and found[0]:
                return


async def test_a_frozen_server_costs_a_bounded_wait_and_comes_back(
    own: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address(own.database())
    address.parameters["connect_timeout"] = 2
    store = PostgresStore(address)
    await store.open()
    await store.commit([Commit(1, row(), chunk=chunk(1, 1))])
    short = _short(0.5)
    with monkeypatch.context() as patched:  # not for what comes afterwards: a busy machine may take longer
        patched.setattr("gateway.stores.pg_connection.watched", short)
        patched.setattr("gateway.stores.postgres.watched", short)
        await _refused_while_frozen(own, store)
    found = await eventually(lambda: store.load("p", "s1"))
    assert found is not None
    head = found.chunks[-1].last_seq
    assert (await store.command("p", "c") is not None) == (head == 2)
    await eventually(lambda: store.commit([Commit(1, chunk=chunk(head + 1, head + 1))]))
    await store.close()


async def _refused_while_frozen(own: Postgres, store: PostgresStore) -> None:
    own.freeze()
    try:
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await store.commit([Commit(1, chunk=chunk(2, 2), commands=[command("c")])])
        with pytest.raises(StoreUnavailable):
            await store.load("p", "s1")
        assert time.monotonic() - started < 20
    finally:
        own.freeze(False)


def _short(seconds: float) -> Callable[[Any], Any]:
    watched = pg_connection.watched
    return lambda connection: watched(connection, seconds)


async def test_reads_past_the_pool_wait_and_past_the_queue_are_refused(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.stores.postgres.WAITING", 5)
    monkeypatch.setattr("gateway.stores.postgres.CONNECT_TIMEOUT_S", 0.5)
    store = PostgresStore(Address(f"{database}?pool_size=2"))
    await store.open()
    await store.commit([Commit(1, row())])
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("lock table messages in access exclusive mode")
        reads = [asyncio.ensure_future(store.messages(1, 0, 9)) for _ in range(20)]
        done, _ = await asyncio.wait(reads, timeout=0.3)
        assert done, "past the queue they are refused at once"
        assert all(isinstance(read.exception(), StoreUnavailable) for read in done)
        await asyncio.wait(reads, timeout=2, return_when=asyncio.ALL_COMPLETED)
        busy = [read for read in reads if not read.done()]
        assert len(busy) == 2, "those who found a connection; the others have waited long enough"
        await store.commit([Commit(1, row(title="t"))])  # commits have a connection of their own
        await blocker.rollback()
        assert await asyncio.gather(*busy) == [[], []]
    assert (await store.messages(1, 0, 9)) == []
    await store.close()


async def test_a_statement_that_takes_too_long_is_ended(
    store: PostgresStore, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.commit([Commit(1, row())])
    await store._writer.fetch("set lock_timeout = 100")
    async with await psycopg.AsyncConnection.connect(database) as blocker:
        await blocker.execute("select 1 from sessions where sid = 1 for update")
        with pytest.raises(StoreUnavailable, match="timeout"):
            await store.commit([Commit(1, row(title="no")), Commit(2, row(2))])
        assert await store.session("p", "s2") is None
        await blocker.rollback()
    await store.commit([Commit(1, row(title="yes"))])


async def test_two_that_lock_each_other_are_both_committed(database: str) -> None:
    stores = [SharedPostgresStore(Address(database)) for _ in "ab"]
    for store in stores:
        await store.open()
    await stores[0].commit([Commit(n, row(n)) for n in range(1, 21)])
    forth = [Commit(n, row(n, title="forth")) for n in range(1, 21)]
    back = [Commit(n, row(n, title="back")) for n in range(20, 0, -1)]
    for _ in range(5):
        await asyncio.gather(stores[0].commit(forth), stores[1].commit(back))
    for store in stores:
        await store.close()


# -- the primary fails


async def test_nothing_acknowledged_is_lost_when_the_primary_dies_and_its_standby_takes_over() -> None:
    primary = Postgres()
    standby = None
    try:
        primary.create()
        address = primary.database()
        standby = primary.standby()
        primary.sql("alter system set synchronous_standby_names = 'standby'")
        primary.sql("select pg_reload_conf()")
        await until(primary, "select sync_state from pg_stat_replication", [("sync",)])
        both = address.replace(f":{primary.port}/", f":{primary.port},127.0.0.1:{standby.port}/")
        store = PostgresStore(Address(f"{both}?target_session_attrs=read-write"))
        await store.open()
        await store.commit([Commit(1, row())])
        asyncio.get_running_loop().call_later(0.3, primary.stop, signal.SIGKILL)
        acknowledged = await append_until_lost(store, 0)
        assert acknowledged > 0
        standby.sql("alter system set synchronous_standby_names = ''")
        standby.promote()
        found = await eventually(lambda: store.load("p", "s1"))
        assert found is not None
        head = len(found.chunks)
        assert acknowledged <= head <= acknowledged + 1
        await eventually(lambda: store.commit([Commit(1, chunk=chunk(head + 1, head + 1))]))
        await store.close()
    finally:
        primary.destroy()
        if standby is not None:
            standby.destroy()


async def test_what_the_standby_does_not_have_is_not_shown(own: Postgres) -> None:
    """A commit that waits for its standby is given up: the primary may have it, but it is not safe yet."""
    address = Address(own.database())
    store = PostgresStore(address)
    await store.open()
    await store.commit([Commit(1, row())])
    own.sql("alter system set synchronous_standby_names = 'absent'")
    own.sql("select pg_reload_conf()")
    await until(own, "show synchronous_standby_names", [("absent",)])
    connection = store._writer._connection
    assert connection is not None
    committing = asyncio.ensure_future(store.commit([Commit(1, row(title="unsafe"))]))
    await until(own, "select 1 from pg_stat_activity where wait_event = 'SyncRep'", [(1,)])
    with pg_connection.watched(connection, 0.0):
        await asyncio.wait([committing])
    with pytest.raises(StoreUnavailable):
        await committing
    reading = asyncio.ensure_future(store.session("p", "s1"))
    done, _ = await asyncio.wait([reading], timeout=0.5)
    assert not done
    own.sql("alter system reset synchronous_standby_names")
    own.sql("select pg_reload_conf()")
    found = await reading
    assert found is not None
    assert found.title in ("unsafe", None)
    await store.close()
