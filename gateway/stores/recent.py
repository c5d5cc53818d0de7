"""Chunks on their way to their place (SQLite): first rows at the end of one table, a moment later many as one.

In the index of the chunks each session has pages of its own, and a page is written whole: with 500 sessions at 25
tokens a second, a token a commit each, 47 MB/s went to disk, 3.7 kB a token (measured; 22 MB/s since). Rows at the end
of a table without an index share their pages; what a session has there is put into its place together, which is also
when its chunks are joined.

This is the memory of what lies where, and the statements; it touches no database. Whatever was committed here before
the process died, :meth:`~gateway.stores.sql.SqliteStore.open` puts into its place.
"""

from __future__ import annotations

from array import array
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from gateway.stores.base import ChunkRow, Commit

MOVE_AFTER_MS = 2000
"""How long a chunk stays where it came in: what a session says meanwhile becomes one."""

MOVE_ROWS = 50
MOVE_SHARE = 128
"""At a time so many rows are moved, or this part of all where that is more: it is done on the loop, between commits. A
thousand sessions that began together are not moved together: 3,000 rows took 10 ms (measured)."""

CUT_ROWS = 1000
CUT_SHARE = 64
"""So many rows are cleared away at a time, or this part of all where that is more: 25,000 took 10 ms (measured)."""

MOST_BYTES = 8 * 1024 * 1024
"""What lies here at most, it is in memory, too: past it the oldest is moved at once, however much that is."""

JOINED_BYTES = 64 * 1024
"""Chunks are joined up to this size, and over :data:`MOVE_AFTER_MS` at most: retention takes a chunk as a whole."""

LARGE_BYTES = 16 * 1024
"""A larger chunk has pages enough of its own, and is put into its place at once."""

REFUSED_BYTES = 8 * MOST_BYTES
"""Where moving fails although committing does not (a damaged page, a disk with a page or two left), memory ends too."""

REMEMBERED_MS = 10_000
"""How long it is known what has been moved: longer than any reading of a session takes."""

NOTHING: Mapping[int, int] = MappingProxyType({})

Row = tuple[int, int, int, int, bytes]
"""sid, first seq, last seq, committed at (ms), data."""

Put = tuple[int, int, int, int, int, bytes]
"""A :data:`Row` with its id before it."""

PUT = "insert into recent (id, sid, first_seq, last_seq, committed_at, data) values (?, ?, ?, ?, ?, ?)"
PLACE = "insert into chunks (sid, first_seq, last_seq, committed_at, data) values (?, ?, ?, ?, ?)"
CUT = "delete from recent where id < ?"
READ = "select first_seq, last_seq, committed_at, data from recent where sid = ? order by id"
LAST_ID = "select coalesce(max(id), 0) from recent"
FIRST_ID = "select coalesce(min(id), 1) from recent"
LEFT = """
    select r.sid, r.first_seq, r.last_seq, r.committed_at, r.data
    from recent r join sessions s on s.sid = r.sid
    where r.first_seq > s.checkpoint_seq and r.first_seq > coalesce(
        (select c.last_seq from chunks c where c.sid = r.sid order by c.first_seq desc limit 1), 0)
    order by r.sid, r.first_seq
"""
"""What a process that died has left here. A row that was moved is in its place, and so is all before it; up to a
checkpoint everything is in its place or dropped."""


class _Held:
    """What one session has here and not yet in its place, oldest first.

    No tuple for each: the garbage collector would look at all that came in two seconds (15 ms a second, measured).
    """

    __slots__ = ("_marks", "data", "first_id", "since", "size")

    def __init__(self, first_id: int, since: int) -> None:
        self.first_id = first_id
        self.since = since
        self.data: list[bytes] = []
        self.size = 0
        self._marks = array("q")

    def add(self, first_seq: int, last_seq: int, committed_at: int, data: bytes) -> None:
        self._marks.extend((first_seq, last_seq, committed_at))
        self.data.append(data)
        self.size += len(data)

    def rows(self, sid: int) -> list[Row]:
        marks = iter(self._marks)
        return [(sid, *row) for row in zip(marks, marks, marks, self.data, strict=True)]


class Recent:
    """What has been committed a moment ago, by session; the session whose oldest came first is first."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes that lie here and have not been moved."""
        self._rows = 0
        self.next_id = 1
        """Of the next row. One that has it already was committed this moment, and is not known here yet."""
        self._held: dict[int, _Held] = {}
        self._moved: dict[int, int] = {}  # sessions that had something here a moment ago → when (ms) it was moved
        self._cut = 1

    @property
    def empty(self) -> bool:
        """Nothing lies here, not even what is in its place by now."""
        return self._cut == self.next_id

    def __contains__(self, sid: int) -> bool:
        """Say whether rows of a session lie here, or did a moment ago: a reader sees the database as it was then."""
        return sid in self._held or sid in self._moved

    def held(self, sids: Iterable[int]) -> list[int]:
        """Give those of some sessions that have something here which is not in its place."""
        return [sid for sid in sids if sid in self._held]

    def held_all(self) -> list[int]:
        """Give all sessions that have something here which is not in its place."""
        return list(self._held)

    def due(self, now: int) -> list[int]:
        """Give the sessions to move next: those whose oldest chunk is old enough, or whatever there is too much of."""
        due: list[int] = []
        rows, most, excess = 0, max(MOVE_ROWS, self._rows // MOVE_SHARE), self.size - MOST_BYTES
        for sid, held in self._held.items():
            if excess <= 0 and (rows >= most or held.since > now - MOVE_AFTER_MS):
                break
            due.append(sid)
            rows += len(held.data)
            excess -= held.size
        return due

    # -- statements; what they did is told below, once it is durable

    def rows(self, commits: Iterable[Commit]) -> list[Put]:
        """Give the rows that go to the end of the table."""
        chunks = [(commit.sid, commit.chunk) for commit in commits if commit.chunk is not None and is_put(commit)]
        return [(id_, sid, *chunk) for id_, (sid, chunk) in enumerate(chunks, start=self.next_id)]

    def move(self, sids: Iterable[int], drop_to: Mapping[int, int] = NOTHING) -> Iterator[tuple[str, Any]]:
        """Give the statement that puts sessions' chunks into their place, but for what is about to be dropped."""
        rows: list[Row] = []
        for sid in sids:
            to = drop_to.get(sid, 0)
            rows += _joined([row for row in self._held[sid].rows(sid) if row[2] > to])
        if rows:
            yield PLACE, rows

    def cut(self, low: int) -> Iterator[tuple[str, Any]]:
        """Give the statement that clears up behind what is in its place, see :meth:`low`."""
        if low > self._cut:
            yield CUT, (low,)

    def low(self, leaving: Collection[int], most: int = CUT_ROWS) -> int:
        """Give the id to clear up below once ``leaving`` are in their place: ``most`` rows or a share at a time."""
        gone = set(leaving)
        low = next((held.first_id for sid, held in self._held.items() if sid not in gone), self.next_id)
        return min(low, self._cut + max(most, (self.next_id - self._cut) // CUT_SHARE))

    # -- what has been done

    def added(self, rows: Sequence[Put]) -> None:
        """These :meth:`rows` are durable."""
        for row in rows:
            id_, sid, first_seq, last_seq, at, data = row
            held = self._held.get(sid)
            if held is None:
                held = self._held[sid] = _Held(id_, at)
            held.add(first_seq, last_seq, at, data)
            self.size += len(data)
            self._rows += 1
            self.next_id = id_ + 1

    def left(self, rows: Iterable[Row], first_id: int, last_id: int) -> None:
        """A process before this one has left these rows here, and perhaps others that are in their place."""
        self._cut = first_id
        for row in rows:
            self._held.setdefault(row[0], _Held(first_id, 0)).add(*row[1:])
            self.size += len(row[4])
            self._rows += 1
        self.next_id = last_id + 1

    def done(self, sids: Collection[int], now: int, *, low: int = 0) -> None:
        """Sessions' chunks have been put into their place, and all below ``low`` has been cleared up."""
        self._cut = max(self._cut, low)
        for sid in sids:
            self._moved.pop(sid, None)  # to the end: the oldest is first
            self._moved[sid] = now  # before it is held no more: a reader in another thread finds one or the other
            held = self._held.pop(sid)
            self.size -= held.size
            self._rows -= len(held.data)
        while self._moved and self._moved[oldest := next(iter(self._moved))] < now - REMEMBERED_MS:
            del self._moved[oldest]


def is_put(commit: Commit) -> bool:
    """Say whether a commit's chunk goes to the end of the table: none that a compaction may drop, no large one."""
    large = commit.chunk is not None and len(commit.chunk.data) > LARGE_BYTES
    return commit.compaction is None and not commit.delete and not large


def merged(placed: Iterable[ChunkRow], recent: Iterable[ChunkRow], checkpoint: int) -> list[ChunkRow]:
    """Give a session's chunks of both tables in order, each once: up to a checkpoint they are in place, or dropped."""
    chunks = list(placed)
    to = max(checkpoint, chunks[-1].last_seq if chunks else 0)
    chunks += (chunk for chunk in recent if chunk.first_seq > to)
    return chunks


def _joined(rows: list[Row]) -> Iterator[Row]:
    """Join a session's rows: what follows on each other is one chunk, up to a size and a time."""
    start, size = 0, 0
    for index, row in enumerate(rows):
        if index > start:
            follows = rows[index - 1][2] + 1 == row[1] and row[3] - rows[start][3] <= MOVE_AFTER_MS
            if not follows or size + len(row[4]) > JOINED_BYTES:
                yield _one(rows[start:index])
                start, size = index, 0
        size += len(row[4]) + 1
    if rows:
        yield _one(rows[start:])


def _one(rows: list[Row]) -> Row:
    first, last = rows[0], rows[-1]
    if len(rows) == 1:
        return first
    return (first[0], first[1], last[2], last[3], b"\n".join([row[4] for row in rows]))
