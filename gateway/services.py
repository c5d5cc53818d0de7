"""What the sessions of a node share: the caller of a command, the services, the effect that a command waits for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.engine.port import Engine
    from gateway.outbox import Outbox
    from gateway.parking import Parked
    from gateway.quota import Quota
    from gateway.session import Session
    from gateway.stores.base import Store
    from protocol import frames


class Caller(Protocol):
    """Whoever sent a command: a connection, or a REST request (which owns and attaches nothing)."""

    principal: str
    outbox: Outbox | None

    @property
    def owned(self) -> set[Session | Parked]:
        """The sessions that it owns on this node, in memory and at rest."""
        ...

    def reply(self, frame: frames.Frame) -> None:
        """Send a reply."""
        ...


@dataclass(frozen=True, slots=True)
class RunLimits:
    """What one run may take: seconds, bytes that its engine says, messages in its session. 0 bounds nothing."""

    deadline_s: float = 0.0
    max_deadline_s: float = 0.0
    max_bytes: int = 0
    max_session_messages: int = 0

    def deadline(self, asked: float | None) -> float | None:
        """Give a run's deadline: what was asked for or else the server's, and never later than the latest."""
        wanted = asked if asked is not None else self.deadline_s or None
        if not self.max_deadline_s:
            return wanted
        return self.max_deadline_s if wanted is None else min(wanted, self.max_deadline_s)


@dataclass(slots=True)
class Services:
    """What all sessions of this node share."""

    engine: Engine
    store: Store
    abort_grace_s: float
    disconnect_grace_s: float
    queue_limit: int
    changed: Callable[[Session], None]
    lost: Callable[[Session], None]
    commands: dict[tuple[str, str], tuple[Session, str]]
    """(principal, command id) → the session and run that a live or waiting prompt became."""
    tasks: set[asyncio.Task[None]]
    runs: Quota
    limits: RunLimits
    draining: bool = False


class Committed:
    """An effect that a command waits for. ``then`` runs at the commit, before its events are published."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._then = then

    def committed(self) -> None:
        """See :class:`~gateway.log.Effect`."""
        self._then()
        if not self.done.done():
            self.done.set_result(None)

    def failed(self) -> None:
        """See :class:`~gateway.log.Effect`."""
        if not self.done.done():
            self.done.set_exception(store_unavailable())
            self.done.exception()  # a caller that has gone away need not look


def store_unavailable() -> CommandError:
    """Build the error for a store that cannot do it now."""
    return CommandError("store_unavailable", "the store is unavailable; try again", retry_after_s=1.0)
