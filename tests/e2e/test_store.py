"""The store fails under a live run, and comes back.

The failure is real and can be undone: the kernel refuses the server's writes past a file size.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import PATIENCE, agree, check_log, fresh, of_run, spec, text_of, types

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.conftest import Launch
    from tests.e2e.support import Server

ENOUGH = 32 << 10
"""The logs of the process stay below it, what the database has grown to is above."""


@contextlib.contextmanager
def failing_store(server: Server) -> Iterator[None]:
    pid = server.running.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (ENOUGH, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_failing_store_aborts_the_run_and_is_told_and_a_returning_one_seals_it(launch: Launch) -> None:
    server = launch()
    session, other = fresh(), fresh()
    async with server.client() as c:
        for _ in range(3):
            await c.run(other, spec("words", words=200, pad=200))
        grown = max(f.stat().st_size for f in server.folder.glob("g.db*"))
        assert grown > ENOUGH, "the test needs a database that has grown"
        ack = await c.prompt(session, spec("words", words=100_000, pad=100, delay=0.002))
        for _ in range(5):
            await c.until("text-delta", session_id=session)
        with failing_store(server):
            told = await c.until("error", session_id=session, timeout=30)
            assert (told["code"], told["retryable"]) == ("store_unavailable", True)
            refused = await c.fails("store_unavailable", "prompt", session_id=fresh(), text="Hi")
            assert refused["retryable"] is True
            assert (await server.http("GET", "/healthz")).status == 200
        finish = await c.until("run-finish", run_id=ack["run_id"], timeout=30)
        assert finish["status"] == "lost"
        snapshot = await agree(server, c, session)
        assert snapshot["resumable"] is True
        seen = "".join(e["text"] for e in c.events(session) if e["type"] == "text-delta")
        assert text_of(snapshot["messages"][-1]) == seen, "what was not committed was not sent"
        log = await server.log(session)
        check_log(log)
        assert types(of_run(log, ack["run_id"])).count("run-finish") == 1
        assert (await c.run(session, "again"))["status"] == "completed"
        assert (await c.run(other, "again"))["status"] == "completed"


@pytest.mark.parametrize("sync", ["normal", "full"])
async def test_a_deletion_that_the_store_refused_can_be_tried_again(launch: Launch, sync: str) -> None:
    server = launch(start=False)
    server.args = ["--store", f"sqlite:///{server.folder / 'g.db'}?sync={sync}"]
    server.start()
    session, other = fresh(), fresh()
    async with server.client() as c:
        for _ in range(3):
            await c.run(other, spec("words", words=200, pad=200))
        await c.holding(session)
        with failing_store(server):
            refused = await server.http("DELETE", f"/api/sessions/{session}")
            assert (refused.status, refused.code) == (503, "store_unavailable")
        await c.until("run-finish", session_id=session, status="lost")
        async with asyncio.timeout(PATIENCE):
            while (answer := await server.http("DELETE", f"/api/sessions/{session}")).status == 503:
                continue
        assert answer.status == 204
        await c.until("detached", session_id=session)


async def test_a_store_that_stays_away_is_told_once(launch: Launch) -> None:
    server = launch()
    session, other = fresh(), fresh()
    async with server.client() as c:
        for _ in range(3):
            await c.run(other, spec("words", words=200, pad=200))
        await c.prompt(session, spec("words", words=100_000, pad=100, delay=0.002))
        await c.until("text-delta", session_id=session)
        with failing_store(server):
            await c.until("error", session_id=session, timeout=30)
            tries = server.stderr().count("the store is unavailable")
            async with asyncio.timeout(PATIENCE):
                while server.stderr().count("the store is unavailable") < tries + 3:
                    await c.barrier()
        await c.until("run-finish", session_id=session, status="lost", timeout=30)
        assert [f["code"] for f in c.frames if f["type"] == "error"] == ["store_unavailable"]
