"""Sessions at rest leave memory. Who is attached to one, or owns it, stays so and notices nothing.

What is left of such a session is its key, where its log stood, and who was there: some hundred bytes, no task, no
timer, no transcript. Whatever brings it back to memory (a prompt, an attach, a look over REST, a deletion) puts the
cursors on the new log where they stood, before anything can be appended to it.

In a cluster only what nobody is attached to leaves: there, replicas and owners elsewhere go by the logs in memory.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gateway.outbox import Outbox

if TYPE_CHECKING:
    from gateway.hub import Hub
    from gateway.services import Caller
    from gateway.session import Session

logger = logging.getLogger(__name__)

Key = tuple[str, str]
"""(principal, session id)."""

RELOAD_BYTES = 64 * 1024
"""So much of its events a session may still hold when it leaves: they are read again when it comes back."""


class Parked:
    """One session that has left memory: what a connection has in place of its cursor, and of a session it owns."""

    __slots__ = ("_all", "_gone", "attached", "epoch", "key", "observing", "owners", "seq")

    def __init__(self, all_: dict[Key, Parked], session: Session) -> None:
        log = session.log
        cursors = [(cursor.sink, cursor.role) for cursor in log.cursors]
        self.key = session.key
        self.epoch = log.epoch
        self.seq = log.head
        self.attached = tuple(sink for sink, role in cursors if isinstance(sink, Outbox) and role == "owner")
        self.observing = tuple(sink for sink, role in cursors if isinstance(sink, Outbox) and role != "owner")
        self.owners: tuple[Caller, ...] = tuple(session.owners)
        self._all = all_
        self._gone = 0
        """How many of these three have left; swept when they are half, so that a thousand may leave at once."""

    @property
    def principal(self) -> str:
        """In whose scope it is."""
        return self.key[0]

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self.key[1]

    def detach(self, outbox: Outbox) -> None:
        """A connection has let go of its place."""
        self._left()

    def disown(self, caller: Caller) -> None:
        """A connection owns the session no longer; see :meth:`~gateway.session.Session.disown`."""
        caller.owned.discard(self)
        self._left()

    def disconnected(self, caller: Caller, *, on_purpose: bool, grace_s: float | None = None) -> None:
        """An owner's connection has ended: nothing runs that a grace could save."""
        self.disown(caller)

    def _left(self) -> None:
        self._gone += 1
        if 2 * self._gone >= len(self.attached) + len(self.observing) + len(self.owners):
            self._sweep()

    def _sweep(self) -> None:
        self.attached = tuple(outbox for outbox in self.attached if outbox.holds(self))
        self.observing = tuple(outbox for outbox in self.observing if outbox.holds(self))
        self.owners = tuple(owner for owner in self.owners if self in owner.owned)
        self._gone = 0
        if not (self.attached or self.observing or self.owners):
            del self._all[self.key]


class Parking:
    """The sessions of a hub that have left memory with somebody attached to them, or owning them."""

    def __init__(self, hub: Hub) -> None:
        self.sessions: dict[Key, Parked] = {}
        self._hub = hub

    def may_leave(self, session: Session) -> bool:
        """Say whether a session is at rest: all of it is in the store, and everybody has been sent all of it."""
        log, hub = session.log, self._hub
        if not session.idle or not log.quiet or log.ring.size > RELOAD_BYTES or hub.writer.busy(log):
            return False
        if hub.clustered and (log.cursors or len(session.owners)):
            return False
        return all(
            cursor.active and cursor.seq == log.head and isinstance(cursor.sink, Outbox) for cursor in log.cursors
        )

    def leave(self, session: Session) -> None:
        """Take a session that :meth:`may_leave` out of memory."""
        del self._hub.sessions[session.key]
        if session.log.cursors or len(session.owners):
            parked = Parked(self.sessions, session)
            self.sessions[parked.key] = parked
            for cursor in list(session.log.cursors):
                if isinstance(cursor.sink, Outbox):
                    cursor.sink.park(cursor, parked)
            for owner in parked.owners:
                owner.owned.add(parked)
        session.retire()
        logger.debug("session %s has left memory", session.session_id)

    def back(self, session: Session) -> None:
        """A session is in memory, or again: give it its owners and its cursors, where they stood."""
        logger.debug("session %s is in memory", session.session_id)
        parked = self.sessions.pop(session.key, None)
        if parked is None:
            return
        for owner in parked.owners:
            if parked in owner.owned:
                owner.owned.discard(parked)
                session.add_owner(owner)
        for outbox in parked.attached:
            outbox.unpark(parked, session.log, "owner")
        for outbox in parked.observing:
            outbox.unpark(parked, session.log, "observer")
