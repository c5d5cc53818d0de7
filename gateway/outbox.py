"""What one connection has still to send: replies, attachments, list changes, and its cursors in turn.

It has no task and no socket. The pump asks for the next message whenever the socket took the last one, so a slow client
costs one message and the replies that wait for it; events wait in the logs, for everybody once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.cursor import Cursor
from protocol import codec, frames

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.log import Log
    from gateway.parking import Parked
    from protocol.commands import Role

REPLY_BYTES = 256 * 1024
"""What replies may wait for a client that does not read; past it the connection ends with 4102."""

QUANTUM = 16 * 1024
"""What one session may put into a batch before the next one's turn."""

ATTACH_COST = 256
"""What an attachment that waits to be rendered counts toward :data:`REPLY_BYTES`."""


class _Attach:
    """An attachment to be answered: ``attached``, then replay or a snapshot, decided when it is sent."""

    __slots__ = ("cursor", "epoch", "id", "seq")

    def __init__(
        self, cursor: Cursor, id_: str | None = None, epoch: str | None = None, seq: int | None = None
    ) -> None:
        self.cursor = cursor
        self.id = id_
        self.epoch = epoch
        self.seq = seq


class Outbox:
    """Everything a connection has to send, in order. ``wake`` tells the pump that there is something.

    Front items (replies, attachments) always go before events, so an attachment may place its cursor the moment it is
    rendered: no event of it can overtake its ``attached``.
    """

    __slots__ = ("_changes", "_front", "_front_bytes", "_ready", "_wake", "batch", "cursors", "overflowed", "principal")

    def __init__(self, wake: Callable[[], None], *, batch: bool = False) -> None:
        self.batch = batch
        self.principal = ""
        """Whose connection it is."""
        self.overflowed = False  # more replies wait than a client may cost: it has to end with 4102
        self.cursors: dict[str, Cursor | Parked] = {}
        """Where the connection is attached, by session id; a session that has left memory has no log to stand in."""
        self._wake = wake
        self._front: list[tuple[bytes | _Attach, int]] = []
        self._front_bytes = 0
        self._changes: dict[str, frames.Frame] = {}
        self._ready: dict[Cursor, None] = {}

    # -- filling

    def reply(self, frame: frames.Frame) -> None:
        """Send a connection frame, before any event."""
        data = codec.encode(frame)
        # A reply that nothing waits before is the one message a connection may cost beyond those that wait.
        self._push(data, len(data) if self._front else min(len(data), ATTACH_COST))

    @property
    def crowded(self) -> bool:
        """So many replies wait that no further command should be carried out yet."""
        return self._front_bytes > REPLY_BYTES // 4

    def change(self, frame: frames.Frame) -> None:
        """Send a ``session-changed``; only the newest of a session waits."""
        self._changes[frame["session_id"]] = frame
        self._wake()

    def attach(
        self,
        log: Log,
        role: Role,
        *,
        id_: str | None = None,
        epoch: str | None = None,
        seq: int | None = None,
        now: bool = False,
    ) -> None:
        """Place a cursor, replacing the connection's earlier one on this log, and answer with ``attached``.

        With ``now`` the answer is what the log holds at this moment (a prompt's own attachment stands before its
        events). It is rendered at once where the waiting replies leave room, else when it is sent.
        """
        self.detach(log.session_id)
        cursor = self.cursors[log.session_id] = Cursor(log, self, role)
        log.cursors.add(cursor)
        attach = _Attach(cursor, id_, epoch, seq)
        if now:
            rendered = self._render(attach)
            size = sum(map(len, rendered))
            if not self._front or self._front_bytes + size <= REPLY_BYTES:
                first = not self._front  # the one message that a connection may cost beyond its replies
                for data in rendered:
                    self._push(data, ATTACH_COST if first else len(data))
                return
            cursor.active = False
            self._ready.pop(cursor, None)
        self._push(attach, ATTACH_COST)

    def detach(self, session_id: str) -> bool:
        """Take the cursor away; False if there was none."""
        place = self.cursors.pop(session_id, None)
        if isinstance(place, Cursor):
            self._remove(place)
        elif place is not None:
            place.detach(self)
        return place is not None

    def owns(self, log: Log) -> bool:
        """Say whether the connection is attached to a log as owner."""
        cursor = self.cursors.get(log.session_id)
        return isinstance(cursor, Cursor) and cursor.log is log and cursor.role == "owner"

    def clear(self) -> None:
        """Take every cursor away: the connection has ended."""
        for session_id in list(self.cursors):
            self.detach(session_id)
        self._front.clear()
        self._changes.clear()

    def mute(self) -> None:
        """Wake nobody any more."""
        self._wake = _nobody

    def ready(self, cursor: Cursor) -> None:
        """A log has something for one of the cursors."""
        if cursor.active:
            self._ready[cursor] = None
            self._wake()

    def reset(self, cursor: Cursor) -> None:
        """A log has a new epoch, or no longer what the cursor needs: answer with ``attached`` and a snapshot."""
        if cursor.active:
            cursor.active = False
            self._ready.pop(cursor, None)
            self._push(_Attach(cursor), ATTACH_COST)

    def end(self, cursor: Cursor, reason: str) -> None:
        """A subscription is over: take the cursor away and say why."""
        if self.cursors.get(cursor.log.session_id) is cursor:
            self.detach(cursor.log.session_id)
            self.reply(frames.build("detached", session_id=cursor.log.session_id, reason=reason))

    # -- sessions at rest

    def park(self, cursor: Cursor, parked: Parked) -> None:
        """A session leaves memory, all of it sent: there is nothing to take until it is back."""
        self._remove(cursor)
        self.cursors[parked.session_id] = parked

    def holds(self, parked: Parked) -> bool:
        """Say whether the connection is still attached to what has left memory."""
        return self.cursors.get(parked.session_id) is parked

    def unpark(self, parked: Parked, log: Log, role: Role) -> None:
        """A session is back in memory: go on where its log stood; a log that has not all of that begins anew."""
        if not self.holds(parked):
            return
        cursor = self.cursors[log.session_id] = Cursor(log, self, role)
        log.cursors.add(cursor)
        cursor.seq, cursor.active = parked.seq, True
        if parked.epoch != log.epoch or parked.seq > log.head:
            self.reset(cursor)
        elif parked.seq < log.head:
            self.ready(cursor)

    def _remove(self, cursor: Cursor) -> None:
        cursor.active = False
        cursor.log.cursors.discard(cursor)
        self._ready.pop(cursor, None)

    def _push(self, item: bytes | _Attach, cost: int) -> None:
        self._front.append((item, cost))
        self._front_bytes += cost
        if self._front_bytes > REPLY_BYTES:
            self.overflowed = True
        self._wake()

    # -- emptying

    def next_message(self, *, events: bool = True) -> bytes | None:
        """Give the next message to send, or None when everything has been sent (without ``events``: every reply)."""
        parts: list[bytes] = []
        joined = False
        room = self._take_front(parts, codec.BATCH_BYTES if self.batch else 1)
        if events and room > 0 and self._changes:
            room = self._take_changes(parts, room)
        if events and room > 0 and self._ready:
            joined = self._take_events(parts, room)
        return codec.message(parts, joined=joined) if parts else None

    def _take_front(self, parts: list[bytes], room: int) -> int:
        """Take front items while they fit; 0 means that nothing may follow in this message."""
        while self._front:
            item, cost = self._front[0]
            if isinstance(item, _Attach):
                rendered = self._render(item)
                self._front_bytes += ATTACH_COST * len(rendered) - cost
                self._front[:1] = [(data, ATTACH_COST) for data in rendered]
                continue
            if parts and len(item) + 2 > room:  # the brackets of the array count too
                return 0
            del self._front[0]
            self._front_bytes -= cost
            parts.append(item)
            room -= len(item) + 1
            if room <= 0:
                return 0
        return room

    def _take_changes(self, parts: list[bytes], room: int) -> int:
        while self._changes and room > 0:
            session_id = next(iter(self._changes))
            data = codec.encode(self._changes[session_id])
            if parts and len(data) + 2 > room:
                return 0
            del self._changes[session_id]
            parts.append(data)
            room -= len(data) + 1
        return room

    def _take_events(self, parts: list[bytes], room: int) -> bool:
        """Take events of the cursors in turn. True: a part holds several."""
        joined = False
        while self._ready and room > 0:
            cursor = next(iter(self._ready))
            del self._ready[cursor]
            limit = min(room, QUANTUM) if self._ready else room
            taken = cursor.log.read(cursor, merge=self.batch, limit=limit, force=not parts)
            if taken is None:
                self.reset(cursor)
                self._take_front(parts, room)
                break
            if not taken.parts and cursor.seq == cursor.log.head:
                continue  # it was told of something that it had sent already
            if not taken.parts:
                # Its next frame needs a message of its own: the next one, or busy sessions would starve it.
                self._ready = {cursor: None, **self._ready}
                break
            if cursor.seq < cursor.log.head:
                self._ready[cursor] = None
            parts += taken.parts
            joined = joined or taken.joined
            room -= taken.size
        return joined

    def _render(self, attach: _Attach) -> list[bytes]:
        """Decide how the cursor continues, and place it."""
        cursor = attach.cursor
        log = cursor.log
        seq = attach.seq
        whole = seq == 0 and log.floor == 0
        same = attach.epoch == log.epoch
        if seq is not None and (same or whole) and log.floor <= seq <= log.head:
            recovery = "live" if seq == log.head else "replay"
        else:
            recovery, seq = "snapshot", log.head
        attached = frames.build(
            "attached",
            attach.id,
            session_id=log.session_id,
            epoch=log.epoch,
            seq=log.head,
            recovery=recovery,
            status=log.archive.fold.status,
            role=cursor.role,
        )
        rendered = [codec.encode(attached)]
        if recovery == "snapshot":
            rendered.append(log.archive.snapshot(log.session_id))
        if self.cursors.get(log.session_id) is cursor:
            cursor.seq = seq
            cursor.active = True
            if seq < log.head:
                self._ready[cursor] = None
        return rendered


def _nobody() -> None:
    return None
