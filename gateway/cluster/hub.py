"""The hub of a node among others: it owns some sessions, and knows the way to those that others own.

Each command is tried here first. To find its session is to claim it: nobody living owns it, and this node does from now
on; or another one does (:exc:`~gateway.cluster.errors.Elsewhere`), and the command goes there.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from typing import TYPE_CHECKING, Any

from gateway.cluster.aborts import Aborts
from gateway.cluster.calls import ALL, Calls, node_channel, pack, watch_channel
from gateway.cluster.desk import Desk
from gateway.cluster.errors import Elsewhere, Key
from gateway.cluster.forward import ASK_S, Forward
from gateway.cluster.guests import Guests
from gateway.cluster.ownership import Ownership
from gateway.cluster.replicas import Replica, Replicas
from gateway.cluster.sharing import ClusterSharing
from gateway.hub import Hub
from gateway.ids import new_id, now_ms
from gateway.services import store_unavailable
from gateway.stores.base import StoreUnavailable
from gateway.tasks import ended
from protocol import commands as c
from protocol import frames
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.cluster.base import Bus
    from gateway.cluster.guests import Guest
    from gateway.config import Settings
    from gateway.engine.port import Engine
    from gateway.log import Log
    from gateway.services import Caller
    from gateway.session import Session
    from gateway.stores.base import SessionRow, SharedStore, StoredSession

logger = logging.getLogger(__name__)


class ClusterHub(Hub):
    """A :class:`~gateway.hub.Hub` that shares its store with others and hears of them over a bus."""

    store: SharedStore
    sharing: ClusterSharing
    clustered = True

    def __init__(
        self, engine: Engine, store: SharedStore, settings: Settings, bus: Bus, *, single: bool = False
    ) -> None:
        super().__init__(engine, store, settings, single=single)
        self.store = store
        self.sharing = ClusterSharing(self, single=single)
        self.node_id = f"{now_ms():011x}{secrets.token_hex(4)}"
        store.name(self.node_id)
        self.bus = bus
        self.calls = Calls(bus, self.node_id)
        self.guests = Guests()
        self.replicas = Replicas(self, store, self.calls)
        self.ownership = Ownership(self)
        self.aborts = Aborts(self)
        self.forward = Forward(self)
        self.desk = Desk(self)
        self.writer.committed = self.desk.committed
        self._names: dict[Caller, str] = {}
        self._jobs: list[asyncio.Task[None]] = []

    async def condition(self) -> tuple[str, bool]:
        """Without the database a node serves nobody; without the bus its own sessions go on, and readers read."""
        if self.draining or not self._jobs:
            return ("draining" if self.draining else "starting"), False
        if not self.ownership.lease.good:
            return "store unavailable", False
        return ("ready" if self.bus.works else "degraded: no bus"), True

    # -- life

    async def start(self) -> None:
        """Open the store, be alive, and take over what nobody living owns. Raises ``StoreUnusable``."""
        await self.store.open()
        self.writer.start()
        await self.ownership.lease.start()
        await self.bus.start(self.desk, [node_channel(self.node_id), ALL])
        await self.ownership.reap()
        await self.writer.settled()
        self.housekeeper.start()
        self._jobs = [
            asyncio.create_task(self._every(min(1.0, self.settings.lease_s / 6), self.ownership.reap), name="reaper"),
            asyncio.create_task(self._every(1.0, self._look), name="look"),
        ]

    async def drain(self, seconds: float) -> None:
        """Hand every session over as soon as it is idle, those that run at the end of their run or of the drain."""
        self.services.draining = True
        releaser = asyncio.create_task(self._every(0.02, self.ownership.release_idle), name="releaser")
        try:
            await super().drain(seconds)
            await self.writer.settled()
        finally:
            await ended([releaser])
        await self.ownership.release_idle()
        for replica in self.replicas.all():
            replica.present.clear()
            self.replicas.tell(replica)
        told = [replica.telling for replica in self.replicas.all() if replica.telling is not None]
        if told:
            await asyncio.wait(told, timeout=1.0)

    async def stop(self) -> None:
        """Seal what still runs, let go of everything, and close the store."""
        await ended(self._jobs)
        await self.drain(0)
        await self.ownership.lease.stop()
        await self.ownership.released()
        try:
            await self.store.leave(self.node_id)
        except StoreUnavailable as exc:
            logger.warning("the leases could not be given back: %s", exc)
        self.bus.send(ALL, pack({"t": "left", "from": self.node_id}))
        await self.bus.stop()
        await super().stop()

    async def _every(self, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await work()
            except StoreUnavailable as exc:
                logger.debug("the store is unavailable: %s", exc)
            except Exception:
                logger.exception("a job of this node failed")

    async def _look(self) -> None:
        """Once a second: what got lost, what is not used any more."""
        now = asyncio.get_running_loop().time()
        for replica in self.replicas.all():
            if replica.idle and now - replica.touched > self.settings.evict_s:
                if replica.owner is not None:
                    self.desk.unfollow(replica.owner, replica.log.sid)
                self.replicas.drop(replica)
            else:
                replica.log.expire(now_ms() - int(self.settings.retain_s * 1000), self.settings.retain_bytes)
        self.guests.tidy()
        self.ownership.sweep(now)
        await self.replicas.look()

    # -- sessions

    async def find(self, principal: str, session_id: str) -> Session | None:
        """Give a session, made this node's. Raises :exc:`Elsewhere`, ``store_unavailable``."""
        if not self.ownership.sure:
            await self.ownership.certain()
        return await super().find(principal, session_id)

    async def _load(self, key: Key) -> Session | None:
        return await self.ownership.load(key)

    def _create(self, principal: str, session_id: str) -> Session:
        if (principal, session_id) not in self.ownership.fences:
            raise store_unavailable()  # given back between looking for it and making it
        session = super()._create(principal, session_id)
        self.ownership.created(session)
        return session

    async def recover(self, session: Session) -> None:
        """Read a session again whose commit failed, if it is still this node's. Raises ``StoreUnavailable``."""
        if await self.ownership.renew(session):
            await super().recover(session)

    async def replica(self, key: Key, owner: str | None) -> Replica | None:
        """Give an up-to-date replica; None: there is none, or the session is ours. Raises ``store_unavailable``."""
        try:
            return await self.replicas.fetch(key, owner, lambda: key not in self.sessions)
        except StoreUnavailable:
            raise store_unavailable() from None

    # -- commands

    async def handle(self, caller: Caller, command: c.Command) -> None:
        """Carry out a command, here or where its session is. Raises :exc:`CommandError`."""
        match command:
            case c.Prompt(on_busy="steer") if self._at_hand(caller, command.session_id) is None:
                self._keep(asyncio.create_task(self._steer(caller, command)))
                return
        await self.forward.routed(lambda: super(ClusterHub, self).handle(caller, command), caller, command)

    async def _steer(self, caller: Caller, command: c.Prompt) -> None:
        try:
            await self.forward.routed(lambda: self._once(caller, command, self._prompt), caller, command)
        except CommandError as exc:
            caller.reply(frames.error(exc, command.id, command.session_id))

    async def _prompt(self, caller: Caller, command: c.Prompt, body: bytes) -> None:
        if command.session_id is None and command.id is not None:
            # Wherever the same id comes again, it means the same session: two nodes cannot make two of it.
            command = command.model_copy(update={"session_id": _session_of(caller.principal, command.id)})
        elif command.session_id is None:
            command = command.model_copy(update={"session_id": new_id("ses")})
        await self.aborts.early(caller.principal, command.id)
        await super()._prompt(caller, command, body)
        self._look_for_late_abort(caller.principal, command.id)

    async def _resume(self, caller: Caller, command: c.Resume, body: bytes) -> None:
        await self.aborts.early(caller.principal, command.id)
        await super()._resume(caller, command, body)
        self._look_for_late_abort(caller.principal, command.id)

    def _look_for_late_abort(self, principal: str, command_id: str | None) -> None:
        if command_id is not None:
            self._keep(asyncio.create_task(self.aborts.late(principal, command_id)))

    async def attach(self, caller: Caller, target: c.AttachTarget, id_: str | None) -> None:
        """Subscribe a connection, wherever the session is owned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_S
        while True:
            try:
                await super().attach(caller, target, id_)
                return
            except Elsewhere as exc:
                key, owner = exc.key, exc.node_id
            replica = await self.replica(key, owner)
            if replica is not None and await self._attach_replica(caller, target, id_, replica):
                return
            if (replica is None and key not in self.sessions) or loop.time() > deadline:
                raise CommandError("session_not_found", f"there is no session {target.session_id}")

    async def _attach_replica(self, caller: Caller, target: c.AttachTarget, id_: str | None, replica: Replica) -> bool:
        """Attach to another node's session. False: it is not that any more."""
        self._check_room(caller, target.session_id)
        log = replica.log
        ahead = target.seq is not None and target.seq > log.head and target.epoch == log.epoch
        if ahead and target.role == "owner":
            await self.forward.renew_epoch(caller, replica, target)
            await self.replica(replica.key, replica.owner)
        scope, role = await self.sharing.place(caller.principal, target.session_id)
        if replica.ended or scope != replica.key[0]:
            return False
        role = target.role if role == "owner" else role
        if caller.outbox is None:
            raise CommandError("unsupported", "only a connection can attach")
        if role == "owner":
            replica.present.add(caller)
        else:
            replica.present.discard(caller)
        self.replicas.tell(replica)
        if role == "owner":
            # Once this is answered, the session is held: another owner may leave in the next moment.
            await self.replicas.told(replica)
            if self.replicas.get(replica.key) is not replica:
                return False
        caller.outbox.attach(replica.log, role, id_=id_, epoch=target.epoch, seq=target.seq)
        return True

    async def view(self, principal: str, session_id: str) -> Log:
        """Give the log of a session that a principal may look at, up to date. Raises ``session_not_found``."""
        try:
            return await super().view(principal, session_id)
        except Elsewhere as exc:
            key, owner = exc.key, exc.node_id
        replica = await self.replica(key, owner)
        session = self.sessions.get(key)
        if session is not None:
            return session.log
        if replica is None:
            raise CommandError("session_not_found", f"there is no session {session_id}")
        return replica.log

    def _detach(self, caller: Caller, command: c.Detach) -> None:
        replica = self.replica_at_hand(caller, command.session_id)
        if replica is None:
            super()._detach(caller, command)
            return
        attached = caller.outbox is not None and caller.outbox.detach(command.session_id)
        if not attached and not (command.run == "abort" and caller in replica.present):
            raise CommandError("not_attached", f"this connection is not attached to {command.session_id}")
        caller.reply(frames.ack("detach", command.id, session_id=command.session_id))
        if command.run == "abort" and caller in replica.present:
            replica.present.discard(caller)
            self.replicas.tell(replica)
            self._keep(asyncio.create_task(self.aborts.stop_quietly(replica)))

    def replica_at_hand(self, caller: Caller, session_id: str) -> Replica | None:
        """Give a replica that a caller may do anything with: its principal's, or a shared one it owns."""
        own = self.replicas.get((caller.principal, session_id))
        return own or next((one for one in self.replicas.present(caller) if one.key[1] == session_id), None)

    def check_room(self, caller: Caller, session_id: str) -> None:
        """Refuse a session too many on one connection."""
        self._check_room(caller, session_id)

    # -- REST

    async def rename(self, principal: str, session_id: str, title: str) -> SessionRow:
        """Set a session's title, where it is owned."""

        async def there(where: Elsewhere) -> SessionRow:
            await self.forward.ask_owner(where, "rename", p=principal, s=session_id, title=title)
            try:
                row = await self.store.session(*where.key)
            except StoreUnavailable:
                raise store_unavailable() from None
            if row is None:
                raise CommandError("session_not_found", f"there is no session {session_id}")
            return row

        here = super().rename
        return await self.forward.either(lambda: here(principal, session_id, title), there, repeatable=True)

    async def delete(self, principal: str, session_id: str) -> None:
        """Abort, seal and forget, where it is owned."""

        async def there(where: Elsewhere) -> None:
            await self.forward.ask_owner(where, "delete", p=principal, s=session_id)

        here = super().delete
        await self.forward.either(lambda: here(principal, session_id), there, repeatable=False)

    # -- abort

    def abort_now(self, caller: Caller, command: c.Abort) -> list[dict[str, Any]] | None:
        """Abort what runs here; None where something may have to be stopped elsewhere, too."""
        if command.session_id is None and command.command_id is None:
            if command.run_id is not None:
                return super().abort_now(caller, command) or None
            if self.replicas.present(caller):
                return None
        return super().abort_now(caller, command)

    async def abort(self, caller: Caller, command: c.Abort, stopped: Sequence[dict[str, Any]] = ()) -> None:
        """Abort wherever it is; ``stopped`` is what the same command has stopped before it waited."""
        runs = self.abort_now(caller, command)
        if runs is None:
            runs = await self.aborts.abort(caller, command)
        known = {run["run_id"] for run in stopped}
        runs = [*stopped, *(run for run in runs if run["run_id"] not in known)]
        caller.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=runs))

    # -- for other nodes, and for what else belongs to a node

    async def carry_out(self, guest: Guest, command: c.Command) -> None:
        """Carry out another node's command. Raises :exc:`Elsewhere`, :exc:`CommandError`."""
        if self.draining and isinstance(command, c.Prompt | c.Resume):
            session = self._at_hand(guest, command.session_id)
            if session is None or not (session.run or session.queue):
                # What is at rest is being handed over: the other node is about to own it.
                raise Elsewhere((guest.principal, command.session_id or ""), None)
        match command:
            case c.Prompt():  # steering too is waited for: its answer is
                await self._once(guest, command, self._prompt)
            case c.Attach():
                await super().attach(guest, command, command.id)
            case _:
                await super().handle(guest, command)

    async def rename_here(self, principal: str, session_id: str, title: str) -> None:
        """Set the title of a session of this node."""
        await super().rename(principal, session_id, title)

    async def delete_here(self, principal: str, session_id: str) -> None:
        """Delete a session of this node."""
        await super().delete(principal, session_id)

    def abort_here(self, caller: Caller, command: c.Abort) -> list[dict[str, Any]]:
        """Abort what a command means on this node."""
        return super().abort_now(caller, command) or []

    async def abort_run(self, principal: str, run_id: str, reason: str | None) -> list[dict[str, Any]]:
        """Abort a run of this node by its id: of the principal's own, or of a session shared with it as owner."""
        runs = []
        for session in self._sessions_of(principal):
            runs += session.abort("user", reason, run_id=run_id)
        holder = self._holder(run_id)
        if runs or holder is None or not await self.sharing.owns(principal, holder.key):
            return runs
        return holder.abort("user", reason, run_id=run_id)

    def holds(self, run_id: str) -> bool:
        """Say whether a run is live or waits on this node, whoever's it is."""
        return self._holder(run_id) is not None

    def apply_gone(self, session: Session, node: str, gone: Sequence[Sequence[Any]]) -> None:
        """Apply the disconnect rule for connections of a node that have ended."""
        for conn, on_purpose, grace_s in gone:
            guest = self.guests.make((node, conn), session.principal)
            session.disconnected(guest, on_purpose=on_purpose, grace_s=grace_s)

    def disconnected(self, caller: Caller, *, on_purpose: bool, grace_s: float | None = None) -> None:
        """A connection has ended: the nodes that own its sessions are told."""
        super().disconnected(caller, on_purpose=on_purpose, grace_s=grace_s)
        for replica in self.replicas.present(caller):
            self.replicas.lose(replica, caller, on_purpose=on_purpose, grace_s=grace_s, counts=not self.draining)
        self._names.pop(caller, None)

    def connection_id(self, caller: Caller) -> str:
        """Name a connection of this node."""
        name = self._names.get(caller)
        if name is None:
            name = self._names[caller] = secrets.token_hex(6)
        return name

    async def read(self, key: Key) -> StoredSession | None:
        """Read a session with its newest messages from the store."""
        return await self._read(key)

    def follower(self, key: Key, found: StoredSession) -> Log:
        """Make a log that follows."""
        log = self._log(found.row.sid, key[1], found.row.epoch)
        log.stand_down()
        return log

    def ownerless(self, replica: Replica) -> None:
        """A replica's owner is not its owner any more: find another, or be it."""
        self.ownership.ownerless(replica)

    def loading(self, key: Key) -> bool:
        """Say whether a session is being brought to memory."""
        return key in self._loading

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Own a task until it ends."""
        self._keep(task)

    # -- the session list

    def watch(self, caller: Caller, *, on: bool) -> None:
        """Turn the live session list of a connection on or off."""
        super().watch(caller, on=on)
        channel = watch_channel(caller.principal)
        if caller.principal in self.watchers:
            self.bus.subscribe(channel)
        else:
            self.bus.unsubscribe(channel)

    def _show(self, principal: str, frame: frames.Frame) -> None:
        super()._show(principal, frame)
        message = pack({"t": "changed", "from": self.node_id, "p": principal, "frame": frame})
        self.bus.send(watch_channel(principal), message)

    def show_here(self, principal: str, frame: frames.Frame) -> None:
        """Give another node's change to those who watch here."""
        super()._show(principal, frame)


def _session_of(principal: str, command_id: str) -> str:
    """Name the session that a prompt without one makes."""
    return f"ses_{hashlib.sha256(f'{len(principal)}:{principal}{command_id}'.encode()).hexdigest()[:23]}"
