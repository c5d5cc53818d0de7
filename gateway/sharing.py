"""Whose session an id means, and what somebody may do with it: one's own, or one that was shared by role.

Ids are scoped to the principal. One's own session comes first; else the one that was shared under this id, of several
the one shared first. Whoever may do nothing with a session is told that there is none (``session_not_found``); who
may read it but not more, ``forbidden``. A share that is taken back ends what it allowed on open sockets at its commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.audit import audit
from gateway.auth import is_principal
from gateway.ids import now_ms
from gateway.outbox import Outbox
from gateway.services import Committed, store_unavailable
from gateway.stores.base import ShareRow, StoreUnavailable
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import TypeVar

    from gateway.hub import Hub
    from gateway.session import Session
    from protocol.commands import Role

    T = TypeVar("T")

MAX_SHARES = 100
"""With so many others one session may be shared."""

Place = tuple[str, "Role"]
"""The principal in whose scope a session is, and the role in which it may be used."""


class Sharing:
    """The hub's knowledge of who may use what. ``single``: there is nobody else, and nothing is asked."""

    def __init__(self, hub: Hub, *, single: bool) -> None:
        self.changes = 0
        """Counts shares that were changed here: what was found out before the last one has to be asked again."""
        self._hub = hub
        self._single = single

    async def place(self, principal: str, session_id: str) -> Place:
        """Say where an id leads for a principal: to its own scope, whether or not something is there, or another's."""
        own: Place = (principal, "owner")
        if self._single or (principal, session_id) in self._hub.sessions:
            return own
        found = await _asked(self._hub.store.shared(principal, session_id))
        if found is None or await _asked(self._hub.store.session(principal, session_id)) is not None:
            return own
        return found.owner, "owner" if found.role == "owner" else "observer"

    async def reach(self, principal: str, session_id: str, needs: Role = "owner") -> tuple[Session, Role]:
        """Give a session that a principal may use, good until the caller waits again.

        Raises ``session_not_found``, or ``forbidden`` for an observer where ``needs`` is ``owner``.
        """
        while True:
            seen = self.changes
            scope, role = await self.place(principal, session_id)
            session = await self._hub.get(scope, session_id)
            if scope == principal or seen == self.changes:
                require(principal, session_id, role, needs)
                return session, role

    async def share(self, principal: str, session_id: str, other: str, role: Role) -> ShareRow:
        """Let somebody else use a session. Raises ``invalid``."""
        session, shares = await self._reach_with_shares(principal, session_id, "owner")
        if not is_principal(other) or other == session.principal:
            raise CommandError("invalid", "principal: somebody else than the session's own")
        if len(shares) >= MAX_SHARES and all(share.principal != other for share in shares):
            raise CommandError("too_large", f"a session is shared with at most {MAX_SHARES} others")
        row = ShareRow(session.log.sid, other, session.principal, session.session_id, role, now_ms())
        await self._store(session, row)
        return row

    async def unshare(self, principal: str, session_id: str, other: str) -> None:
        """Take a share back; an observer may give its own up."""
        needs: Role = "observer" if other == principal else "owner"
        session, shares = await self._reach_with_shares(principal, session_id, needs)
        if all(share.principal != other for share in shares):
            raise CommandError("session_not_found", "the session is not shared with this principal")
        await self._store(
            session, ShareRow(session.log.sid, other, session.principal, session.session_id, None, now_ms())
        )

    async def shares(self, principal: str, session_id: str) -> list[ShareRow]:
        """List with whom a session is shared."""
        _, shares = await self._reach_with_shares(principal, session_id, "owner")
        return shares

    async def shared_with(self, principal: str) -> list[ShareRow]:
        """List what was shared with a principal."""
        return await _asked(self._hub.store.shared_with(principal))

    async def _reach_with_shares(self, principal: str, session_id: str, needs: Role) -> tuple[Session, list[ShareRow]]:
        """Give a session and with whom it is shared, both good until the caller waits again.

        Reached again after the question: while the store answers, the session may be deleted, or the right to it end.
        A row written then would outlive the session, and open the next one under its id.
        """
        while True:
            session, _ = await self.reach(principal, session_id, needs)
            seen = self.changes
            shares = await _asked(self._hub.store.shares(session.log.sid))
            again, _ = await self.reach(principal, session_id, needs)
            if again is session and seen == self.changes:
                return session, shares

    async def _store(self, session: Session, row: ShareRow) -> None:
        def then() -> None:
            self.changes += 1
            if row.role != "owner":
                _end(session, row.principal, keep_observers=row.role == "observer")

        effect = Committed(then)
        session.log.share(row)
        session.log.after(effect)
        await effect.done


def require(principal: str, session_id: str, role: Role, needs: Role) -> None:
    """Raise ``forbidden`` where an observer wants what only an owner may."""
    if needs == "owner" and role != "owner":
        audit("access-denied", principal=principal, session_id=session_id, role=role)
        raise CommandError("forbidden", "this session was shared with you to look at only")


def _end(session: Session, principal: str, *, keep_observers: bool) -> None:
    """End what a principal's connections hold of a session that it may not use any more, or only look at."""
    for owner in list(session.owners):
        if owner.principal == principal:
            session.disown(owner)
    for cursor in list(session.log.cursors):
        sink = cursor.sink
        if isinstance(sink, Outbox) and sink.principal == principal and not (keep_observers and cursor.role != "owner"):
            sink.end(cursor, "forbidden")


async def _asked(question: Awaitable[T]) -> T:
    try:
        return await question
    except StoreUnavailable:
        raise store_unavailable() from None
