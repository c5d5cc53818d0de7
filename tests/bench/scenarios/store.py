"""(j) the store by itself; (k) whether a full database slows a stream."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from gateway.app import open_store
from gateway.ids import new_id, new_row_id, now_ms
from gateway.log import Log
from gateway.stores.base import SessionRow
from gateway.writer import Writer
from tests.bench.database import database_with
from tests.bench.measure import Contestant, Outcome, Target, in_turn, ratios
from tests.bench.process import gateway
from tests.bench.rivals.base import Stopwatch
from tests.bench.rivals.product import Product
from tests.bench.scenarios.throughput import rate_of

if TYPE_CHECKING:
    from tests.bench.plan import Plan

LOGS = 50
PER_COMMIT = 128


async def store(plan: Plan) -> Outcome:
    """(j): fifty logs through the writer, to a row per event with the standard library's sqlite3."""
    sizes: dict[str, float] = {}

    async def ours() -> float:
        seconds, sizes["gateway"] = await _through_the_writer(plan.events)
        return plan.events / seconds

    async def rows() -> float:
        seconds, sizes["a row per event"] = _row_per_event(plan.events)
        return plan.events / seconds

    contestants = {"gateway": Contestant(ours), "a row per event": Contestant(rows)}
    values = await in_turn(plan.rounds, contestants)
    notes = [f"{name}: {size:.0f} bytes per event on disk" for name, size in sizes.items()]
    notes.append("the gateway's include stamping, encoding, folding and publishing; the rows come encoded")
    return Outcome("j", "store: events committed", "events/s", "higher", values, notes=notes)


def _event(number: int) -> dict[str, object]:
    return {"type": "tool-progress", "run_id": "run_0123456789a", "call_id": "call_0123456789a", "data": number}


async def _through_the_writer(events: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.db"
        store = open_store(f"sqlite:///{path}")
        await store.open()
        writer = Writer(store)
        writer.start()
        logs = [_log(writer, number) for number in range(LOGS)]
        await writer.settled()
        watch = Stopwatch()
        for number in range(0, events, LOGS):
            for log in logs:
                log.append(_event(number))
            if number % (LOGS * PER_COMMIT // 8) == 0:
                await asyncio.sleep(0)
        await writer.settled()
        seconds = watch.seconds
        await writer.stop()
        await store.close()
        return seconds, path.stat().st_size / events


def _log(writer: Writer, number: int) -> Log:
    sid, epoch, name, now = new_row_id(), new_id("ep"), f"s{number}", now_ms()
    log = Log(writer, sid, name, epoch)
    log.describe = lambda: SessionRow(sid, "local", name, epoch, None, "running", now, now, 0, True, None)
    log.redescribe()
    return log


def _row_per_event(events: int) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.db"
        database = sqlite3.connect(path)
        database.execute("pragma journal_mode=wal")
        database.execute("pragma synchronous=normal")
        database.execute(
            "create table events (sid integer, seq integer, data blob, primary key (sid, seq)) without rowid"
        )
        data = orjson.dumps(_event(0) | {"session_id": "s0", "seq": 12345})
        watch = Stopwatch()
        for start in range(0, events, PER_COMMIT):
            many = range(start, min(start + PER_COMMIT, events))
            database.executemany("insert into events values (?,?,?)", [(i % LOGS, i, data) for i in many])
            database.commit()
        seconds = watch.seconds
        database.execute("pragma wal_checkpoint(truncate)")
        database.close()
        return seconds, path.stat().st_size / events


async def growth(plan: Plan) -> Outcome:
    """(k): scenario (a) on databases that hold more and more."""
    product = Product()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        contestants = {}
        for count in plan.stored:
            server = stack.enter_context(gateway(store=database_with(count, folder), commands_per_s=10_000))
            name = f"{count:,} stored" if count else "gateway"
            contestants[name] = Contestant(rate_of(product.flood, server.port, 4 * plan.events), server)
        values = await in_turn(plan.rounds, contestants)
    most = f"{plan.stored[-1]:,} stored"
    return Outcome(
        "k",
        "one session flat out, by sessions in the database",
        "engine events/s",
        "higher",
        values,
        targets=[Target(f"{most}, to none", ratios(values[most], values["gateway"]), 0.9)],
    )
