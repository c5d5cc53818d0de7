"""Checkpoints of SQLite's log: in a thread that steps back, waited for where it is late, heard of where it fails."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from gateway.stores import checkpoints
from gateway.stores.base import ChunkRow, Commit
from gateway.stores.checkpoints import Checkpoints
from gateway.stores.sql import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(tmp_path / "g.db"))
    await store.open()
    yield store
    await store.close()


def write(store: SqliteStore, seq: int) -> asyncio.Task[frozenset[int]]:
    return asyncio.ensure_future(store.commit([Commit(1, chunk=ChunkRow(seq, seq, 0, b"x" * 6000))]))


async def test_commits_wait_for_a_checkpoint_once_the_next_one_is_due(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, original = threading.Event(), Checkpoints._run

    def held(self: Checkpoints) -> None:
        gate.wait(30)
        original(self)

    monkeypatch.setattr(checkpoints, "EVERY_BYTES", 25_000)
    monkeypatch.setattr(Checkpoints, "_run", held)
    seq = 0
    while store._checkpoints.running is None:
        seq += 1
        await write(store, seq)
    for _ in range(2):  # one runs, the next is not due yet
        seq += 1
        await write(store, seq)
    commit = write(store, seq + 1)
    for _ in range(50):
        if commit.done():
            seq += 1
            commit = write(store, seq + 1)
        await asyncio.sleep(0)
    assert not commit.done(), "it waits"
    gate.set()
    await commit


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
async def test_the_thread_steps_back(store: SqliteStore) -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    ours = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert store._checkpoints._thread.submit(priority).result() == min(ours + checkpoints.NICENESS, 19)


async def test_one_that_fails_is_heard_of_once_and_commits_go_on(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "EVERY_BYTES", 1)
    monkeypatch.setattr(os, "fsync", fails)
    with caplog.at_level(logging.WARNING, "gateway.stores.checkpoints"):
        for seq in range(1, 6):
            await write(store, seq)
            assert store._checkpoints.running is not None
            await asyncio.wait([store._checkpoints.running])
            assert store._checkpoints.running.exception() is None
    assert [record.message.split(":")[0] for record in caplog.records] == ["the write-ahead log stays as it is for now"]


async def test_the_locks_on_the_file_outlive_the_handle_that_syncs_it(store: SqliteStore) -> None:
    """Closing any handle of a file ends all locks that a process has on it: ours is the last to go."""
    names: list[str] = []
    release = store._checkpoints.release

    def released() -> None:
        assert store._writer is None
        assert store._reader is None
        assert store._checkpoints._connection is None
        names.append("released")
        release()

    store._checkpoints.release = released  # type: ignore[method-assign]
    await store.close()
    assert names == ["released"]
    with sqlite3.connect(store._path) as other:
        other.execute("begin exclusive")
    other.close()
