"""One suite for the store's interface: whatever keeps the sessions, this is what it has to do."""

from __future__ import annotations

import asyncio
import resource
import signal
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import gateway.stores.migrate
from gateway.stores import schema
from gateway.stores.base import (
    TOMBSTONE_MS,
    ChunkRow,
    CommandRow,
    Commit,
    Compaction,
    MessageRow,
    SessionRow,
    ShareRow,
    Store,
    StoreUnavailable,
    StoreUnusable,
)
from gateway.stores.migrate import LATEST, migrate
from gateway.stores.pg_address import Address
from gateway.stores.postgres import PostgresStore
from gateway.stores.shared import SharedPostgresStore
from gateway.stores.sql import SqliteStore
from tests.support_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from gateway.stores.recent import Put

    Opens = Callable[[], Store]

BACKENDS = ["memory", "sqlite", "sqlite-full-sync", "postgresql", "postgresql-shared"]


@pytest.fixture(params=BACKENDS)
def opens(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    """Gives the store of one and the same database, each time anew."""
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: memory
    if request.param.startswith("postgresql"):
        address = Address(request.getfixturevalue("database"))
        return lambda: (SharedPostgresStore if "shared" in request.param else PostgresStore)(address)
    full = request.param == "sqlite-full-sync"
    return lambda: SqliteStore(str(tmp_path / "g.db"), full_sync=full)


@pytest.fixture
async def store(opens: Opens) -> AsyncIterator[Store]:
    opened = opens()
    await opened.open()
    yield opened
    await opened.close()


def row(sid: int = 1, **fields: Any) -> SessionRow:
    plain = SessionRow(
        sid=sid,
        principal="p",
        session_id=f"s{sid}",
        epoch="ep1",
        title=None,
        status="idle",
        created_at=1,
        updated_at=10 * sid,
        message_count=0,
        active=False,
    )
    return replace(plain, **fields)


def chunk(first: int, last: int, at: int = 100) -> ChunkRow:
    return ChunkRow(first, last, at, b"\n".join(b'{"seq":%d}' % seq for seq in range(first, last + 1)))


def command(id_: str, sid: int = 1) -> CommandRow:
    return CommandRow("p", id_, f"s{sid}", b"digest", b'{"ok":1}', 5)


def messages(start: int, stop: int) -> list[MessageRow]:
    return [MessageRow(n, f"m{n}", b'{"id":"m%d"}' % n) for n in range(start, stop)]


# -- commit and load


async def test_gives_back_what_was_committed(store: Store) -> None:
    full = row(title="Tëa 🍵", status="running", active=True, run=b'{"a":1}', message_count=2)
    await store.commit([Commit(1, full, chunk=chunk(1, 3), commands=[command("c")])])
    found = await store.load("p", "s1")
    assert found is not None
    assert (found.row, found.seq, found.checkpoint, found.stored_messages) == (full, 0, None, 0)
    assert list(found.chunks) == [chunk(1, 3)]
    assert await store.command("p", "c") == command("c")
    assert await store.session("p", "s1") == full


async def test_knows_nothing_of_what_is_not_there(store: Store) -> None:
    assert await store.load("p", "s1") is None
    assert await store.session("p", "s1") is None
    assert await store.command("p", "c") is None
    assert await store.messages(1, 0, 10) == []
    assert await store.position(1, "m0") is None
    assert await store.sessions("p", None, 10) == []
    assert await store.active() == []


def share(principal: str, role: str | None = "observer", sid: int = 1, at: int = 5) -> ShareRow:
    return ShareRow(sid, principal, "p", f"s{sid}", role, at)


async def test_finds_what_was_shared_from_both_sides(store: Store) -> None:
    await store.commit([Commit(1, row(), shares=[share("b"), share("c", "owner", at=6)]), Commit(2, row(2))])
    await store.commit([Commit(2, shares=[share("b", sid=2, at=4)])])
    assert await store.shared("b", "s1") == share("b")
    assert await store.shared("c", "s1") == share("c", "owner", at=6)
    assert await store.shared("p", "s1") is None
    assert await store.shared("b", "s3") is None
    assert await store.shares(1) == [share("b"), share("c", "owner", at=6)]
    assert await store.shared_with("b") == [share("b", sid=2, at=4), share("b")]


async def test_of_several_that_share_one_id_the_oldest_counts(store: Store) -> None:
    other = replace(share("b", at=3), sid=2, owner="q")
    await store.commit([Commit(1, row(), shares=[share("b")])])
    await store.commit([Commit(2, row(2, principal="q", session_id="s1"), shares=[other])])
    assert await store.shared("b", "s1") == other


async def test_a_share_changes_is_taken_back_and_goes_with_its_session(store: Store) -> None:
    await store.commit([Commit(1, row(), shares=[share("b"), share("c")])])
    await store.commit([Commit(1, shares=[share("b", "owner", at=7), share("c", None)])])
    assert await store.shares(1) == [share("b", "owner", at=7)]
    await store.commit([Commit(1, row(), delete=True)])
    assert await store.shares(1) == await store.shared_with("b") == []
    assert await store.shared("b", "s1") is None


async def test_scopes_sessions_and_commands_to_their_principal(store: Store) -> None:
    await store.commit([Commit(1, row(), commands=[command("c")]), Commit(2, row(2, principal="q", session_id="s1"))])
    found = await store.session("q", "s1")
    assert found is not None
    assert found.sid == 2
    assert await store.command("q", "c") is None
    assert [r.sid for r in await store.sessions("p", None, 10)] == [1]


async def test_gives_chunks_in_the_order_of_their_events_whenever_they_were_written(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 9))])
    await store.commit([Commit(1, chunk=chunk(10, 10))])
    await store.commit([Commit(1, chunk=chunk(11, 200))])
    found = await store.load("p", "s1")
    assert found is not None
    assert [(c.first_seq, c.last_seq) for c in found.chunks] == [(1, 9), (10, 10), (11, 200)]


async def test_a_row_that_comes_again_replaces_the_session_and_leaves_its_checkpoint(store: Store) -> None:
    await store.commit([Commit(1, row(), compaction=Compaction(4, b"fold", [], 0))])
    await store.commit([Commit(1, row(title="new", epoch="ep2", updated_at=99))])
    found = await store.load("p", "s1")
    assert found is not None
    assert (found.row.title, found.row.epoch, found.row.updated_at) == ("new", "ep2", 99)
    assert (found.seq, found.checkpoint) == (4, b"fold")


async def test_a_commit_of_many_sessions_is_one_transaction(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 2), commands=[command("b")])])
    clash = [Commit(2, row(2), chunk=chunk(1, 1), commands=[command("c", 2)]), Commit(1, commands=[command("b")])]
    with pytest.raises(StoreUnavailable):
        await store.commit(clash)
    assert await store.load("p", "s2") is None
    assert await store.command("p", "c") is None
    await store.commit([clash[0]])
    assert await store.load("p", "s2") is not None


async def test_a_command_is_stored_once_and_takes_its_transaction_down_otherwise(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 1), commands=[command("c")])])
    again = replace(command("c"), ack=b"another")
    with pytest.raises(StoreUnavailable):
        await store.commit([Commit(1, chunk=chunk(2, 2), commands=[again])])
    found = await store.load("p", "s1")
    assert found is not None
    assert [c.last_seq for c in found.chunks] == [1]
    assert await store.command("p", "c") == command("c")


async def test_a_session_id_belongs_to_one_session_of_its_principal(store: Store) -> None:
    await store.commit([Commit(1, row())])
    with pytest.raises(StoreUnavailable):
        await store.commit([Commit(7, row(7, session_id="s1"))])


async def test_ids_and_titles_may_hold_any_character(store: Store) -> None:
    odd = "a\0b\1c\1\2d\\0 %s ' \U0001f375\uffff"
    full = row(title=odd, principal=odd)
    stored = replace(command(odd), principal=odd)
    one = MessageRow(0, odd, b"\0\1")
    await store.commit([Commit(1, full, commands=[stored], compaction=Compaction(1, b"\0", [one], 0))])
    assert await store.session(odd, "s1") == full
    assert await store.command(odd, odd) == stored
    assert await store.command(odd, odd.replace("\0", "\1\2")) is None
    assert await store.position(1, odd) == 0


async def test_an_empty_commit_is_fine(store: Store) -> None:
    await store.commit([])
    await store.commit([Commit(1)])
    assert await store.load("p", "s1") is None


async def test_what_is_committed_is_there_when_the_store_is_opened_again(opens: Opens) -> None:
    first = opens()
    await first.open()
    await first.commit([Commit(1, row(active=True), chunk=chunk(1, 3))])
    await first.close()
    second = opens()
    await second.open()
    found = await second.load("p", "s1")
    assert found is not None
    assert list(found.chunks) == [chunk(1, 3)]
    assert await second.active() == [("p", "s1")]
    await second.close()


async def test_a_closed_store_is_unavailable(opens: Opens) -> None:
    opened = opens()
    await opened.open()
    await opened.close()
    with pytest.raises((StoreUnavailable, RuntimeError)):
        await opened.commit([Commit(1, row())])


# -- compaction and removal


async def test_compaction_stores_messages_whole_and_drops_the_chunks_that_nobody_needs(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 3))])
    await store.commit([Commit(1, chunk=chunk(4, 6))])
    await store.commit([Commit(1, compaction=Compaction(6, b"rest", messages(0, 2), drop_to=3))])
    found = await store.load("p", "s1")
    assert found is not None
    assert (found.seq, found.checkpoint, found.stored_messages) == (6, b"rest", 2)
    assert [c.first_seq for c in found.chunks] == [4]
    assert await store.messages(1, 0, 10) == [m.data for m in messages(0, 2)]


async def test_a_session_is_read_as_of_one_moment_while_its_messages_are_being_stored(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 100))])
    all_ = messages(0, 100)

    begun = asyncio.Event()

    async def compact() -> None:
        for count, message in enumerate(all_, start=1):
            if count % 5 == 0:  # neither is done before the other has got anywhere
                begun.clear()
                await begun.wait()
            await store.commit([Commit(1, compaction=Compaction(count, b"%d" % count, [message], drop_to=0))])
            await asyncio.sleep(0)

    compacting = asyncio.create_task(compact())
    counts = set()
    while not compacting.done():
        await asyncio.sleep(0)
        begun.set()
        found = await store.load("p", "s1", newest=3)
        assert found is not None
        count = found.stored_messages
        counts.add(count)
        assert (found.seq, found.checkpoint) == (count, b"%d" % count if count else None)
        assert list(found.tail) == [message.data for message in all_[:count][-3:]]
    await compacting
    assert len(counts) > 5, "it was read while it was being stored"


async def test_compaction_may_come_with_the_chunk_and_the_row_of_its_commit(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 2), compaction=Compaction(0, b"{}", [], 0))])
    found = await store.load("p", "s1")
    assert found is not None
    assert ([c.last_seq for c in found.chunks], found.checkpoint) == ([2], b"{}")


async def test_compacting_a_message_again_replaces_it(store: Store) -> None:
    await store.commit([Commit(1, row(), compaction=Compaction(1, b"a", messages(0, 2), 0))])
    newer = MessageRow(1, "m1", b"newer")
    await store.commit([Commit(1, compaction=Compaction(2, b"b", [newer], 0))])
    assert await store.messages(1, 1, 2) == [b"newer"]


async def test_finds_messages_by_range_and_by_id_in_their_own_session(store: Store) -> None:
    await store.commit([Commit(1, row(), compaction=Compaction(1, b"", messages(0, 5), 0))])
    await store.commit([Commit(2, row(2), compaction=Compaction(1, b"", messages(0, 1), 0))])
    assert await store.messages(1, 1, 3) == [m.data for m in messages(1, 3)]
    assert await store.messages(1, 4, 2**31) == [m.data for m in messages(4, 5)]
    assert await store.position(1, "m3") == 3
    assert await store.position(2, "m3") is None


async def test_removal_takes_a_message_and_all_after_it(store: Store) -> None:
    await store.commit([Commit(1, row(), compaction=Compaction(1, b"", messages(0, 5), 0))])
    await store.commit([Commit(2, row(2), compaction=Compaction(1, b"", messages(0, 5), 0))])
    await store.commit([Commit(1, chunk=chunk(2, 2), remove_from=2)])
    found = await store.load("p", "s1")
    assert found is not None
    assert found.stored_messages == 2
    assert len(await store.messages(1, 0, 99)) == 2
    assert len(await store.messages(2, 0, 99)) == 5


# -- deletion, tombstones, sweep


async def test_deletion_forgets_a_session_and_nothing_of_another(store: Store) -> None:
    both = [
        Commit(sid, row(sid), chunk=chunk(1, 2), compaction=Compaction(1, b"", messages(0, 2), 0)) for sid in (1, 2)
    ]
    await store.commit(both)
    await store.commit([Commit(1, row(), delete=True)])
    assert await store.load("p", "s1") is None
    assert await store.messages(1, 0, 9) == []
    assert [r.sid for r in await store.sessions("p", None, 9)] == [2]
    found = await store.load("p", "s2")
    assert found is not None
    assert (len(found.chunks), found.stored_messages) == (1, 2)


async def test_a_deleted_sessions_commands_are_remembered_for_a_day(store: Store) -> None:
    await store.commit([Commit(1, row(), commands=[command("c")]), Commit(2, row(2), commands=[command("d", 2)])])
    await store.commit([Commit(1, row(updated_at=1000), delete=True)])
    await store.sweep(1000 + TOMBSTONE_MS, 0)
    assert await store.command("p", "c") == command("c")
    await store.sweep(1000 + TOMBSTONE_MS + 1, 0)
    assert await store.command("p", "c") is None
    assert await store.command("p", "d") is not None, "a living session's commands are kept"


async def test_a_deleted_session_can_be_created_again(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 2))])
    await store.commit([Commit(1, row(), delete=True)])
    await store.commit([Commit(3, row(3, session_id="s1"), chunk=chunk(1, 1))])
    found = await store.load("p", "s1")
    assert found is not None
    assert (found.row.sid, len(found.chunks)) == (3, 1)


async def test_the_sweep_drops_old_chunks_that_a_checkpoint_covers_and_no_others(store: Store) -> None:
    await store.commit([Commit(1, row(), chunk=chunk(1, 2, at=10_000))])
    await store.commit([Commit(1, chunk=chunk(3, 4, at=20_000))])
    await store.commit([Commit(1, chunk=chunk(5, 6, at=90_000))])
    await store.commit([Commit(1, compaction=Compaction(2, b"", [], 0))])
    await store.sweep(0, 50_000)
    found = await store.load("p", "s1")
    assert found is not None
    assert [c.first_seq for c in found.chunks] == [3, 5], "3 is old, but only there"
    await store.commit([Commit(1, compaction=Compaction(6, b"", [], 0))])
    await store.sweep(0, 50_000)
    found = await store.load("p", "s1")
    assert found is not None
    assert [c.first_seq for c in found.chunks] == [5], "5 is covered, but young"


# -- lists


async def test_lists_sessions_newest_first_and_by_page(store: Store) -> None:
    ages = {1: 50, 2: 70, 3: 50, 4: 10, 5: 50}
    await store.commit([Commit(sid, row(sid, updated_at=at)) for sid, at in ages.items()])
    seen: list[str] = []
    before = None
    while page := await store.sessions("p", before, 2):
        assert len(page) <= 2
        seen += [r.session_id for r in page]
        before = (page[-1].updated_at, page[-1].session_id)
    assert seen == ["s2", "s5", "s3", "s1", "s4"]


async def test_lists_sessions_that_were_left_active(store: Store) -> None:
    await store.commit([Commit(1, row(active=True)), Commit(2, row(2)), Commit(3, row(3, active=True))])
    await store.commit([Commit(1, row(active=False))])
    assert await store.active() == [("p", "s3")]


# -- SQLite alone: what a file can suffer


@pytest.fixture(params=[False, True], ids=["normal", "full-sync"])
def sqlite(request: pytest.FixtureRequest, tmp_path: Path) -> Opens:
    return lambda: SqliteStore(str(tmp_path / "g.db"), full_sync=request.param)


@asynccontextmanager
async def opened(opens: Opens) -> AsyncIterator[Store]:
    store = opens()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
def small_files() -> Iterator[Callable[[int | None], None]]:
    """Lets no file grow past so many bytes, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)
    signal.signal(signal.SIGXFSZ, handler)


async def test_a_full_disk_makes_it_unavailable_until_there_is_room(
    sqlite: Opens, tmp_path: Path, small_files: Callable[[int | None], None]
) -> None:
    big = ChunkRow(2, 2, 100, b"x" * 400_000)
    async with opened(sqlite) as store:
        await store.commit([Commit(1, row(), chunk=chunk(1, 1))])
        small_files((tmp_path / "g.db-wal").stat().st_size + 50_000)
        with pytest.raises(StoreUnavailable):
            await store.commit([Commit(1, row(title="no"), chunk=big, commands=[command("c")])])
        small_files(None)
        found = await store.load("p", "s1")
        assert found is not None
        assert (found.row.title, len(found.chunks)) == (None, 1), "nothing of it was kept"
        await store.commit([Commit(1, row(title="yes"), chunk=big, commands=[command("c")])])
        assert await store.command("p", "c") is not None


async def test_a_foreign_lock_makes_it_unavailable_until_it_is_let_go(sqlite: Opens, tmp_path: Path) -> None:
    async with opened(sqlite) as store:
        await store.commit([Commit(1, row())])
        with closing(sqlite3.connect(tmp_path / "g.db", isolation_level=None)) as other:
            other.execute("begin immediate")
            with pytest.raises(StoreUnavailable, match="locked"):
                await store.commit([Commit(2, row(2))])
            assert await store.session("p", "s1") is not None, "it can be read all the same"
            other.execute("rollback")
        await store.commit([Commit(2, row(2))])
        assert await store.session("p", "s2") is not None


async def test_a_second_gateway_is_refused_while_the_first_one_lives(sqlite: Opens) -> None:
    async with opened(sqlite) as store:
        with pytest.raises(StoreUnusable, match="in use by another gateway"):
            await sqlite().open()
        await store.commit([Commit(1, row())])
    async with opened(sqlite) as store:
        assert await store.session("p", "s1") is not None


async def test_a_newer_schema_is_refused_and_left_alone(sqlite: Opens, tmp_path: Path) -> None:
    async with opened(sqlite):
        pass
    with closing(sqlite3.connect(tmp_path / "g.db")) as other, other:
        other.execute("update alembic_version set version_num = '9999'")
    with pytest.raises(StoreUnusable, match="newer"):
        await sqlite().open()
    with closing(sqlite3.connect(tmp_path / "g.db")) as other, other:
        assert other.execute("select version_num from alembic_version").fetchone() == ("9999",)
        other.execute("update alembic_version set version_num = ?", (LATEST,))
    async with opened(sqlite):
        pass  # and a refusal leaves no lock behind


async def test_somebody_elses_database_is_refused_and_not_a_byte_of_it_changed(sqlite: Opens, tmp_path: Path) -> None:
    file = tmp_path / "g.db"
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("create table recipes (name text)")
    before = file.read_bytes()
    with pytest.raises(StoreUnusable, match="something else"):
        await sqlite().open()
    assert file.read_bytes() == before


@pytest.mark.parametrize("content", [b"not a database, but long enough to look at " * 40])
async def test_a_file_that_is_no_database_is_refused(sqlite: Opens, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "g.db").write_bytes(content)
    with pytest.raises(StoreUnusable, match=r"g\.db"):
        await sqlite().open()
    assert (tmp_path / "g.db").read_bytes() == content


async def test_a_folder_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StoreUnusable, match="nowhere"):
        await SqliteStore(str(tmp_path / "nowhere" / "g.db")).open()


READ_ONLY = """
import asyncio, os, sys
import sqlalchemy
sqlalchemy.create_engine("sqlite://").connect().close()  # all that it imports, while we may still read it
from gateway.stores.base import StoreUnusable
from gateway.stores.sql import SqliteStore
if os.getuid() == 0:  # whom no permission stops
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    asyncio.run(SqliteStore(sys.argv[1]).open())
except StoreUnusable as exc:
    print(exc)
"""


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_written_is_refused_at_the_start(what: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("locked")
    for parent in [folder, *folder.parents][:3]:
        parent.chmod(0o755)  # the other user has to get there
    asyncio.run(_make(folder / "g.db"))
    (folder / "g.db").chmod(0o444)
    (folder / "g.db.lock").chmod(0o666)
    if what == "file":
        folder.chmod(0o777)
    else:
        (folder / "g.db.lock").unlink()
        folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, str(folder / "g.db")],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    folder.chmod(0o755)
    assert done.stdout.startswith("cannot use the database"), done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == 1


async def _make(path: Path) -> None:
    store = SqliteStore(str(path))
    await store.open()
    await store.close()


async def test_the_wal_is_checkpointed_in_the_background_and_stays_bounded(sqlite: Opens, tmp_path: Path) -> None:
    async with opened(sqlite) as store:
        await store.commit([Commit(1, row())])
        for n in range(1, 41):
            await store.commit([Commit(1, chunk=ChunkRow(n, n, 1, b"x" * 1_000_000))])
            assert isinstance(store, SqliteStore)
            if store._checkpoints.running is not None:
                await asyncio.wait([store._checkpoints.running])
        assert (tmp_path / "g.db-wal").stat().st_size < 20_000_000


async def test_a_sweep_never_ends_the_transaction_of_a_commit_under_way(
    sqlite: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep that commits on the writer's connection while a commit is half done would keep that half."""
    async with opened(sqlite) as store:
        assert isinstance(store, SqliteStore)
        await store.commit([Commit(1, row(), chunk=chunk(1, 1, at=1), commands=[command("c")])])
        await store.commit([Commit(1, compaction=Compaction(1, b"", [], 0))])
        plan = store._statements.plan
        loop = asyncio.get_running_loop()
        half_done = asyncio.Event()
        swept: asyncio.Future[None] = loop.create_future()

        def slow(commits: list[Commit], put: list[Put]) -> Iterator[tuple[str, Any]]:
            first = True
            for statement in plan(commits, put):
                yield statement
                if first and store._commits is not None:
                    loop.call_soon_threadsafe(half_done.set)
                    # Time for a sweep that does not wait its turn to be wrong; one that waits comes after us.
                    asyncio.run_coroutine_threadsafe(asyncio.wait([swept], timeout=0.2), loop).result()
                first = False

        monkeypatch.setattr(store._statements, "plan", slow)
        clash = Commit(2, row(2), commands=[command("c", 2)])
        failing = asyncio.ensure_future(store.commit([clash]))
        if store._commits is not None:
            await half_done.wait()
        sweeping = asyncio.ensure_future(store.sweep(0, 50))
        sweeping.add_done_callback(lambda _: swept.set_result(None))
        with pytest.raises(StoreUnavailable):
            await failing
        await sweeping
        assert await store.session("p", "s2") is None, "all of a commit or nothing"


# -- the schema


def test_latest_is_the_newest_file_in_the_migrations() -> None:
    folder = Path(gateway.stores.migrate.__file__).parent / "migrations" / "versions"
    names = sorted(file.name for file in folder.glob("[0-9]*.py"))
    assert names[-1].split("_")[0] == LATEST


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    if request.param == "sqlite":
        made = sa.create_engine(f"sqlite:///{tmp_path / 'g.db'}")
    else:
        url = request.getfixturevalue("database").replace("postgresql:", "postgresql+psycopg:")
        made = sa.create_engine(url)
    yield made
    made.dispose()


def test_the_migrations_make_exactly_the_tables_that_the_program_uses(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        migrate(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, schema.metadata) == []
        inspector = sa.inspect(connection)
        for table in schema.metadata.tables.values():
            made = {column["name"]: column["type"] for column in inspector.get_columns(table.name)}
            assert set(made) == set(table.columns.keys())
            assert inspector.get_pk_constraint(table.name)["constrained_columns"] == [
                column.name for column in table.primary_key
            ]
            if engine.name == "postgresql":
                assert {t.collation for t in made.values() if isinstance(t, sa.Text)} <= {"C"}, table.name
                assert inspector.get_sequence_names() == ["fences"]


def test_migrating_an_empty_database_twice_changes_it_once(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert gateway.stores.migrate.revision(connection) is None
        migrate(connection)
        assert gateway.stores.migrate.revision(connection) == LATEST
        migrate(connection)
        assert gateway.stores.migrate.revision(connection) == LATEST
