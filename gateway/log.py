"""One log per session, which cursors pull from.

An event is appended, stamped with its ``seq`` and encoded once, committed together with whatever else waits, and only
then folded and published. Publishing pushes nothing: it tells the cursors' outboxes that there is something to take.
Deltas of one part that arrive before the next commit are joined before stamping.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.archive import Archive
from gateway.ids import new_id, now_ms
from gateway.ring import PIECE_BYTES, Ring
from gateway.stores.base import ChunkRow, Commit
from protocol import codec
from protocol.events import DELTAS, UNTIMED

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.cursor import Cursor
    from gateway.ring import Taken
    from gateway.stores.base import CommandRow, SessionRow, ShareRow, StoredSession
    from gateway.writer import Writer

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


class Batch:
    """What one log has in a transaction."""

    __slots__ = ("commit", "effects", "epoch", "events", "records")

    def __init__(self, commit: Commit, events: Sequence[dict[str, Any]]) -> None:
        self.commit = commit
        self.effects: Sequence[Effect] = ()
        self.events = events
        self.records: Sequence[codec.Record] = ()
        self.epoch: str | None = None


class _Aside:
    """What the next commit has beside events. Most commits have nothing."""

    __slots__ = ("commands", "compact", "delete", "described", "effects", "removed_at", "shares")

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.commands: list[CommandRow] = []
        self.shares: list[ShareRow] = []
        self.described = False
        self.removed_at: int | None = None
        self.delete = False
        self.compact = False


class Log:
    """The log of one session: pending events, the ring of committed ones, the fold, the cursors.

    ``describe`` gives the session's row for the store; ``changed`` is called after each publication that changed it.
    ``lost`` is called when a commit failed: nothing that was pending exists any more. ``refused`` is called instead
    when the store refused it, because another node owns the session by now.

    A log of a session that another node owns *follows*: nothing is appended to it, its events come by :meth:`follow`.
    """

    __slots__ = (
        "__weakref__",
        "_aside",
        "_encoder",
        "_new_epoch",
        "_pending",
        "_pending_bytes",
        "_tail",
        "_waiters",
        "_writer",
        "archive",
        "changed",
        "compacted_to",
        "cursors",
        "cut",
        "describe",
        "epoch",
        "fence",
        "floor",
        "following",
        "head",
        "lost",
        "refused",
        "retain_bytes",
        "ring",
        "session_id",
        "sid",
    )

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
        self.ring = Ring()
        """The events from the floor to the head."""
        self.cursors: set[Cursor] = set()
        self.describe: Callable[[], SessionRow] = _no_row
        self.changed: Callable[[], None] = _nothing
        self.lost: Callable[[], None] = _nothing
        self.refused: Callable[[], None] = _nothing
        self.fence: int | None = None
        """The lease under which this node appends, where several share a store."""
        self.following = False
        self._writer = writer
        self._encoder = codec.EventEncoder(session_id)
        self._pending: list[dict[str, Any]] = []
        self._tail: list[str] | None = None
        self._pending_bytes = 0
        self._aside: _Aside | None = None
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
                self._beside.described = True
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

    def extend(self, text: str) -> bool:
        """Join text to the delta that was appended last; False: there is none that waits, append an event."""
        tail = self._tail
        if tail is None or self._pending_bytes + len(text) > JOIN_BYTES:
            return False
        tail.append(text)
        self._pending_bytes += len(text)
        return True

    def _settle(self) -> None:
        if self._tail is not None and len(self._tail) > 1:
            self._pending[-1]["text"] = "".join(self._tail)
            self._tail = [self._pending[-1]["text"]]

    @property
    def _beside(self) -> _Aside:
        aside = self._aside
        if aside is None:
            aside = self._aside = _Aside()
        return aside

    @property
    def effects(self) -> Sequence[Effect]:
        """What waits for the next commit."""
        return () if self._aside is None else self._aside.effects

    def after(self, effect: Effect) -> None:
        """Have ``effect`` called with the commit of what has been appended so far."""
        self._beside.effects.append(effect)
        self._writer.schedule(self)

    def remember(self, command: CommandRow) -> None:
        """Store a command in the same transaction as its effect."""
        self._beside.commands.append(command)

    def share(self, row: ShareRow) -> None:
        """Store with the next commit who may use the session, or may no longer."""
        self._beside.shares.append(row)
        self._writer.schedule(self)

    def redescribe(self) -> None:
        """Store the session's row again (title or options changed)."""
        self._beside.described = True
        self._writer.schedule(self)

    def remove_from(self, position: int) -> None:
        """Remove stored messages from ``position`` on, in the same transaction as what is appended."""
        self._beside.removed_at = position

    def renew_epoch(self) -> None:
        """Start a new epoch: every cursor will get ``attached`` and a snapshot once it is stored."""
        self._new_epoch = new_id("ep")
        self._beside.described = True
        self._writer.schedule(self)

    @property
    def row_epoch(self) -> str:
        """The epoch as the store should have it."""
        return self._new_epoch or self.epoch

    def delete(self, effect: Effect) -> None:
        """Delete the session from the store."""
        self._beside.delete = self._beside.described = True
        self.after(effect)

    def compact(self) -> None:
        """Store finished messages whole with the next commit, and let go of events past retention."""
        self._beside.compact = True
        self._writer.schedule(self)

    @property
    def quiet(self) -> bool:
        """Nothing waits to be committed."""
        return not self._pending and self._aside is None

    @property
    def pending(self) -> bool:
        """Events wait to be committed."""
        return bool(self._pending)

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

    def take(self, now: int) -> Batch:
        """Stamp and encode what is pending, as one batch."""
        self._settle()
        events, self._pending = self._pending, []
        self._tail, self._pending_bytes = None, 0
        aside, self._aside = self._aside, None
        commit = Commit(self.sid, fence=self.fence)
        batch = Batch(commit, events)
        if events:
            session_id, seq, encode = self.session_id, self.head, self._encoder.encode
            records = batch.records = []
            for event in events:
                seq += 1
                event["session_id"] = session_id
                event["seq"] = seq
                records.append(encode(event))
            commit.chunk = ChunkRow(self.head + 1, seq, now, b"\n".join([record.data for record in records]))
        if aside is not None:
            self._take_aside(aside, batch)
        return batch

    def _take_aside(self, aside: _Aside, batch: Batch) -> None:
        commit = batch.commit
        batch.effects = aside.effects
        commit.commands, commit.shares = aside.commands, aside.shares
        commit.remove_from, commit.delete = aside.removed_at, aside.delete
        if aside.described:
            commit.session = self.describe()
        batch.epoch, self._new_epoch = self._new_epoch, None
        if aside.compact:
            if commit.remove_from is None:
                commit.compaction = self.archive.compaction(self.floor)
            else:  # what is removed has to be out of the fold before that is stored
                self._beside.compact = True

    def publish(self, batch: Batch, now: int) -> None:
        """The batch is durable: answer its commands, fold it, wake the cursors."""
        for effect in batch.effects:
            try:
                effect.committed()
            except Exception:
                logger.exception("an effect failed after its commit")
        commit = batch.commit
        if commit.compaction is not None:
            self.archive.compacted(commit.compaction)
            self.compacted_to = commit.compaction.seq
        if batch.events:
            apply = self.archive.apply
            for event in batch.events:
                apply(event, commit.remove_from)
            self._hold(batch.records, now)
        if batch.epoch is not None:
            self.epoch = self.archive.fold.epoch = batch.epoch
            for cursor in list(self.cursors):
                cursor.sink.reset(cursor)
        if batch.events:
            for cursor in self.cursors:
                cursor.sink.ready(cursor)
        if self._waiters:
            self._release()
        if commit.session is not None and not commit.delete:
            self.changed()

    def _hold(self, records: Sequence[codec.Record], committed_at: int) -> None:
        most = self.retain_bytes
        # Retention takes whole pieces: where little is kept they are small.
        self.ring.add(records, committed_at, min(PIECE_BYTES, most // 16))
        self.head = records[-1].seq
        if self.ring.size > most + most // 8:
            self.cut |= self.expire(0, most)

    def drop_pending(self) -> None:
        """Forget what was appended and not committed: its commit failed."""
        effects, aside = self.effects, self._aside
        self._pending, self._tail, self._pending_bytes = [], None, 0
        self._aside = self._new_epoch = None
        if aside is not None and (aside.described or aside.compact):  # of what is committed, both are still to be done
            self._beside.described, self._beside.compact = aside.described, aside.compact
        for effect in effects:
            effect.failed()
        self._release()

    def _release(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # -- reading

    def read(self, cursor: Cursor, *, merge: bool, limit: int, force: bool) -> Taken | None:
        """Take frames for a cursor up to ``limit`` bytes (with ``force`` at least one), and move it.

        None: it is below the floor.
        """
        if cursor.seq < self.floor:
            return None
        taken = self.ring.take(cursor.seq, merge=merge, limit=limit, force=force)
        cursor.seq = taken.seq
        return taken

    def expire(self, before: int, max_bytes: int) -> bool:
        """Drop events committed before ``before`` (ms) and all past ``max_bytes``, oldest first. True if any went."""
        floor = self.ring.drop(before, max_bytes)
        if floor is None:
            return False
        self.floor = floor
        return True

    # -- from the store

    def restore(self, found: StoredSession) -> None:
        """Rebuild the fold and the ring from the store."""
        self.archive.restore(found)
        self.head = self.floor = self.compacted_to = found.seq
        chunks = _unbroken(found.chunks)
        if chunks and chunks[-1].last_seq >= found.seq:
            self.floor = self.head = chunks[0].first_seq - 1
        self._replay(chunks)
        self.archive.finish_restore(found.tail)

    def catch_up(self, found: StoredSession) -> None:
        """After a failed commit: take over what the store has beyond the head, and publish it."""
        # A removed message that is not in memory was the first of those that the store no longer has.
        self._replay(found.chunks, removed_at=found.stored_messages)
        for cursor in self.cursors:
            cursor.sink.ready(cursor)

    # -- following another node

    def stand_down(self) -> None:
        """The session is this log's no more: what was pending is gone, the ring and the cursors stay."""
        self.drop_pending()
        self._aside, self.cut = None, False
        self.describe, self.changed, self.lost, self.refused = _no_row, _nothing, _nothing, _nothing
        self.fence, self.following = None, True

    def stand_up(self, fence: int) -> None:
        """The session is this node's own from now on."""
        self.drop_pending()
        self.fence, self.following = fence, False

    def follow(self, chunk: ChunkRow, removed_at: int | None) -> bool:
        """Publish what another node committed. False: something before it is missing, see :meth:`reload`."""
        if chunk.last_seq <= self.head:
            return True
        if chunk.first_seq != self.head + 1:
            return False
        self._replay([chunk], removed_at)
        for cursor in self.cursors:
            cursor.sink.ready(cursor)
        return True

    def reload(self, found: StoredSession) -> None:
        """Become what the store has. Cursors go on where that is possible, else they get a snapshot."""
        fresh = Log(self._writer, found.row.sid, self.session_id, found.row.epoch)
        fresh.restore(found)
        same = fresh.epoch == self.epoch and fresh.sid == self.sid
        for name in ("sid", "epoch", "archive", "head", "floor", "compacted_to", "ring"):
            setattr(self, name, getattr(fresh, name))
        for cursor in list(self.cursors):
            if same and cursor.seq <= self.head:
                cursor.sink.ready(cursor)
            else:
                cursor.sink.reset(cursor)

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
            self._hold(records, chunk.committed_at)


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
