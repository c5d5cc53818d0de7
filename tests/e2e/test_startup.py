"""A server that cannot start says why in one line."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import Server, agree, check_log, fresh, spec

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.conftest import Launch


async def refuses(server: Server) -> str:
    server.spawn()
    code = await server.exited(20)
    said = server.stderr()
    assert code == 2, server.logs()
    assert "Traceback" not in server.logs()
    lines = [line for line in said.splitlines() if line.strip()]
    assert len(lines) == 1, said
    return lines[0]


@pytest.mark.parametrize(
    "target", ["engines:nothing_here", "no_such_module:engine", "engines:BARE", "engines:", "no-colon", ":"]
)
async def test_an_unusable_engine_is_one_line_and_exit_code_2(launch: Launch, target: str) -> None:
    server = launch("director", start=False)
    server.engine = target
    command = server.command()
    assert any(target in word for word in command)
    await refuses(server)


async def test_a_port_in_use_is_one_line_and_exit_code_2(launch: Launch) -> None:
    server = launch(start=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", server.port))
        taken.listen()
        assert str(server.port) in await refuses(server)


async def test_an_unwritable_database_is_one_line_and_exit_code_2(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "plain-file").write_text("no folder")
    server = launch(start=False, args=("--store", f"sqlite:///{tmp_path / 'plain-file' / 'g.db'}"))
    await refuses(server)


def mark(server: Server, revision: str) -> None:
    with contextlib.closing(sqlite3.connect(server.folder / "g.db")) as database, database:
        database.execute("update alembic_version set version_num = ?", (revision,))


async def test_a_newer_schema_is_one_line_and_nothing_stored_is_lost(launch: Launch) -> None:
    server, session = launch(), fresh()
    async with server.client() as c:
        await c.run(session)
    before = await server.snapshot(session)
    server.terminate()
    assert await server.exited(20) == 0
    with contextlib.closing(sqlite3.connect(server.folder / "g.db")) as database:
        (known,) = database.execute("select version_num from alembic_version").fetchone()
    mark(server, "9999")
    assert "9999" in await refuses(server)
    mark(server, known)
    server.start()
    assert await server.snapshot(session) == before


async def test_a_store_of_an_unknown_kind_is_one_line_and_exit_code_2(launch: Launch) -> None:
    await refuses(launch(start=False, args=("--store", "carrier-pigeon://loft")))


@pytest.mark.parametrize(
    ("name", "value"),
    [("heartbeat_s", "soon"), ("heartbeat_s", "-1"), ("max_sessions", "many"), ("disconnect_grace", "x")],
)
async def test_a_bad_setting_is_one_line_that_names_it(launch: Launch, name: str, value: str) -> None:
    line = await refuses(launch(start=False, **{name: value}))
    assert name in line.lower().replace("-", "_")


async def test_the_line_that_says_it_listens_names_the_port(launch: Launch) -> None:
    server = launch()
    async with server.client() as c:
        await c.run(fresh())
    assert str(server.port) in server.logs()


async def test_a_restart_on_the_same_database_finds_its_sessions(launch: Launch) -> None:
    server = launch()
    session = fresh()
    async with server.client() as c:
        await c.run(session)
    before = await server.snapshot(session)
    server.terminate()
    assert await server.exited() == 0
    await server.restart()
    assert await server.snapshot(session) == before


async def test_the_graces_are_flags_too(launch: Launch) -> None:
    server = launch(args=("--disconnect-grace", "0.4", "--abort-grace", "0.3"))
    session = fresh()
    async with server.client() as observer:
        async with server.client() as c:
            await c.prompt(session, spec("stubborn"))
            await c.until("text-delta", session_id=session)
            await observer.ok("attach", session_id=session, role="observer")
            await c.cut()
        finish = await observer.until("run-finish", session_id=session, timeout=4)
        assert (finish["status"], finish["reason"]) == ("aborted", "disconnect")


async def test_serve_alone_runs_the_default_agent_offline_with_sqlite_in_the_current_directory(tmp_path: Path) -> None:
    server = Server(tmp_path, "", cwd=tmp_path)
    try:
        server.start()
        session = fresh()
        async with server.client() as c:
            ack = await c.prompt(session, "Hello")
            finish = await c.until("run-finish", run_id=ack["run_id"], timeout=60)
            assert finish["status"] == "completed"
            check_log(c.events(session))
            await agree(server, c, session)
        assert (tmp_path / "gateway.db").exists()
    finally:
        server.close()
