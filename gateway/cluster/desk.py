"""What other nodes say to this one: questions about sessions that it owns, events of sessions that they own."""

from __future__ import annotations

import asyncio
import logging
import secrets
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from gateway.cluster.calls import Header, node_channel, pack, unpack
from gateway.cluster.errors import Elsewhere
from gateway.cluster.guests import Guest
from gateway.cluster.replicas import describe
from gateway.ids import now_ms
from gateway.stores.base import StoreUnavailable
from protocol.codec import decode_command
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from gateway.cluster.hub import ClusterHub
    from gateway.log import Batch, Log
    from gateway.session import Session
    from protocol import commands as c

logger = logging.getLogger(__name__)

SHOWN_AGAIN = 200
"""How many lines of a session list are sent again after the bus was lost."""


class Desk:
    """A node's :class:`~gateway.cluster.base.Listener`."""

    def __init__(self, hub: ClusterHub) -> None:
        self._hub = hub
        self._followers: dict[int, set[str]] = {}  # sid → nodes that want its events
        self._lost_at: int | None = None

    # -- the bus

    def received(self, channel: str, data: bytes) -> None:
        """Take a message."""
        hub = self._hub
        header, body = unpack(data)
        sender: str = header.get("from", "")
        match header["t"]:
            case "answer":
                hub.calls.answered(header)
            case "events":
                self._events(sender, header["entries"], body)
            case "ask":
                self._asked(header, body)
            case "unfollow":
                self._followers.get(header["sid"], set()).discard(sender)
            case "owned" if sender != hub.node_id:
                replica = hub.replicas.get(tuple(header["key"]))
                if replica is not None and replica.owner != sender:
                    hub.replicas.follow(replica, sender)
            case "left" if sender != hub.node_id:
                hub.guests.leave(sender, on_purpose=None)
                self.forget(sender)
            case "changed" if sender != hub.node_id:
                hub.show_here(header["p"], header["frame"])

    def lost(self) -> None:
        """The bus is away: from now on changes of session lists are missed."""
        if self._lost_at is None:
            self._lost_at = now_ms()

    def restored(self) -> None:
        """The bus is back: say again who is here, and look for what got lost."""
        hub = self._hub
        for replica in hub.replicas.all():
            hub.replicas.refill(replica)
            hub.replicas.tell(replica)
        if self._lost_at is not None and hub.watchers:
            hub.keep(asyncio.create_task(self._show_again(self._lost_at)))
        self._lost_at = None

    async def _show_again(self, since: int) -> None:
        hub = self._hub
        for principal in list(hub.watchers):
            try:
                rows = await hub.store.sessions(principal, None, SHOWN_AGAIN)
            except StoreUnavailable:
                return
            for row in rows:
                if row.updated_at >= since - 5000:
                    frame = {"type": "session-changed", "session_id": row.session_id, "title": row.title}
                    hub.show_here(principal, frame | {"status": row.status, "updated_at": row.updated_at})

    # -- events

    def committed(self, taken: Sequence[tuple[Log, Batch]]) -> None:
        """Send what a transaction brought to the nodes that follow, after the answers that waited for it."""
        hub = self._hub
        hub.guests.flush()
        if not self._followers:
            return
        parcels: dict[str, tuple[list[Header], list[bytes]]] = {}
        for log, batch in taken:
            followers = self._followers.get(log.sid)
            if not followers or (entry := describe(log, batch)) is None:
                continue
            chunk = batch.commit.chunk
            for node in followers:
                entries, bodies = parcels.setdefault(node, ([], []))
                entries.append(entry)
                if chunk is not None and not batch.commit.delete:
                    bodies.append(chunk.data)
            if batch.commit.delete:
                del self._followers[log.sid]
        for node, (entries, bodies) in parcels.items():
            message = pack({"t": "events", "from": hub.node_id, "entries": entries}, b"".join(bodies))
            hub.bus.send(node_channel(node), message)

    def _events(self, sender: str, entries: list[Header], body: bytes) -> None:
        at = 0
        for entry in entries:
            data = body[at : at + entry["size"]]
            at += entry["size"]
            if not self._hub.replicas.received(entry, data):
                self.unfollow(sender, entry["sid"])

    def unfollow(self, owner: str, sid: int) -> None:
        """Tell an owner that a session's events are not wanted here."""
        message = pack({"t": "unfollow", "from": self._hub.node_id, "sid": sid})
        self._hub.bus.send(node_channel(owner), message)

    def forget(self, node: str) -> None:
        """A node is gone."""
        for sid in [sid for sid, nodes in self._followers.items() if node in nodes]:
            self._followers[sid].discard(node)
            if not self._followers[sid]:
                del self._followers[sid]

    def given_up(self, sid: int) -> None:
        """Another node owns a session now."""
        self._followers.pop(sid, None)

    # -- questions

    def _asked(self, header: Header, body: bytes) -> None:
        node, id_ = header["from"], header["id"]

        def answer(reply: Header) -> None:
            self._hub.calls.answer(node, id_, reply)

        match header["op"]:
            case "presence":
                key = (header["key"][0], header["key"][1])
                session = self._hub.sessions.get(key)
                if session is not None:
                    answer(self._present(session, node, header))
                else:
                    self._later(answer, self._presence_of_rest(key, node, header))
            case "abort":
                session = self._hub.sessions.get((header["key"][0], header["key"][1]))
                if session is None:
                    answer({"moved": True})
                else:
                    answer({"runs": self._hub.aborts.signalled(session, header["word"])})
            case "abort_run":
                self._later(answer, self._abort_run(header))
            case "holds":
                answer({"holds": self._hub.holds(header["run_id"])})
            case "command":
                self._hub.keep(asyncio.create_task(self._command(node, header, body, answer)))
            case "rename":
                self._later(answer, self._rename(header))
            case "delete":
                self._later(answer, self._delete(header))
            case "sharing":
                self._later(answer, self._sharing(header))

    def _later(self, answer: Any, work: Awaitable[Header]) -> None:
        async def run() -> None:
            answer(await _guarded(work))

        self._hub.keep(asyncio.create_task(run()))

    def _present(self, session: Session, node: str, header: Header) -> Header:
        """Take over which of a node's connections own the session, and note that it follows."""
        hub = self._hub
        self._followers.setdefault(session.log.sid, set()).add(node)
        own = {(node, conn): principal for conn, principal in header["own"]}
        gone = {(node, conn) for conn, _, _ in header["gone"]}
        before = {owner.id: owner for owner in session.owners if isinstance(owner, Guest) and owner.id[0] == node}
        for id_ in own.keys() - before.keys():
            session.add_owner(hub.guests.make(id_, own[id_]))
        hub.apply_gone(session, node, header["gone"])
        for id_ in before.keys() - own.keys() - gone:
            session.disown(before[id_])
        return {"epoch": session.log.epoch, "head": session.log.head}

    async def _presence_of_rest(self, key: tuple[str, str], node: str, header: Header) -> Header:
        """The session is not in memory: if it is still this node's, bring it back."""
        if key not in self._hub.ownership.fences:
            return {"moved": True}
        session = await self._hub.find(*key)
        return {"moved": True} if session is None else self._present(session, node, header)

    async def _command(self, node: str, header: Header, body: bytes, answer: Any) -> None:
        hub = self._hub
        conn = header["conn"]
        id_ = (node, conn or f"rest-{secrets.token_hex(8)}")
        guest = hub.guests.make(id_, header["p"], attached=conn is not None, answer=answer)
        problem = await _guarded(self._carry_out(guest, decode_command(body)))
        guest.answer(**problem)

    async def _carry_out(self, guest: Guest, command: c.Command) -> Header:
        await self._hub.carry_out(guest, command)
        return {}

    async def _abort_run(self, header: Header) -> Header:
        return {"runs": await self._hub.abort_run(header["p"], header["run_id"], header["reason"])}

    async def _rename(self, header: Header) -> Header:
        await self._hub.rename_here(header["p"], header["s"], header["title"])
        return {}

    async def _delete(self, header: Header) -> Header:
        await self._hub.delete_here(header["p"], header["s"])
        return {}

    async def _sharing(self, header: Header) -> Header:
        rows = await self._hub.sharing.here(header["do"], *header["arguments"])
        return {"rows": [astuple(row) for row in rows]}


async def _guarded(work: Awaitable[Header]) -> Header:
    """Await work for another node: what goes wrong is part of the answer."""
    try:
        return await work
    except Elsewhere:
        return {"moved": True}
    except CommandError as exc:
        return {"error": {"code": exc.code, "message": exc.message, "retry_after_s": exc.retry_after_s}}
    except Exception:
        reference = secrets.token_hex(4)
        logger.exception("reference %s: a command of another node failed", reference)
        text = f"internal error; reference {reference} in the server's log"
        return {"error": {"code": "internal", "message": text, "retry_after_s": None}}
