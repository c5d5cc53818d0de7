"""Sessions shared by role, where sharer and guest are on different nodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.cluster.support import LONG, Cluster, RedisServer
from tests.e2e.support import fresh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support_postgres import Postgres

ALICE = {"authorization": "Bearer alice-token"}
BOB = {"authorization": "Bearer bob-token"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Cluster]:
    """Two nodes that know two people."""
    server, address = RedisServer().start(), postgres.database()
    two = Cluster(tmp_path_factory.mktemp("shared"), server, address, 2, token="alice-token,bob-token")
    try:
        yield two.start()
        for node in two.nodes:
            assert "Traceback" not in node.stderr(), node.stderr()
    finally:
        two.close()
        server.stop()
        postgres.drop(address)


async def name_of_bob(pair: Cluster) -> str:
    me = await pair.nodes[0].http("GET", "/api/me", headers=BOB)
    return str(me.body["principal"])


def held(gate: Path) -> str:
    return json.dumps({"steps": 2, "gate": str(gate)})


async def test_a_share_counts_and_ends_on_every_node(pair: Cluster, tmp_path: Path) -> None:
    here, there = pair.nodes
    bob, session = await name_of_bob(pair), fresh()
    share = f"/api/sessions/{session}/shares/{bob}"
    async with here.client(token="alice-token") as alice, there.client(token="bob-token") as guest:
        await alice.run(session, "hello")
        await guest.fails("session_not_found", "attach", session_id=session)
        await guest.fails("session_not_found", "abort", session_id=session)
        assert (await there.http("GET", f"/api/sessions/{session}", headers=BOB)).status == 404
        # Shared from the node that does not own it.
        assert (await there.http("PUT", share, {"role": "observer"}, headers=ALICE)).status == 200
        attached = await guest.ok("attach", session_id=session)
        assert attached["role"] == "observer"
        assert (await guest.ok("history", session_id=session))["messages"]
        assert (await there.http("GET", f"/api/sessions/{session}", headers=BOB)).status == 200
        await guest.fails("forbidden", "prompt", session_id=session, text="mine")
        await guest.fails("forbidden", "abort", session_id=session)
        assert (await there.http("DELETE", f"/api/sessions/{session}", headers=BOB)).status == 403
        ack = await alice.prompt(session, "again")
        await guest.until("run-finish", run_id=ack["run_id"])

        assert (await there.http("PUT", share, {"role": "owner"}, headers=ALICE)).status == 200
        shares = (await there.http("GET", f"/api/sessions/{session}/shares", headers=ALICE)).body["shares"]
        assert [(line["principal"], line["role"]) for line in shares] == [(bob, "owner")]
        ack = await guest.prompt(session, held(tmp_path / "gate"))
        await alice.until("text-delta", run_id=ack["run_id"])
        stopped = await guest.ok("abort", session_id=session)
        assert [run["run_id"] for run in stopped["runs"]] == [ack["run_id"]]
        await guest.until("run-finish", run_id=ack["run_id"])

        assert (await here.http("DELETE", share, headers=ALICE)).status == 204
        assert (await guest.until("detached", session_id=session, timeout=LONG))["reason"] == "forbidden"
        await guest.fails("session_not_found", "attach", session_id=session)
        await guest.fails("session_not_found", "abort", session_id=session)
        assert (await there.http("GET", f"/api/sessions/{session}", headers=BOB)).status == 404


async def test_a_share_that_ends_while_the_bus_is_away_ends_all_the_same(pair: Cluster) -> None:
    here, there = pair.nodes
    bob, session = await name_of_bob(pair), fresh()
    share = f"/api/sessions/{session}/shares/{bob}"
    async with here.client(token="alice-token") as alice, there.client(token="bob-token") as guest:
        await alice.run(session, "hello")
        assert (await here.http("PUT", share, {"role": "observer"}, headers=ALICE)).status == 200
        await guest.ok("attach", session_id=session)
        there.to_redis.cut()
        try:
            assert (await here.http("DELETE", share, headers=ALICE)).status == 204
            assert (await guest.until("detached", session_id=session, timeout=LONG))["reason"] == "forbidden"
        finally:
            there.to_redis.mend()
