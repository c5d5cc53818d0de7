"""Callers of other nodes, as the owner of a session sees them.

A guest stands for one command of one connection elsewhere. It has no socket: what it is replied, and where it would
have been attached, goes back to its node as one answer, before any event of the same commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.cluster.calls import Header
    from gateway.cursor import Cursor
    from gateway.log import Log
    from gateway.outbox import Outbox
    from gateway.parking import Parked
    from gateway.session import Session
    from protocol import frames
    from protocol.commands import Role

GuestId = tuple[str, str]
"""Node and connection."""


class Doorway:
    """A guest's outbox: it has no cursor here, and notes where one was to be placed."""

    def __init__(self) -> None:
        self.cursors: dict[str, Cursor] = {}
        self.place: Header | None = None

    def owns(self, log: Log) -> bool:
        """Whether it is attached already, its own node knows."""
        return False

    def attach(self, log: Log, role: Role, **_: Any) -> None:
        """Note where the log is at this moment."""
        self.place = {"sid": log.sid, "epoch": log.epoch, "head": log.head}


class Guest:
    """A :class:`~gateway.services.Caller` elsewhere. Guests of one connection are equal: it owns a session once."""

    def __init__(
        self,
        guests: Guests,
        id_: GuestId,
        principal: str,
        *,
        attached: bool = False,
        answer: Callable[[Header], None] | None = None,
    ) -> None:
        self.id = id_
        self.principal = principal
        self.door = Doorway()
        self.outbox: Outbox | None = cast("Outbox", self.door) if attached else None
        self._frames: list[frames.Frame] = []
        self._answer = answer
        self._guests = guests

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Guest) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def owned(self) -> set[Session | Parked]:
        """What the connection owns here: the same set for every guest of it."""
        return self._guests.owned(self.id)

    def reply(self, frame: frames.Frame) -> None:
        """See :class:`~gateway.services.Caller`."""
        self._frames.append(frame)
        self._guests.due.append(self)

    def answer(self, **problem: Any) -> None:
        """Send what it was replied to its node, once."""
        if self._answer is not None:
            self._answer({"frames": self._frames, "place": self.door.place, **problem})
            self._answer = None


class Guests:
    """The connections of other nodes that own sessions of this one."""

    def __init__(self) -> None:
        self.due: list[Guest] = []
        """Those that have been replied something."""
        self._owned: dict[GuestId, set[Session | Parked]] = {}

    def owned(self, id_: GuestId) -> set[Session | Parked]:
        """Give what a connection owns here."""
        return self._owned.setdefault(id_, set())

    def make(
        self, id_: GuestId, principal: str, *, attached: bool = False, answer: Callable[[Header], None] | None = None
    ) -> Guest:
        """Give a guest for one command."""
        return Guest(self, id_, principal, attached=attached, answer=answer)

    def flush(self) -> None:
        """Answer for all that were replied: the transaction that they waited for is through."""
        due, self.due = self.due, []
        for guest in due:
            guest.answer()

    def nodes(self) -> set[str]:
        """Give the nodes that guests come from."""
        return {node for node, _ in self._owned}

    def leave(self, node: str, *, on_purpose: bool | None) -> None:
        """A node is gone: its connections are lost, each with its grace (``on_purpose`` None: they go elsewhere)."""
        for id_ in [id_ for id_ in self._owned if id_[0] == node]:
            for session in list(self._owned[id_]):
                guest = self.make(id_, session.principal)
                if on_purpose is None:
                    session.disown(guest)
                else:
                    session.disconnected(guest, on_purpose=on_purpose)
        self.tidy()

    def tidy(self) -> None:
        """Forget the connections that own nothing any more."""
        for id_ in [id_ for id_, owned in self._owned.items() if not owned]:
            del self._owned[id_]
