"""``python -m tests.bench.stores``: group commit on SQLite and PostgreSQL in one run, in ratio. Asserts nothing."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.stores.base import ChunkRow, Commit, SessionRow
from gateway.stores.pg_address import Address
from gateway.stores.postgres import PostgresStore
from gateway.stores.shared import SharedPostgresStore
from gateway.stores.sql import SqliteStore
from tests.support_postgres import Postgres

if TYPE_CHECKING:
    from gateway.stores.base import Store

SESSIONS = 100
SHAPES = ((1, 1), (SESSIONS, 1), (SESSIONS, 16))
"""(sessions in a transaction, events in each of their chunks)."""

EVENT = b'{"type":"text-delta","seq":123456,"text":"%s"}' % (b"x" * 90)


def _row(sid: int) -> SessionRow:
    return SessionRow(sid, "p", f"s{sid}", "ep", None, "running", 1, 1, 1, active=True)


async def measure(store: Store, seconds: float = 1.0) -> list[float]:
    """Give transactions per second for each of the shapes."""
    await store.open()
    fences: dict[int, int | None] = {}
    if isinstance(store, SharedPostgresStore):
        await store.renew("node", 600)
        for sid in range(1, SESSIONS + 1):
            fences[sid] = (await store.claim("p", f"s{sid}", "node")).fence
    await store.commit([Commit(sid, _row(sid)) for sid in range(1, SESSIONS + 1)])
    rates, seq = [], 0
    for sessions, events in SHAPES:
        data = b"\n".join([EVENT] * events)
        done, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            chunk = ChunkRow(seq + 1, seq + events, 1, data)
            await store.commit([Commit(s, chunk=chunk, fence=fences.get(s)) for s in range(1, sessions + 1)])
            seq += events
            done += 1
        rates.append(done / (time.perf_counter() - started))
    await store.close()
    return rates


async def main() -> None:
    """Print a table: each store beside SQLite as it is by default."""
    postgres = Postgres("fsync=on")
    with tempfile.TemporaryDirectory() as folder:
        try:
            postgres.create()
            stores: dict[str, Store] = {
                "sqlite": SqliteStore(str(Path(folder) / "normal.db")),
                "sqlite, sync=full": SqliteStore(str(Path(folder) / "full.db"), full_sync=True),
                "postgresql": PostgresStore(Address(postgres.database())),
                "postgresql, fenced": SharedPostgresStore(Address(postgres.database())),
            }
            base: list[float] = []
            for name, store in stores.items():
                rates = await measure(store)
                base = base or rates
                for (sessions, events), rate, first in zip(SHAPES, rates, base, strict=True):
                    shape = f"{sessions} x {events} events"
                    total = rate * sessions * events
                    print(f"{rate / first:6.2f}  {name:20} {shape:18} {rate:8.0f} commits/s {total:9.0f} events/s")
        finally:
            postgres.destroy()


if __name__ == "__main__":
    asyncio.run(main())
