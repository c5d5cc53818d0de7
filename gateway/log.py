"""One log per session, cursors that pull, and the group-commit writer.

An event is appended, stamped with its ``seq`` and encoded once, committed together with whatever else waits, and only
then folded and published. Publishing pushes nothing: it tells the cursors' outboxes that there is something to take.
Deltas of one part that arrive before the next commit are joined before stamping, so load makes commits bigger, not
more frequent.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.archive import Archive
from gateway.ids import new_id, now_ms
from gateway.stores.base import ChunkRow, Commit, StoreUnavailable
from protocol import codec
from protocol.events import DELTAS, UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gateway.stores.base import CommandRow, SessionRow, Store, StoredSession

logger = logging.getLogger(__name__)

UNCOMMITTED_BYTES = 256 * 1024
"""Past so much uncommitted in one session the engine waits (architecture, "Commit, then send")."""

JOIN_BYTES = 64 * 1024
"""Deltas are joined up to this size; a larger one stands alone."""

EVENT_OVERHEAD = 160
"""What an event's envelope takes, about; a bound needs no more precision."""


class Effect(Protocol):
    """What a command waits for: called once, inside the writer, before the events of the commit are published."""

    def committed(self) -> None:
        """The events are durable."""

    def failed(self) -> None:
        """They are not, and never will be."""


class Sink(Protocol):
    """Where a cursor belongs: told that a cursor has something to take."""

    def ready(self, cursor: Cursor) -> None:
        """Take from this cursor when the socket allows."""

    def reset(self, cursor: Cursor) -> None:
        """The log has a new epoch: answer with ``attached`` and a snapshot."""

    def reply(self, frame: dict[str, Any]) -> None:
        """Send a frame beside the events."""

    def end(self, cursor: Cursor, reason: str) -> None:
        """The subscription is over: say ``detached``."""


class Cursor:
    """One (connection, session) pair: a position in the log. ``seq`` is the last one sent."""

    __slots__ = ("active", "log", "role", "seq", "sink")

    def __init__(self, log: Log, sink: Sink, role: str) -> None:
        self.log = log
        self.sink = sink
        self.role = role
        self.seq = 0
        self.active = False
        """False until ``attached`` has gone out: before it the client ignores the session's events."""


class _Batch:
    """What one log has in the transaction under way."""

    __slots__ = ("commit", "effects", "epoch", "events", "records", "size")

    def __init__(self, commit: Commit, effects: list[Effect]) -> None:
        self.commit = commit
        self.effects = effects
        self.events: list[dict[str, Any]] = []
        self.records: list[codec.Record] = []
        self.size = 0
        self.epoch: str | None = None


class Log:
    """The log of one session: pending events, the ring of committed ones, the fold, the cursors.

    ``describe`` gives the session's row for the store; ``changed`` is called after each publication that changed it.
    ``lost`` is called when a commit failed: nothing that was pending exists any more.
    """

    def __init__(self, writer: Writer, sid: int, session_id: str, epoch: str) -> None:
        self.sid = sid
        self.session_id = session_id
        self.epoch = epoch
        self.archive = Archive()
        self.archive.fold.epoch = epoch
        self.head = 0
        self.floor = 0
        self.compacted_to = 0
        """The seq of the last checkpoint in the store."""
        self.retain_bytes = 2**62
        """What the ring may hold; past it by an eighth it is cut at once, the rest is the housekeeper's."""
        self.cut = False
        """It has been cut, and the store still has what went."""
        self.records: list[codec.Record] = []
        self.cursors: set[Cursor] = set()
        self.describe: Callable[[], SessionRow] = _no_row
        self.changed: Callable[[], None] = _nothing
        self.lost: Callable[[], None] = _nothing
        self._writer = writer
        self._encoder = codec.EventEncoder(session_id)
        self._marks: deque[tuple[int, int, int]] = deque()  # last_seq, committed_at, bytes
        self._held = 0
        self._pending: list[dict[str, Any]] = []
        self._tail: list[str] | None = None
        self._pending_bytes = 0
        self.effects: list[Effect] = []
        """What waits for the next commit."""
        self._commands: list[CommandRow] = []
        self._described = False
        self._removed_at: int | None = None
        self._delete = False
        self._compact = False
        self._new_epoch: str | None = None
        self._waiters: list[asyncio.Future[None]] = []

    # -- appending

    def append(self, event: dict[str, Any]) -> None:
        """Add an event (``type`` and ``run_id`` in it; it is the log's from now on)."""
        kind = event["type"]
        if kind in DELTAS:
            text = event["text"]
            event.pop("_size", None)
            if self._join(event, text):
                return
            self._tail = [text]
            self._pending_bytes += EVENT_OVERHEAD + len(text)
        else:
            self._settle()
            self._tail = None
            if kind not in UNTIMED:
                event["time"] = now_ms()
            self._pending_bytes += EVENT_OVERHEAD + event.pop("_size", 0)
            if kind in META_EVENTS:
                self._described = True
        self._pending.append(event)
        self._writer.schedule(self)

    def _join(self, event: dict[str, Any], text: str) -> bool:
        tail = self._tail
        if tail is None or not self._pending:
            return False
        last = self._pending[-1]
        if (
            last["part_id"] != event["part_id"]
            or last["type"] != event["type"]
            or self._pending_bytes + len(text) > JOIN_BYTES
            or "truncated" in event
            or "truncated" in last
        ):
            self._settle()
            return False
        tail.append(text)
        self._pending_bytes += len(text)
        return True

    def _settle(self) -> None:
        if self._tail is not None and len(self._tail) > 1:
            self._pending[-1]["text"] = "".join(self._tail)
            self._tail = [self._pending[-1]["text"]]

    def after(self, effect: Effect) -> None:
        """Have ``effect`` called with the commit of what has been appended so far."""
        self.effects.append(effect)
        self._writer.schedule(self)

    def remember(self, command: CommandRow) -> None:
        """Store a command in the same transaction as its effect."""
        self._commands.append(command)

    def redescribe(self) -> None:
        """Store the session's row again (title or options changed)."""
        self._described = True
        self._writer.schedule(self)

    def remove_from(self, position: int) -> None:
        """Remove stored messages from ``position`` on, in the same transaction as what is appended."""
        self._removed_at = position

    def renew_epoch(self) -> None:
        """Start a new epoch: every cursor will get ``attached`` and a snapshot once it is stored."""
        self._new_epoch = new_id("ep")
        self._described = True
        self._writer.schedule(self)

    @property
    def row_epoch(self) -> str:
        """The epoch as the store should have it."""
        return self._new_epoch or self.epoch

    def delete(self, effect: Effect) -> None:
        """Delete the session from the store."""
        self._delete = True
        self._described = True
        self.after(effect)

    def compact(self) -> None:
        """Store finished messages whole with the next commit, and let go of events past retention."""
        self._compact = True
        self._writer.schedule(self)

    @property
    def quiet(self) -> bool:
        """Nothing waits to be committed."""
        return not (self._pending or self.effects or self._described or self._compact)

    @property
    def crowded(self) -> bool:
        """So much is uncommitted that the engine has to wait."""
        return self._pending_bytes > UNCOMMITTED_BYTES

    async def room(self) -> None:
        """Wait until the next commit has been published or has failed."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    # -- the writer's side

    def take(self, now: int) -> _Batch:
        """Stamp and encode what is pending, as one batch."""
        self._settle()
        events, self._pending = self._pending, []
        batch = _Batch(Commit(self.sid, commands=self._commands), self.effects)
        self._tail, self.effects, self._commands, self._pending_bytes = None, [], [], 0
        commit = batch.commit
        seq = self.head
        for event in events:
            seq += 1
            stamped = {
                "type": event["type"],
                "session_id": self.session_id,
                "seq": seq,
                "run_id": event["run_id"],
                **event,
            }
            record = self._encoder.encode(stamped)
            batch.events.append(stamped)
            batch.records.append(record)
            batch.size += len(record.data)
        if events:
            data = b"\n".join([record.data for record in batch.records])
            commit.chunk = ChunkRow(self.head + 1, seq, now, data)
        if self._described:
            self._described = False
            commit.session = self.describe()
        commit.remove_from, self._removed_at = self._removed_at, None
        commit.delete = self._delete
        batch.epoch, self._new_epoch = self._new_epoch, None
        if self._compact and commit.remove_from is None:
            self._compact = False
            commit.compaction = self.archive.compaction(self.floor)
        return batch

    def publish(self, batch: _Batch, now: int) -> None:
        """The batch is durable: answer its commands, fold it, wake the cursors."""
        for effect in batch.effects:
            try:
                effect.committed()
            except Exception:
                logger.exception("an effect failed after its commit")
        if batch.commit.compaction is not None:
            self.archive.compacted(batch.commit.compaction)
            self.compacted_to = batch.commit.compaction.seq
        if batch.events:
            for event in batch.events:
                self.archive.apply(event, batch.commit.remove_from)
            self._hold(batch.records, now, batch.size)
        if batch.epoch is not None:
            self.epoch = self.archive.fold.epoch = batch.epoch
            for cursor in list(self.cursors):
                cursor.sink.reset(cursor)
        if batch.events:
            for cursor in self.cursors:
                cursor.sink.ready(cursor)
        self._release()
        if batch.commit.session is not None and not batch.commit.delete:
            self.changed()

    def _hold(self, records: Iterable[codec.Record], committed_at: int, size: int) -> None:
        self.records.extend(records)
        self.head = self.records[-1].seq
        self._marks.append((self.head, committed_at, size))
        self._held += size
        if self._held > self.retain_bytes + self.retain_bytes // 8:
            self.cut |= self.expire(0, self.retain_bytes)

    def drop_pending(self) -> None:
        """Forget what was appended and not committed: its commit failed."""
        effects, self.effects = self.effects, []
        self._pending, self._tail, self._pending_bytes = [], None, 0
        self._commands, self._removed_at, self._new_epoch, self._delete = [], None, None, False
        for effect in effects:
            effect.failed()
        self._release()

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- reading

    def read(self, cursor: Cursor, *, merge: bool, limit: int, force: bool) -> tuple[list[bytes], int] | None:
        """Take frames for a cursor up to ``limit`` bytes (with ``force`` at least one), and move it.

        None: it is below the floor.
        """
        start = cursor.seq - self.floor
        if start < 0:
            return None
        frames, stop, size = codec.frames(self.records, start, merge=merge, limit=limit, force=force)
        cursor.seq = self.floor + stop
        return frames, size

    def expire(self, before: int, max_bytes: int) -> bool:
        """Drop events committed before ``before`` (ms) and all past ``max_bytes``, oldest first. True if any went."""
        floor = self.floor
        while self._marks and (self._marks[0][1] < before or self._held > max_bytes):
            floor, _, size = self._marks.popleft()
            self._held -= size
        if floor == self.floor:
            return False
        del self.records[: floor - self.floor]
        self.floor = floor
        return True

    # -- from the store

    def restore(self, found: StoredSession, tail: list[bytes]) -> None:
        """Rebuild the fold and the ring from the store."""
        self.archive.restore(found)
        self.head = self.floor = self.compacted_to = found.seq
        chunks = _unbroken(found.chunks)
        if chunks and chunks[-1].last_seq >= found.seq:
            self.floor = self.head = chunks[0].first_seq - 1
        self._replay(chunks)
        self.archive.finish_restore(tail)

    def catch_up(self, found: StoredSession) -> None:
        """After a failed commit: take over what the store has beyond the head, and publish it."""
        # A removed message that is not in memory was the first of those that the store no longer has.
        self._replay(found.chunks, removed_at=found.stored_messages)
        for cursor in self.cursors:
            cursor.sink.ready(cursor)

    def _replay(self, chunks: Sequence[ChunkRow], removed_at: int | None = None) -> None:
        for chunk in chunks:
            if chunk.last_seq <= self.head:
                continue
            records = []
            for line in chunk.data.split(b"\n"):
                event = orjson.loads(line)
                if event["seq"] > self.archive.fold.seq:
                    self.archive.apply(event, removed_at)
                self.archive.note_ids(event)
                records.append(self._encoder.encode(event))
            self._hold(records, chunk.committed_at, len(chunk.data))


META_EVENTS = frozenset(
    {
        "queued",
        "dequeued",
        "messages-removed",
        "message-added",
        "run-start",
        "message-start",
        "abort-requested",
        "approval-request",
        "approval-resolved",
        "run-finish",
    }
)
"""Events after which the session's row (status, counts, times) is stored again."""


class Writer:
    """Commits what all sessions have pending in one transaction, publishes, repeats. Owned by the hub."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._dirty: dict[Log, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def start(self) -> None:
        """Start committing."""
        self._task = asyncio.create_task(self._run(), name="writer")

    async def stop(self) -> None:
        """Commit what is pending, then stop."""
        await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def settled(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    def schedule(self, log: Log) -> None:
        """Have a log's pending events committed."""
        self._dirty[log] = None
        self._wake.set()
        self._idle.clear()

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            dirty, self._dirty = self._dirty, {}
            if dirty:
                await self._write(list(dirty))
            if not self._dirty:
                self._idle.set()

    async def _write(self, logs: list[Log]) -> None:
        now = now_ms()
        taken = [(log, batch) for log in logs if (batch := self._take(log, now)) is not None]
        if not taken:
            return
        try:
            await self._store.commit([batch.commit for _, batch in taken])
        except Exception as exc:
            if not isinstance(exc, StoreUnavailable):
                logger.exception("the store failed in a way it should not")
            else:
                logger.error("the store is unavailable: %s", exc)
            for log, batch in taken:
                self._lose(log, batch.effects)
            return
        for log, batch in taken:
            try:
                log.publish(batch, now)
            except Exception:  # it is durable; one session's fault must not end the others' writer
                logger.exception("session %s: publishing failed", log.session_id)

    def _take(self, log: Log, now: int) -> _Batch | None:
        effects = log.effects
        try:
            return log.take(now)
        except Exception:
            logger.exception("session %s: what it appended cannot be written", log.session_id)
            self._lose(log, effects)
            return None

    def _lose(self, log: Log, effects: list[Effect]) -> None:
        for effect in effects:
            effect.failed()
        log.drop_pending()
        log.lost()


def _unbroken(chunks: Sequence[ChunkRow]) -> Sequence[ChunkRow]:
    """Give the newest chunks that follow on each other: a clock that was set back makes a sweep leave a hole."""
    first = len(chunks) - 1
    while first > 0 and chunks[first - 1].last_seq + 1 == chunks[first].first_seq:
        first -= 1
    return chunks[max(first, 0) :]


def _no_row() -> SessionRow:
    raise RuntimeError("the log has no session yet")


def _nothing() -> None:
    return None
