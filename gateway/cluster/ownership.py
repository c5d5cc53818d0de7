"""Which sessions are this node's: claimed, kept while its lease is good, given up, handed over, taken from the dead.

The store decides. What is here follows from what it said last: a session that another node owns becomes a replica
around the same log, and a replica whose session this node has claimed becomes a session, so connections do not notice
either.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from gateway.cluster.calls import ALL, pack
from gateway.cluster.errors import Elsewhere, Key
from gateway.cluster.guests import Guest
from gateway.cluster.lease import Lease
from gateway.cluster.replicas import Replica
from gateway.services import store_unavailable
from gateway.session import Session
from gateway.stores.base import AbortFlag, StoreUnavailable
from protocol.errors import CommandError

if TYPE_CHECKING:
    from gateway.cluster.hub import ClusterHub
    from gateway.stores.base import Renewal, StoredSession

logger = logging.getLogger(__name__)

ORPHANS = 20
"""How many sessions of dead nodes a node takes at a time: the others take some, too."""

UNUSED_S = 30.0
"""How long a lease is kept of a session that is not in memory, at most."""

LOOK_AGAIN_S = 0.1


class Ownership:
    """The leases of one node."""

    def __init__(self, hub: ClusterHub) -> None:
        self.fences: dict[Key, int] = {}
        """The leases that this node holds, also of sessions that are not in memory."""
        self.alive: frozenset[str] = frozenset()
        """The nodes that were alive when this one last renewed its lease."""
        self.lease = Lease(
            hub.store, hub.node_id, hub.settings.lease_s, renewed=self._renewed, lapsed=self._stop_what_runs
        )
        self._hub = hub
        self._releasing: dict[Key, asyncio.Task[None]] = {}
        self._unused: dict[Key, float] = {}  # leases of no session in memory → since when
        self._doubt: asyncio.Task[None] | None = None
        self._doubtful = False

    @property
    def sure(self) -> bool:
        """What this node takes for its own is its own."""
        return self.lease.good and not self._doubtful

    async def certain(self) -> None:
        """Wait a moment for a lease that has run out to be renewed. Raises ``store_unavailable``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._hub.settings.lease_s / 3
        while not self.sure:
            if loop.time() > deadline:
                raise store_unavailable()
            await asyncio.sleep(LOOK_AGAIN_S)

    # -- taking

    async def load(self, key: Key) -> Session | None:
        """Claim a session and bring it to memory. Raises :exc:`Elsewhere`, ``StoreUnavailable``."""
        hub = self._hub
        if key in self._releasing:
            await asyncio.wait([self._releasing[key]])
        aborts: tuple[bytes, ...] = ()
        if key not in self.fences:
            if hub.draining:
                raise Elsewhere(key, None)
            claim = await hub.store.claim(*key, hub.node_id)
            if claim.node_id != hub.node_id:
                raise Elsewhere(key, claim.node_id)
            self.fences[key] = claim.fence
            aborts = claim.aborts
        found = await hub.read(key)
        created = hub.sessions.get(key)
        fence = self.fences.get(key)
        if created is not None or found is None:
            return created
        if fence is None or not self.sure:
            raise StoreUnavailable("the session's lease is gone")
        flag = AbortFlag(*key, fence, aborts)
        session = self._take_over(key, fence, found, stopped=hub.aborts.mean(flag, found))
        if aborts:
            hub.aborts.obey(session, flag)
            await hub.aborts.clear([flag])
        return session

    def _take_over(self, key: Key, fence: int, found: StoredSession, *, stopped: bool) -> Session:
        """Own a session that is in the store; a run that it has is of a node that is gone."""
        hub = self._hub
        replica = hub.replicas.get(key)
        if replica is not None:
            hub.replicas.drop(replica)
            log = replica.log
            log.reload(found)
        else:
            log = hub.follower(key, found)
            log.restore(found)
        log.stand_up(fence)
        session = Session(hub.services, key[0], log)
        session.restored(found.row)
        hub.sessions[key] = session
        self.watch(session)
        hub.bus.send(ALL, pack({"t": "owned", "from": hub.node_id, "key": key}))
        if found.row.active:
            session.seal_lost(stopped=stopped)
        if replica is not None:
            for caller in replica.present:
                session.add_owner(caller)
            hub.apply_gone(session, hub.node_id, replica.gone)
        return session

    def created(self, session: Session) -> None:
        """A session has been made, under the lease that was claimed when it was looked for."""
        session.log.fence = self.fences[session.key]
        self.watch(session)

    def watch(self, session: Session) -> None:
        """Give a session up when the store refuses its commit."""
        session.log.refused = lambda: self._give_up(session, None)

    async def reap(self) -> None:
        """Take some of the sessions whose node is dead, and seal them."""
        if self._hub.draining or not self.sure:
            return
        orphans = await self._hub.store.orphans(ORPHANS)
        random.shuffle(orphans)
        for key in orphans:
            try:
                await self._hub.find(*key)
            except (Elsewhere, CommandError):
                continue

    def ownerless(self, replica: Replica) -> None:
        """A replica's owner is gone, or not the owner any more: find another, or be it."""
        replica.owner = None
        if not self._hub.draining and not replica.ended:
            self._hub.keep(asyncio.create_task(self._find_owner(replica)))

    async def _find_owner(self, replica: Replica) -> None:
        hub = self._hub
        try:
            if await hub.find(*replica.key) is None and not replica.ended:
                hub.replicas.end(replica)
        except Elsewhere as exc:
            if not replica.ended:
                hub.replicas.follow(replica, exc.node_id)
        except CommandError as exc:
            logger.debug("session %s has no owner yet: %s", replica.key[1], exc)  # tried again at the next look

    # -- giving

    def _give_up(self, session: Session, owner: str | None) -> None:
        """Another node owns a session: follow that one. Its clients need not notice."""
        replica = self._demote(session)
        self._hub.replicas.refill(replica)
        if owner is None:
            self.ownerless(replica)
        else:
            self._hub.replicas.follow(replica, owner)

    def _demote(self, session: Session) -> Replica:
        """Turn a session into a replica around the same log; cursors and owners stay where they are."""
        hub = self._hub
        session.halt()
        hub.housekeeper.lost.discard(session)
        if hub.sessions.get(session.key) is session:
            del hub.sessions[session.key]
        self.fences.pop(session.key, None)
        hub.desk.given_up(session.log.sid)
        session.log.stand_down()
        replica = Replica(session.key, session.log, None)
        for owner in list(session.owners):
            if not isinstance(owner, Guest):
                replica.present.add(owner)
            session.disown(owner)
        hub.replicas.add(replica)
        return replica

    async def release_idle(self) -> None:
        """While draining: hand over what is at rest."""
        hub = self._hub
        fences = {}
        for key, session in list(hub.sessions.items()):
            log = session.log
            at_rest = not (session.run or session.queue or session.broken or session.deleting)
            if at_rest and log.quiet and not hub.writer.busy(log):
                if key in self.fences:
                    fences[key] = self.fences[key]
                self._demote(session)
        self._release(fences)
        await self.released()

    async def released(self) -> None:
        """Wait until what is being handed over has been."""
        if self._releasing:
            await asyncio.wait(list(self._releasing.values()), timeout=1.0)

    def sweep(self, now: float) -> None:
        """Let go of the leases of sessions that have left memory, or never came to be."""
        hub = self._hub
        kept = min(hub.settings.evict_s, UNUSED_S)
        self._unused = {
            key: self._unused.get(key, now) for key in self.fences if key not in hub.sessions and not hub.loading(key)
        }
        idle = [key for key, since in self._unused.items() if now - since > kept]
        self._release({key: self.fences.pop(key) for key in idle})

    def _release(self, fences: dict[Key, int]) -> None:
        if fences:
            task = asyncio.create_task(self._give_back(fences))
            self._releasing.update(dict.fromkeys(fences, task))
            self._hub.keep(task)

    async def _give_back(self, fences: dict[Key, int]) -> None:
        try:
            await self._hub.store.release(list(fences.values()))
        except StoreUnavailable as exc:
            logger.warning("leases could not be given back: %s", exc)  # claimed again, they are ours
        finally:
            for key in fences:
                self._releasing.pop(key, None)

    # -- being alive

    def _renewed(self, renewal: Renewal) -> None:
        hub = self._hub
        gone = (self.alive | hub.guests.nodes()) - renewal.alive
        self.alive = renewal.alive
        hub.calls.dead(renewal.alive)
        for node in gone:
            hub.guests.leave(node, on_purpose=False)
            hub.desk.forget(node)
        for replica in hub.replicas.all():
            if replica.owner not in renewal.alive:
                self.ownerless(replica)
        hub.aborts.renewed(renewal)
        if self._doubtful and self._doubt is None:
            self._doubt = asyncio.create_task(self._resolve_doubt())
            hub.keep(self._doubt)

    def _stop_what_runs(self) -> None:
        """The lease is over by this node's clock: another node may own each of its sessions at any moment."""
        if self.lease.good:
            return
        if not self._doubtful:
            logger.error("the lease is over: what runs on this node is stopped")
        self._doubtful = True
        for session in list(self._hub.sessions.values()):
            if session.run is not None or session.queue:
                session.log.drop_pending()
                session.log.lost()
        # And again, in case that something was about to start.
        self.lease.look_again(LOOK_AGAIN_S)

    async def _resolve_doubt(self) -> None:
        """Alive again: ask for each session whether it is still this node's."""
        hub = self._hub
        try:
            for key, session in list(hub.sessions.items()):
                claim = await hub.store.claim(*key, hub.node_id)
                if hub.sessions.get(key) is not session:
                    continue
                if claim.node_id != hub.node_id:
                    self._give_up(session, claim.node_id)
                elif claim.fence != self.fences.get(key):
                    # Ours again, but another node had it meanwhile and may have gone on with it: read it anew.
                    self._give_up(session, None)
            for key in [key for key in self.fences if key not in hub.sessions]:
                del self.fences[key]
            self._doubtful = not self.lease.good
        except StoreUnavailable as exc:
            logger.warning("it is not known which sessions are still here: %s", exc)
        finally:
            self._doubt = None

    async def renew(self, session: Session) -> bool:
        """Take a new fence for a session whose commit's fate is unknown: what still hangs is in by now, or refused.

        False: it is another node's. Raises ``StoreUnavailable``.
        """
        hub, key = self._hub, session.key
        if not self.sure:
            raise StoreUnavailable("the lease is over")
        if key in self.fences:
            await hub.store.release([self.fences[key]])
        claim = await hub.store.claim(*key, hub.node_id)
        if hub.sessions.get(key) is not session:
            return False
        if claim.node_id != hub.node_id:
            self._give_up(session, claim.node_id)
            return False
        self.fences[key] = session.log.fence = claim.fence
        return True
