"""Databases that already hold sessions: filled by SQL in bulk, kept in the temporary folder for the next run."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from gateway.archive import Archive
from gateway.stores.migrate import LATEST
from protocol.codec import encode

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = "ep_bench"
LAST_WEEK_MS = 7 * 24 * 3600 * 1000
HEAD = 100
"""The seq of every stored session."""


def name_of(number: int) -> str:
    """Give the id of the stored session of that number."""
    return f"stored-{number:08d}"


def database_with(sessions: int, folder: Path) -> Path:
    """Give a copy, in ``folder``, of a database with so many finished sessions of a prompt and an answer each."""
    template = Path(tempfile.gettempdir()) / f"gateway-bench-{LATEST}-{sessions}.db"
    if not template.exists():
        fresh = template.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        migrate = [sys.executable, "-m", "gateway", "migrate", "--store", f"sqlite:///{fresh}"]
        subprocess.run(migrate, check=True, stdout=subprocess.DEVNULL)
        _fill(fresh, sessions)
        fresh.rename(template)
    return Path(shutil.copy(template, folder / f"with-{sessions}.db"))


def _fill(path: Path, sessions: int) -> None:
    with sqlite3.connect(path) as database:
        database.execute("pragma synchronous=off")
        database.executemany(
            "insert into sessions (sid, principal, session_id, epoch, title, status, created_at, updated_at,"
            " message_count, active, run, checkpoint_seq, checkpoint) values (?,?,?,?,?,?,?,?,?,?,?,?,?)",
            _sessions(sessions),
        )
        database.executemany(
            "insert into messages (sid, position, message_id, data) values (?,?,?,?)", _messages(sessions)
        )
    database.execute("pragma wal_checkpoint(truncate)")
    database.close()


def _sessions(count: int) -> Iterator[tuple[object, ...]]:
    archive = Archive()
    archive.fold.seq, archive.fold.epoch = HEAD, EPOCH
    checkpoint = encode(archive.fold.dump() | {"messages": [], "seen": []})
    for number in range(count):
        at = LAST_WEEK_MS + number
        yield (number + 1, "local", name_of(number), EPOCH, "A question", "idle", at, at, 2, 0, None, HEAD, checkpoint)


def _messages(count: int) -> Iterator[tuple[int, int, str, bytes]]:
    question = {"role": "user", "parts": [{"type": "text", "text": "What is this?"}], "created_at": LAST_WEEK_MS}
    answer = {
        "role": "assistant",
        "run_id": "run_1",
        "parts": [{"type": "text", "part_id": "prt_1", "text": "An answer of some length. " * 20, "state": "done"}],
        "finish_reason": "stop",
        "usage": None,
        "error": None,
        "created_at": LAST_WEEK_MS,
        "completed_at": LAST_WEEK_MS + 1000,
    }
    rows = [(id_, orjson.dumps({"id": id_} | message)) for id_, message in (("msg_1", question), ("msg_2", answer))]
    for number in range(count):
        for position, (id_, data) in enumerate(rows):
            yield number + 1, position, id_, data
