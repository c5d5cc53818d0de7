"""The committed events that a log holds for replay, in pieces of bytes that are copied whole.

By itself each event would be an object, and bytes somewhere else in memory: a long replay would chase them one by one,
and the garbage collector would look at every one. So neighbours that were committed close together are one piece, cut
only where a cursor stands in it or a message ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol.codec import Record

PIECE_BYTES = 8 * 1024
"""A piece grows up to this; a larger event is a piece of its own."""

SPAN_MS = 1000
"""A piece grows so long. It goes out of retention as one, when the newest of it does."""

MERGE_ROOM = 64
"""What a merged delta needs beside its head and text: ``from``, ``seq``, their digits, the array's brackets."""

_last = attrgetter("last")


class Piece:
    """Events that follow on each other, ``first`` to ``last``.

    With a ``head`` they are deltas of one part and ``data`` is their texts end to end (JSON's, without the quotes);
    without, ``data`` is their JSON with commas between. ``ends`` says where in it each event ends.
    """

    __slots__ = ("data", "ends", "first", "head", "last", "since", "size", "until")

    def __init__(self, record: Record, now: int) -> None:
        self.first = self.last = record.seq
        self.head = record.head
        self.data: bytes | bytearray = bytearray(record.data if record.head is None else record.text)
        self.ends = array("I", (len(self.data),))
        self.size = len(record.data)
        self.since = self.until = now

    def add(self, record: Record, now: int) -> None:
        """Append the next event, which has the same head."""
        self.last = record.seq
        if record.head is None:
            self.data += b","
            self.data += record.data
        else:
            self.data += record.text
        self.ends.append(len(self.data))
        self.size += len(record.data)
        if now > self.until:
            self.until = now

    def cut(self, after: int, room: int, *, force: bool) -> tuple[bytes, int]:
        """Give what follows ``after`` and fits into ``room`` bytes (with ``force`` one event at least), and its end.

        An end of ``after`` says that nothing does.
        """
        ends = self.ends
        start = after + 1 - self.first
        begin = 0
        if start:
            begin = ends[start - 1] + (self.head is None)
        stop = len(ends) if ends[-1] - begin <= room else bisect_right(ends, begin + room, start)
        if stop == start:
            if not force:
                return b"", after
            stop += 1
        whole = not begin and stop == len(ends)
        return bytes(self.data if whole else self.data[begin : ends[stop - 1]]), self.first + stop - 1


class Taken(NamedTuple):
    """What a reader gets at once."""

    parts: list[bytes]
    """Encoded frames; one part may hold many, with commas between."""
    joined: bool
    """One does."""
    seq: int
    """The last one taken."""
    size: int
    """Bytes, a comma after each frame included."""


class Ring:
    """Pieces that follow on each other, oldest first. ``size`` is what all would take on the wire, unmerged."""

    __slots__ = ("_newest", "_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._newest: bytes | None = None
        """The last event as it is: what live readers want. Forgotten when retention is next looked at."""
        self.size = 0

    def add(self, records: Sequence[Record], now: int, most: int = PIECE_BYTES) -> None:
        """Append the events of one commit; a piece grows up to ``most`` bytes."""
        pieces = self._pieces
        piece = pieces[-1] if pieces else None
        for record in records:
            size = len(record.data)
            self.size += size
            if (
                piece is not None
                and piece.head is record.head
                and piece.size + size <= most
                and now - piece.since <= SPAN_MS
            ):
                piece.add(record, now)
            else:
                if piece is not None:
                    piece.data = bytes(piece.data)  # it grows no more: whole, it is given away without a copy
                piece = Piece(record, now)
                pieces.append(piece)
        self._newest = records[-1].data

    def drop(self, before: int, most: int) -> int | None:
        """Drop what was committed before ``before`` (ms), and all past ``most`` bytes, oldest first.

        Gives the last seq that went, None if none did.
        """
        pieces = self._pieces
        self._newest = None
        gone = 0
        while gone < len(pieces) and (pieces[gone].until < before or self.size > most):
            self.size -= pieces[gone].size
            gone += 1
        if not gone:
            return None
        last = pieces[gone - 1].last
        del pieces[:gone]
        return last

    def take(self, after: int, *, merge: bool, limit: int, force: bool = True) -> Taken:
        """Take frames after ``after`` up to ``limit`` bytes (with ``force``, one at least).

        With ``merge``, neighbouring deltas of one part become one frame with ``from``.
        """
        pieces = self._pieces
        newest = self._newest
        if newest is not None and pieces[-1].last == after + 1 and (force or len(newest) + 2 <= limit):
            return Taken([newest], False, after + 1, len(newest) + 1)
        parts: list[bytes] = []
        joined = False
        seq, size = after, 0
        at = bisect_left(pieces, after + 1, key=_last)
        while at < len(pieces) and size < limit:
            piece = pieces[at]
            first = force and not parts
            if piece.head is None:
                data, last = piece.cut(seq, limit - size - 2, force=first)  # the brackets of the array count too
                if last == seq:
                    break
                joined = joined or last - seq > 1
            else:
                data, last = self._delta(at, piece.head, seq, limit - size if merge else 0)
                if not first and size + len(data) + 2 > limit:
                    break
            parts.append(data)
            seq = last
            size += len(data) + 1
            while at < len(pieces) and pieces[at].last <= seq:
                at += 1
        return Taken(parts, joined, seq, size)

    def _delta(self, at: int, head: bytes, after: int, room: int) -> tuple[bytes, int]:
        """Give the delta after ``after``, in piece ``at``, merged with those after it that fit into ``room``."""
        pieces = self._pieces
        room -= len(head) + MERGE_ROOM
        text, last = pieces[at].cut(after, room, force=True)
        while last == pieces[at].last and at + 1 < len(pieces) and pieces[at + 1].head is head:
            at += 1
            more, last = pieces[at].cut(last, room - len(text), force=False)
            text += more
        if last == after + 1:
            return b'%b,"seq":%d,"text":"%b"}' % (head, last, text), last
        return b'%b,"from":%d,"seq":%d,"text":"%b"}' % (head, after + 1, last, text), last
