"""A gateway on PostgreSQL, black box: what it refuses at the start, and a database that goes away under it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tests.e2e.support import ROOT, agree, check_log, fresh, of_run, spec, text_of, types
from tests.support_postgres import PASSWORD, Postgres

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.e2e.conftest import Launch
    from tests.e2e.fold import Frame
    from tests.e2e.support import Client, Server


def on(launch: Launch, address: str, *, start: bool = True) -> Server:
    server = launch(start=False)
    server.store = address
    return server.start() if start else server


async def refuses(server: Server) -> str:
    server.spawn()
    assert await server.exited() == 2
    line = server.stderr()
    assert len(line.splitlines()) == 1, line
    assert PASSWORD not in server.logs()
    return line


async def each(c: Client, kind: str, acks: Sequence[Frame], *, key: str = "run_id") -> list[Frame]:
    """Read on until each of these runs has had a frame of this kind, in whatever order; give the last of each."""
    wanted = {ack[key] for ack in acks}
    start = next(n for n, f in enumerate(c.frames) if f.get("run_id") == acks[0]["run_id"])

    def found() -> dict[str, Frame]:
        return {f[key]: f for f in c.frames[start:] if f["type"] == kind and f.get(key) in wanted}

    await c.reach(lambda: found().keys() == wanted, f"{kind} of each", timeout=30)
    return list(found().values())


# -- at the start


async def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    launch: Launch, postgres: Postgres, database: str
) -> None:
    assert "refused" in await refuses(on(launch, f"postgresql://gw:{PASSWORD}@127.0.0.1:1/db", start=False))
    assert "does not exist" in await refuses(on(launch, database + "x", start=False))
    wrong = database.replace(PASSWORD, PASSWORD[::-1])
    assert PASSWORD[::-1] not in (line := await refuses(on(launch, wrong, start=False)))
    assert "authentication" in line
    assert PASSWORD not in await refuses(on(launch, database.replace("postgresql", "mysql"), start=False))
    postgres.sql("create table recipes (name text)", database.rpartition("/")[2])
    assert "something else" in await refuses(on(launch, database, start=False))


async def test_a_second_gateway_on_the_database_is_one_line_and_exit_code_2(launch: Launch, database: str) -> None:
    on(launch, database)
    assert "in use by another gateway" in await refuses(on(launch, database, start=False))


async def test_migrate_makes_the_tables_and_says_so_without_the_password(postgres: Postgres, database: str) -> None:
    def migrate(address: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway", "migrate", "--store", address]
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    names = "select count(*) from information_schema.tables where table_name in ('sessions', 'leases')"
    # Several at once, on an empty database, as a deployment of several nodes would start them.
    for done in await asyncio.gather(*(asyncio.to_thread(migrate, database) for _ in range(3))):
        assert (done.returncode, done.stderr) == (0, ""), done
        assert done.stdout.endswith("is up to date\n")
        assert PASSWORD not in done.stdout
    assert postgres.sql(names, database.rpartition("/")[2]) == [(2,)]
    postgres.sql("update alembic_version set version_num = '9999'", database.rpartition("/")[2])
    done = migrate(database)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "newer" in done.stderr


# -- the database goes away and comes back


async def test_a_database_that_crashes_under_load_is_told_and_loses_nothing_that_was_seen(
    launch: Launch, own: Postgres
) -> None:
    server = on(launch, own.database())
    sessions = [fresh() for _ in range(5)]
    async with server.client() as c:
        for _ in range(2):
            acks = [await c.prompt(session, spec("words", words=100_000, pad=20, delay=0.002)) for session in sessions]
            await each(c, "text-delta", acks)
            own.stop(signal.SIGQUIT)
            for told in await each(c, "error", acks, key="session_id"):
                assert (told["code"], told["retryable"]) == ("store_unavailable", True)
            refused = await c.fails("store_unavailable", "prompt", session_id=fresh(), text="Hi")
            assert refused["retryable"] is True
            assert (await server.http("GET", "/healthz")).status == 200
            own.start()
            assert {f["status"] for f in await each(c, "run-finish", acks)} == {"lost"}
        await _all_that_was_seen_is_there(server, c, sessions)
        assert server.running.poll() is None


async def test_readiness_is_lost_with_the_database_and_comes_back_without_other_traffic(
    launch: Launch, own: Postgres
) -> None:
    server = on(launch, own.database())
    assert (await server.http("GET", "/readyz")).body == {"status": "ready"}
    own.stop(signal.SIGQUIT)
    for _ in range(3):  # each probe looks for itself
        answer = await server.http("GET", "/readyz")
        assert (answer.status, answer.body) == (503, {"status": "store unavailable"})
        assert answer.headers["retry-after"] == "1"
    assert (await server.http("GET", "/healthz")).status == 200, "to start the process anew would not help"
    own.start()
    deadline = time.monotonic() + 30
    while not server.ready():
        assert time.monotonic() < deadline, server.logs()
        await asyncio.sleep(0.05)
    async with server.client() as c:
        assert (await c.run(fresh()))["status"] == "completed"


async def _all_that_was_seen_is_there(server: Server, c: Client, sessions: Sequence[str]) -> None:
    for session in sessions:
        snapshot = await agree(server, c, session)
        seen = "".join(e["text"] for e in c.events(session) if e["type"] == "text-delta")
        stored = "".join(text_of(m) for m in snapshot["messages"] if m["role"] == "assistant")
        assert stored == seen, "what was not committed was not sent"
        log = await server.log(session)
        check_log(log)
        for run_id in {e["run_id"] for e in log}:
            assert types(of_run(log, run_id)).count("run-finish") == 1
        assert (await c.run(session, "again"))["status"] == "completed"


async def test_a_command_sent_again_after_the_crash_takes_effect_once(launch: Launch, own: Postgres) -> None:
    server = on(launch, own.database())
    session = fresh()
    ids = [fresh("c") for _ in range(40)]
    async with server.client() as c:
        for n, id_ in enumerate(ids):
            if n == 20:
                own.stop(signal.SIGKILL)
            await c.send({"type": "prompt", "id": id_, "session_id": session, "text": f"n{n}", "on_busy": "queue"})
        replies = {id_: await c.reply(id_, timeout=30) for id_ in ids}
        own.start()
        deadline = time.monotonic() + 30
        for id_ in ids:
            while replies[id_]["type"] == "error":
                assert replies[id_]["code"] in ("store_unavailable", "queue_full"), replies[id_]
                assert replies[id_]["retryable"], replies[id_]
                assert time.monotonic() < deadline
                text = f"n{ids.index(id_)}"
                replies[id_] = await c.call("prompt", id=id_, session_id=session, text=text, on_busy="queue")
        await c.idle(session, timeout=30)
        snapshot = await agree(server, c, session)
        texts = [text_of(m) for m in snapshot["messages"] if m["role"] == "user"]
        assert len(set(texts)) == len(texts), "no command took effect twice"
        log = await server.log(session)
        told = {e["command_id"] for e in log if e.get("command_id")}
        assert told == set(ids), "every acknowledged command took effect"


async def test_a_primary_that_dies_is_followed_by_its_standby_and_nothing_seen_is_lost(launch: Launch) -> None:
    primary = Postgres()
    standby = None
    try:
        primary.create()
        address = primary.database()
        standby = primary.standby()
        primary.sql("alter system set synchronous_standby_names = 'standby'")
        primary.sql("select pg_reload_conf()")
        deadline = time.monotonic() + 30
        while primary.sql("select sync_state from pg_stat_replication") != [("sync",)]:
            assert time.monotonic() < deadline
        hosts = f":{primary.port},127.0.0.1:{standby.port}/"
        server = on(
            launch, address.replace(f":{primary.port}/", hosts) + "?target_session_attrs=read-write&connect_timeout=3"
        )
        sessions = [fresh() for _ in range(3)]
        async with server.client() as c:
            acks = [await c.prompt(session, spec("words", words=100_000, pad=20, delay=0.002)) for session in sessions]
            await each(c, "text-delta", acks)
            primary.stop(signal.SIGKILL)
            assert all(told["retryable"] for told in await each(c, "error", acks, key="session_id"))
            standby.sql("alter system set synchronous_standby_names = ''")
            standby.promote()
            assert {f["status"] for f in await each(c, "run-finish", acks)} == {"lost"}
            await _all_that_was_seen_is_there(server, c, sessions)
    finally:
        primary.destroy()
        if standby is not None:
            standby.destroy()
