"""A share that is taken back while somebody is on the way in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.sharing import Sharing
from gateway.stores.base import ShareRow
from protocol.errors import CommandError


class Log:
    """Commits at once what it is given."""

    sid = 1

    def __init__(self) -> None:
        self.written: list[ShareRow] = []

    def share(self, row: ShareRow) -> None:
        self.written.append(row)

    def after(self, effect: Any) -> None:
        effect.committed()


class Hub:
    """One shared session that takes its time to load; meanwhile the share may change."""

    def __init__(self) -> None:
        self.sessions: dict[Any, Any] = {}
        self.role: str | None = "owner"
        self.loading = asyncio.Event()
        self.loaded = asyncio.Event()
        self.store = self
        self.found = SimpleNamespace(principal="ann", session_id="s", log=Log())
        self.gone = False
        self.asked = asyncio.Event()
        self.answered = asyncio.Event()

    async def shared(self, principal: str, session_id: str) -> ShareRow | None:
        return ShareRow(1, principal, "ann", session_id, self.role, 1) if self.role is not None else None

    async def session(self, principal: str, session_id: str) -> None:
        return None

    async def get(self, principal: str, session_id: str) -> Any:
        if principal != "ann" or self.gone:
            raise CommandError("session_not_found", "none")
        self.loading.set()
        await self.loaded.wait()
        return self.found

    async def shares(self, sid: int) -> list[ShareRow]:
        self.asked.set()
        await self.answered.wait()
        return []


@pytest.mark.parametrize(("role", "code"), [(None, "session_not_found"), ("observer", "forbidden")])
async def test_a_share_taken_back_while_the_session_loads_lets_nobody_in(role: str | None, code: str) -> None:
    hub: Any = Hub()
    sharing = Sharing(hub, single=False)
    entering = asyncio.create_task(sharing.reach("bob", "s"))
    await hub.loading.wait()
    hub.role = role
    sharing.changes += 1
    hub.loaded.set()
    with pytest.raises(CommandError) as caught:
        await entering
    assert caught.value.code == code


async def test_what_was_not_changed_meanwhile_is_good() -> None:
    hub: Any = Hub()
    hub.loaded.set()
    session, role = await Sharing(hub, single=False).reach("bob", "s")
    assert (session.principal, role) == ("ann", "owner")


@pytest.mark.parametrize("what", ["session", "right"])
async def test_nothing_is_shared_that_went_while_the_store_was_asked(what: str) -> None:
    hub: Any = Hub()
    hub.loaded.set()
    sharing = Sharing(hub, single=False)
    asking = asyncio.create_task(sharing.share("bob", "s", "cid", "owner"))
    await hub.asked.wait()
    if what == "session":
        hub.gone = True
    else:
        hub.role = None
        sharing.changes += 1
    hub.answered.set()
    with pytest.raises(CommandError) as caught:
        await asking
    assert caught.value.code == "session_not_found"
    assert hub.found.log.written == []


async def test_what_is_still_there_is_shared() -> None:
    hub: Any = Hub()
    hub.loaded.set()
    hub.answered.set()
    row = await Sharing(hub, single=False).share("bob", "s", "cid", "owner")
    assert hub.found.log.written == [row]


async def test_with_one_principal_only_nobody_asks_the_store() -> None:
    hub: Any = Hub()
    hub.role = "owner"
    assert await Sharing(hub, single=True).place("bob", "s") == ("bob", "owner")
