"""Sharing by role where another node may own the session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.sharing import Sharing
from gateway.stores.base import ShareRow

if TYPE_CHECKING:
    from gateway.cluster.errors import Elsewhere, Key
    from gateway.cluster.hub import ClusterHub
    from protocol.commands import Role


class ClusterSharing(Sharing):
    """A :class:`~gateway.sharing.Sharing` that has shares changed by the session's owner."""

    def __init__(self, hub: ClusterHub, *, single: bool) -> None:
        super().__init__(hub, single=single)
        self._cluster = hub

    async def share(self, principal: str, session_id: str, other: str, role: Role) -> ShareRow:
        """Let somebody else use a session. Raises ``invalid``."""
        return (await self._wherever("share", principal, session_id, other, role))[0]

    async def unshare(self, principal: str, session_id: str, other: str) -> None:
        """Take a share back; an observer may give its own up."""
        await self._wherever("unshare", principal, session_id, other)

    async def shares(self, principal: str, session_id: str) -> list[ShareRow]:
        """List with whom a session is shared."""
        return await self._wherever("shares", principal, session_id)

    async def owns(self, principal: str, key: Key) -> bool:
        """Say whether a session is a principal's own, or shared with it as owner; good until the caller waits again."""
        while True:
            seen = self.changes
            place = await self.place(principal, key[1])
            if seen == self.changes:
                return place == (key[0], "owner")

    async def _wherever(self, op: str, *arguments: Any) -> list[ShareRow]:
        forward = self._cluster.forward

        async def there(where: Elsewhere) -> list[ShareRow]:
            answer = await forward.ask_owner(where, "sharing", do=op, arguments=arguments)
            return [ShareRow(*row) for row in answer["rows"]]

        # A share taken back twice is not found the second time.
        return await forward.either(lambda: self.here(op, *arguments), there, repeatable=op != "unshare")

    async def here(self, op: str, *arguments: Any) -> list[ShareRow]:
        """Do on this node what is asked for. Raises :exc:`CommandError`, :exc:`Elsewhere`."""
        match op:
            case "share":
                return [await super().share(*arguments)]
            case "unshare":
                await super().unshare(*arguments)
                return []
            case _:
                return await super().shares(*arguments)
