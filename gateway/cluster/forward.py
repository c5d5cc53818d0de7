"""A command's way to the node that owns its session, and the answer's way back to the connection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.cluster.calls import Header, Unreached
from gateway.cluster.errors import Elsewhere, Key, leaving, out_of_reach
from protocol import commands as c
from protocol import frames
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gateway.cluster.hub import ClusterHub
    from gateway.cluster.replicas import Replica
    from gateway.log import Log
    from gateway.services import Caller

T = TypeVar("T")

ASK_S = 5.0
"""How long an owner may take for a command, unless it is one that waits for the engine."""

LONG_ASK_S = 600.0
AGAIN_S = 0.1
"""Between two attempts to reach the owner of a session, which may be dead, with its lease not over."""


class Forward:
    """The commands of one node that others carry out."""

    def __init__(self, hub: ClusterHub) -> None:
        self._hub = hub

    async def routed(self, here: Callable[[], Awaitable[None]], caller: Caller, command: c.Command) -> None:
        """Try here, then there, until it is somewhere; a dead owner's lease may have to run out first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hub.settings.lease_s + ASK_S
        while True:
            try:
                await here()
                return
            except Elsewhere as exc:
                key, owner = exc.key, exc.node_id
            if owner is None:
                raise leaving()
            try:
                if await self._forward(key, owner, caller, command):
                    return
            except Unreached as exc:
                if loop.time() > deadline or not self._hub.bus.works or not (exc.certain or _repeatable(command)):
                    raise out_of_reach() from exc
            if loop.time() > deadline:
                raise out_of_reach()
            await asyncio.sleep(AGAIN_S)

    async def _forward(self, key: Key, owner: str, caller: Caller, command: c.Command) -> bool:
        """Have the owner carry out a command. False: it is not the owner any more. Raises :exc:`Unreached`."""
        hub = self._hub
        attaches = isinstance(command, c.Prompt | c.Resume) and caller.outbox is not None
        replica = None
        if attaches:
            hub.check_room(caller, key[1])
            replica = await hub.replica(key, owner)
            if key in hub.sessions or (replica is not None and replica.owner != owner):
                return False
        provisional = replica is not None and caller not in replica.present
        if replica is not None:
            replica.present.add(caller)
        placed = False

        def arrived(answer: Header) -> None:
            # Before any event that follows: the attachment stands where the owner would have put it.
            nonlocal placed
            for frame in answer.get("frames", ()):
                caller.reply(frame)
            place = answer.get("place")
            if place is None or replica is None or replica.ended:
                return
            log = replica.log
            if (log.sid, log.epoch, log.head) == (place["sid"], place["epoch"], place["head"]):
                _ensure_attached(caller, log)
                placed = True

        try:
            answer = await self._ask(owner, caller, command, arrived, attaches=attaches)
        except Unreached:
            if replica is not None and provisional:
                replica.present.discard(caller)
            raise
        problem = answer.get("error")
        if replica is not None and provisional and (problem is not None or answer.get("moved")):
            replica.present.discard(caller)
        if answer.get("moved"):
            return False
        raise_problem(problem)
        if answer.get("place") is not None and attaches and not placed:
            await self._attach_late(caller, key, owner)
        return True

    async def _ask(
        self, owner: str, caller: Caller, command: c.Command, arrived: Callable[[Header], None], *, attaches: bool
    ) -> Header:
        hub = self._hub
        header: Header = {"p": caller.principal, "conn": hub.connection_id(caller) if attaches else None}
        waits = isinstance(command, c.Prompt) and command.on_busy == "steer"
        body = command.model_dump_json(exclude_none=True).encode()
        timeout = LONG_ASK_S if waits else ASK_S
        return await hub.calls.ask(owner, "command", header, body, timeout=timeout, arrived=arrived)

    async def _attach_late(self, caller: Caller, key: Key, owner: str) -> None:
        """What the place needs was not here in time: attach at what there is, which is committed too."""
        hub = self._hub
        try:
            replica: Replica | None = await hub.replica(key, owner)
        except CommandError:
            replica = hub.replicas.get(key)
        session = hub.sessions.get(key)
        if session is not None:
            session.ensure_attached(caller)
            if caller.outbox is not None:
                session.add_owner(caller)
        elif replica is not None:
            if caller.outbox is not None:
                replica.present.add(caller)
                hub.replicas.tell(replica)
            _ensure_attached(caller, replica.log)
        elif caller.outbox is not None:
            caller.reply(frames.build("detached", session_id=key[1], reason="deleted"))

    async def renew_epoch(self, caller: Caller, replica: Replica, target: c.AttachTarget) -> None:
        """The client has seen what no log has: the owner starts a new epoch. Raises :exc:`CommandError`."""
        hub = self._hub
        command = c.Attach(type="attach", session_id=target.session_id, epoch=target.epoch, seq=target.seq)
        if replica.owner is None:
            raise out_of_reach()
        header: Header = {"p": caller.principal, "conn": hub.connection_id(caller)}
        try:
            answer = await hub.calls.ask(
                replica.owner, "command", header, command.model_dump_json(exclude_none=True).encode(), timeout=ASK_S
            )
        except Unreached:
            raise out_of_reach() from None
        if answer.get("moved"):
            raise out_of_reach()
        raise_problem(answer.get("error"))

    async def either(
        self, here: Callable[[], Awaitable[T]], there: Callable[[Elsewhere], Awaitable[T]], *, repeatable: bool
    ) -> T:
        """Do a REST request's work here, or ``there`` by :meth:`ask_owner`, until it is somewhere, as :meth:`routed`.

        ``repeatable``: it may be asked again although the first question may have been heard. Raises
        :exc:`CommandError`.
        """
        hub, loop = self._hub, asyncio.get_running_loop()
        deadline = loop.time() + hub.settings.lease_s + ASK_S
        while True:
            try:
                return await here()
            except Elsewhere as exc:
                where = exc
            try:
                return await there(where)
            except Unreached as exc:
                if loop.time() > deadline or not hub.bus.works or not (exc.certain or repeatable):
                    raise out_of_reach() from exc
            await asyncio.sleep(AGAIN_S)

    async def ask_owner(self, where: Elsewhere, op: str, **header: Any) -> Header:
        """Have a REST request's work done where it has to be. Raises :exc:`CommandError`, :exc:`Unreached`."""
        if where.node_id is None:
            raise leaving()
        patience = self._hub.settings.abort_grace + 2 * ASK_S
        answer = await self._hub.calls.ask(where.node_id, op, header, timeout=patience)
        if answer.get("moved"):
            raise Unreached(f"node {where.node_id} is not the owner any more", certain=True)
        raise_problem(answer.get("error"))
        return answer


def raise_problem(problem: Header | None) -> None:
    """Raise the error that another node met, as if it were ours."""
    if problem is not None:
        raise CommandError(problem["code"], problem["message"], retry_after_s=problem["retry_after_s"])


def _ensure_attached(caller: Caller, log: Log) -> None:
    """See :meth:`~gateway.session.Session.ensure_attached`."""
    outbox = caller.outbox
    if outbox is None:
        return
    if not outbox.owns(log):
        outbox.attach(log, "owner", epoch=log.epoch, seq=0 if log.head == 0 else None, now=True)


def _repeatable(command: c.Command) -> bool:
    """Say whether a command may be sent again although the first may have arrived."""
    return isinstance(command, c.Prompt | c.Resume) and command.id is not None
