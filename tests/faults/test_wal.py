"""The write-ahead log of SQLite has a bound also where commits never pause."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from gateway.stores.base import ChunkRow, Commit
from gateway.stores.sql import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


async def test_commits_without_a_pause_leave_a_bounded_log(tmp_path: Path) -> None:
    """Past 16 MiB it starts over at its next checkpoint: 8 MiB later, and what was written while that ran."""
    path = tmp_path / "g.db"
    store = SqliteStore(str(path))
    await store.open()
    top = 0
    for n in range(1, 15_000):
        await store.commit([Commit(1, chunk=ChunkRow(n, n, 0, b"x" * 6000))])
        if n % 50 == 0:
            top = max(top, path.with_name("g.db-wal").stat().st_size)
            await asyncio.sleep(0)
    await store.close()
    print(f"{path.stat().st_size / MIB:.0f} MiB stored, at most {top / MIB:.0f} MiB in the log")
    assert path.stat().st_size > 80 * MIB
    assert top < 100 * MIB, "of 270 that it would be"
