"""A cursor: where one connection stands in one session's log. It pulls; the log only says that there is something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from gateway.log import Log


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
