"""Logs without a writer, a store or a loop: a test appends, and commits when it wants to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from gateway.log import Log
from gateway.stores.base import ChunkRow, SessionRow, StoredSession

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.cursor import Cursor
    from gateway.outbox import Outbox
    from gateway.stores.base import Commit
    from gateway.writer import Writer

Event = dict[str, Any]
Frame = dict[str, Any]


class StillWriter:
    """Notes who has something to commit, and does nothing."""

    def __init__(self) -> None:
        self.dirty: list[Log] = []

    def schedule(self, log: Log) -> None:
        self.dirty.append(log)


def session_row(**fields: Any) -> SessionRow:
    plain: dict[str, Any] = {
        "sid": 1,
        "principal": "p",
        "session_id": "s",
        "epoch": "ep",
        "title": None,
        "status": "idle",
        "created_at": 1,
        "updated_at": 1,
        "message_count": 0,
        "active": False,
    }
    return SessionRow(**(plain | fields))


def make_log(session_id: str = "s", epoch: str = "ep") -> Log:
    log = Log(cast("Writer", StillWriter()), 1, session_id, epoch)
    log.describe = lambda: session_row(session_id=session_id, epoch=log.row_epoch)
    return log


def commit(log: Log, now: int = 1000) -> Commit:
    """Commit and publish what is pending; gives what the store would have got."""
    batch = log.take(now)
    log.publish(batch, now)
    return batch.commit


def held(log: Log) -> dict[int, bytes]:
    """Everything that can be replayed, event by event, by seq."""
    lines: dict[int, bytes] = {}
    seq = log.floor
    while (taken := log.ring.take(seq, merge=False, limit=1)).parts:
        (line,) = taken.parts
        seq = json.loads(line)["seq"]
        assert (seq, False) == (taken.seq, taken.joined)
        lines[seq] = line
    return lines


def start(run_id: str = "r", message_id: str = "m", text: str = "hi") -> list[Event]:
    user = {"id": f"u-{run_id}", "role": "user", "parts": [{"type": "text", "text": text}], "created_at": 1}
    return [
        {"type": "message-added", "run_id": run_id, "message": user},
        {"type": "run-start", "run_id": run_id, "mode": "prompt"},
        {"type": "message-start", "run_id": run_id, "message_id": message_id, "role": "assistant"},
    ]


def text_start(run_id: str = "r", message_id: str = "m", part_id: str = "p") -> Event:
    return {"type": "text-start", "run_id": run_id, "message_id": message_id, "part_id": part_id}


def delta(text: str, run_id: str = "r", message_id: str = "m", part_id: str = "p") -> Event:
    return {"type": "text-delta", "run_id": run_id, "message_id": message_id, "part_id": part_id, "text": text}


def finish(run_id: str = "r", message_id: str = "m", status: str = "completed") -> list[Event]:
    end = {"finish_reason": "stop", "usage": None, "error": None}
    return [
        {"type": "message-finish", "run_id": run_id, "message_id": message_id, **end},
        {"type": "run-finish", "run_id": run_id, "status": status, "reason": None, "error": None, "settled": True},
    ]


def say(log: Log, *events: Event, now: int = 1000) -> Commit:
    """Append and commit."""
    for event in events:
        log.append(dict(event))
    return commit(log, now)


def turn(log: Log, n: int, text: str = "answer", now: int = 1000) -> None:
    """A whole run, committed: one user message, one answer."""
    run, message, part = f"r{n}", f"m{n}", f"p{n}"
    ids = {"run_id": run, "message_id": message, "part_id": part}
    end = {"type": "text-end", **ids}
    say(log, *start(run, message), text_start(**ids), delta(text, **ids), end, *finish(run, message), now=now)


def messages_of(outbox: Outbox) -> list[bytes]:
    """Everything that waits, message by message."""
    out = []
    while (message := outbox.next_message()) is not None:
        out.append(message)
    return out


def frames_in(message: bytes) -> list[Frame]:
    value = json.loads(message)
    return value if isinstance(value, list) else [value]


def frames_of(outbox: Outbox) -> list[Frame]:
    """Everything that waits, frame by frame."""
    return [frame for message in messages_of(outbox) for frame in frames_in(message)]


def stored(log: Log, commits: Sequence[Commit]) -> StoredSession:
    """What a store would give back after these commits (removals aside)."""
    chunks: list[ChunkRow] = []
    rows: dict[int, bytes] = {}
    seq, checkpoint = 0, None
    for one in commits:
        if one.chunk is not None:
            chunks.append(one.chunk)
        if one.compaction is not None:
            seq, checkpoint = one.compaction.seq, one.compaction.checkpoint
            rows |= {message.position: message.data for message in one.compaction.messages}
            drop_to = one.compaction.drop_to
            chunks = [chunk for chunk in chunks if chunk.last_seq > drop_to]
    row = session_row(session_id=log.session_id, epoch=log.epoch)
    tail = [rows[position] for position in sorted(rows)][-50:]
    return StoredSession(row, seq, checkpoint, chunks, len(rows), tail)


class Recorder:
    """A sink that only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []

    def ready(self, cursor: Cursor) -> None:
        self.told.append(("ready", cursor))

    def reset(self, cursor: Cursor) -> None:
        self.told.append(("reset", cursor))

    def reply(self, frame: Frame) -> None:
        self.told.append(("reply", frame))

    def end(self, cursor: Cursor, reason: str) -> None:
        self.told.append(("end", reason))
