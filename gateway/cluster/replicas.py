"""Sessions that another node owns, as this one's connections see them.

A replica is a log that follows: the owner sends what it commits, the store has what got lost on the way. To a
connection's cursor it is like any other log. The replica also tells the owner which connections of this node own the
session, and how each of them ended, for the disconnect rule.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from gateway.cluster.calls import Calls, Unreached
from gateway.outbox import Outbox
from gateway.stores.base import ChunkRow, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.cluster.calls import Header
    from gateway.cluster.errors import Key
    from gateway.log import Batch, Log
    from gateway.services import Caller
    from gateway.stores.base import SharedStore, StoredSession

logger = logging.getLogger(__name__)

TELL_S = 2.0
"""How long an owner may take to answer who is present."""


class Replica:
    """One session that another node owns. ``owner`` is None while nobody, or nobody known, does."""

    def __init__(self, key: Key, log: Log, owner: str | None) -> None:
        self.key = key
        self.log = log
        self.owner = owner
        self.present: set[Caller] = set()
        """Connections of this node that own the session."""
        self.gone: list[list[Any]] = []
        """Owners that ended, for the owner to be told: connection, on purpose, grace."""
        self.touched = asyncio.get_running_loop().time()
        self.ended = False
        """It is no replica any more: deleted, or owned by this node."""
        self.filling: asyncio.Task[bool] | None = None
        self.telling: asyncio.Task[None] | None = None
        self.untold = False
        self.unfilled = False

    @property
    def idle(self) -> bool:
        """Nobody looks at it and nothing is left to be told."""
        return not (self.log.cursors or self.present or self.gone or self.filling or self.telling)

    @property
    def busy(self) -> bool:
        """A run is live or prompts wait, as far as this node knows."""
        fold = self.log.archive.fold
        return fold.run_id is not None or bool(fold.queue)

    def holds(self, run_id: str) -> bool:
        """Say whether a run is live here or waits, as far as this node knows."""
        fold = self.log.archive.fold
        return fold.run_id == run_id or any(entry["run_id"] == run_id for entry in fold.queue)


class Home(Protocol):
    """The hub, as its replicas see it."""

    node_id: str

    async def read(self, key: Key) -> StoredSession | None:
        """Read a session with its newest messages from the store."""
        ...

    def follower(self, key: Key, found: StoredSession) -> Log:
        """Make a log that follows."""
        ...

    def connection_id(self, caller: Caller) -> str:
        """Name a connection of this node."""
        ...

    def ownerless(self, replica: Replica) -> None:
        """The owner is gone, or not the owner any more: find another."""
        ...

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Own a task until it ends."""
        ...


class Replicas:
    """All replicas of this node."""

    def __init__(self, home: Home, store: SharedStore, calls: Calls) -> None:
        self._home = home
        self._store = store
        self._calls = calls
        self._held: dict[Key, Replica] = {}
        self._by_sid: dict[int, Replica] = {}
        self._loading: dict[Key, asyncio.Task[Replica | None]] = {}

    def get(self, key: Key) -> Replica | None:
        """Give a replica that is here."""
        return self._held.get(key)

    def all(self) -> list[Replica]:
        """Give all."""
        return list(self._held.values())

    def present(self, caller: Caller) -> list[Replica]:
        """Give those that a connection owns."""
        return [replica for replica in self._held.values() if caller in replica.present]

    def add(self, replica: Replica) -> None:
        """Hold one more."""
        self._held[replica.key] = replica
        self._by_sid[replica.log.sid] = replica

    def drop(self, replica: Replica) -> None:
        """Hold it no longer."""
        replica.ended = True
        if self._held.get(replica.key) is replica:
            del self._held[replica.key]
        if self._by_sid.get(replica.log.sid) is replica:
            del self._by_sid[replica.log.sid]

    async def fetch(self, key: Key, owner: str | None, wanted: Callable[[], bool]) -> Replica | None:
        """Give a replica that has all that is committed at this moment, reading it where it is not here.

        None: there is no such session, or ``wanted`` says that this node owns it by now. Raises ``StoreUnavailable``.
        """
        replica = self._held.get(key)
        if replica is None:
            task = self._loading.get(key)
            if task is None:
                task = self._loading[key] = asyncio.create_task(self._load(key, owner, wanted))
                task.add_done_callback(lambda _: self._loading.pop(key, None))
            replica = await asyncio.shield(task)
        else:
            if owner is not None and replica.owner != owner:
                self.follow(replica, owner)
            heads = await self._store.heads([replica.log.sid])
            if heads.get(replica.log.sid) != (replica.log.epoch, replica.log.head):
                await self.fill(replica)
        if replica is not None:
            replica.touched = asyncio.get_running_loop().time()
        return None if replica is None or replica.ended else replica

    async def _load(self, key: Key, owner: str | None, wanted: Callable[[], bool]) -> Replica | None:
        found = await self._home.read(key)
        if found is None or not wanted():
            return None
        log = self._home.follower(key, found)
        log.restore(found)
        replica = Replica(key, log, owner)
        self.add(replica)
        self.tell(replica)
        return replica

    # -- events

    def follow(self, replica: Replica, owner: str | None) -> None:
        """Another node owns the session from now on."""
        replica.owner = owner
        if owner is not None:
            self.tell(replica)

    def received(self, entry: Header, data: bytes) -> bool:
        """Take what an owner committed. False: nobody here wants it."""
        replica = self._by_sid.get(entry["sid"])
        if replica is None:
            return False
        log = replica.log
        if entry.get("deleted"):
            self.end(replica)
        elif entry["epoch"] != log.epoch:
            self.refill(replica)
        elif data:
            chunk = ChunkRow(entry["first"], entry["last"], entry["at"], data)
            if not log.follow(chunk, entry.get("removed_at")):
                self.refill(replica)
        for principal, role in entry.get("shares", ()):
            if role != "owner":
                self._forbid(replica, principal, keep_observers=role == "observer")
        if "stored" in entry and log.epoch == entry["epoch"]:
            log.archive.stored_to(entry["stored"])
        return True

    def _forbid(self, replica: Replica, principal: str, *, keep_observers: bool) -> None:
        """A principal may not use the session any more, or only look at it."""
        for caller in [caller for caller in replica.present if caller.principal == principal]:
            replica.present.discard(caller)
        for cursor in list(replica.log.cursors):
            sink = cursor.sink
            mine = isinstance(sink, Outbox) and sink.principal == principal
            if mine and not (keep_observers and cursor.role != "owner"):
                sink.end(cursor, "forbidden")

    async def _check_shares(self, replica: Replica) -> None:
        """Look whether those whom it was shared with still may: a share that ends says so only once."""
        cursors = [cursor.sink.principal for cursor in replica.log.cursors if isinstance(cursor.sink, Outbox)]
        others = {*cursors, *(caller.principal for caller in replica.present)} - {replica.key[0]}
        if others:
            roles = {row.principal: row.role for row in await self._store.shares(replica.log.sid)}
            for principal in others:
                if roles.get(principal) != "owner":
                    self._forbid(replica, principal, keep_observers=roles.get(principal) == "observer")

    def end(self, replica: Replica) -> None:
        """The session was deleted."""
        self.drop(replica)
        for cursor in list(replica.log.cursors):
            cursor.sink.end(cursor, "deleted")

    def refill(self, replica: Replica) -> None:
        """Something is missing: read it from the store, again if that is found once more meanwhile."""
        replica.unfilled = True
        if replica.filling is None and not replica.ended:
            replica.filling = asyncio.create_task(self._fill(replica), name=f"fill {replica.key[1]}")
            self._home.keep(replica.filling)

    async def fill(self, replica: Replica) -> None:
        """Read what is missing, and wait for it. Raises ``StoreUnavailable``."""
        self.refill(replica)
        if replica.filling is not None and not await asyncio.shield(replica.filling):
            raise StoreUnavailable("what is missing could not be read")

    async def _fill(self, replica: Replica) -> bool:
        """Read until nothing is known to be missing. False: it cannot be read now."""
        try:
            while replica.unfilled and not replica.ended:
                replica.unfilled = False
                try:
                    await self._catch_up(replica)
                except StoreUnavailable as exc:
                    replica.unfilled = True
                    logger.debug("session %s: cannot be followed now: %s", replica.key[1], exc)
                    return False
            return True
        finally:
            replica.filling = None

    async def _catch_up(self, replica: Replica) -> None:
        log = replica.log
        heads = await self._store.heads([log.sid])
        place = heads.get(log.sid)
        if place is not None and place[0] == log.epoch:
            if place[1] <= log.head:
                return
            chunks = await self._store.tail(log.sid, log.head)
            if not replica.ended and _simple(chunks, log.head):
                for chunk in chunks:
                    log.follow(chunk, None)
                return
        found = await self._home.read(replica.key)
        if replica.ended:
            return
        if found is None:
            self.end(replica)
        elif found.row.epoch == log.epoch and found.head < log.head:
            return  # it has learnt more since we asked
        else:
            self._by_sid.pop(log.sid, None)
            log.reload(found)
            self._by_sid[log.sid] = replica

    async def look(self) -> None:
        """Ask the store whether something got lost; what did means that the owner does not know of this node."""
        replicas = self.all()
        if not replicas:
            return
        heads = await self._store.heads([replica.log.sid for replica in replicas])
        for replica in replicas:
            await self._check_shares(replica)
            if replica.untold:
                self.tell(replica)
            place = heads.get(replica.log.sid)
            if replica.ended or place == (replica.log.epoch, replica.log.head):
                continue
            if place is not None and place[0] == replica.log.epoch and place[1] < replica.log.head:
                continue  # it has learnt more since we asked
            self.refill(replica)
            self.tell(replica)

    # -- presence

    def tell(self, replica: Replica) -> None:
        """Tell the owner who is here, until it has heard."""
        replica.untold = True
        if replica.telling is None and not replica.ended:
            replica.telling = asyncio.create_task(self._tell(replica), name=f"presence {replica.key[1]}")
            self._home.keep(replica.telling)

    async def told(self, replica: Replica) -> None:
        """Wait until the owner has heard, or cannot be reached now."""
        if replica.telling is not None:
            await asyncio.wait([replica.telling], timeout=TELL_S)

    def lose(self, replica: Replica, caller: Caller, *, on_purpose: bool, grace_s: float | None, counts: bool) -> None:
        """A connection that owned the session has ended; without ``counts`` nothing follows from that."""
        replica.present.discard(caller)
        if counts:
            replica.gone.append([self._home.connection_id(caller), on_purpose, grace_s])
        self.tell(replica)

    async def _tell(self, replica: Replica) -> None:
        try:
            while replica.untold and not replica.ended and replica.owner is not None:
                replica.untold = False
                gone = list(replica.gone)
                header = {
                    "key": replica.key,
                    "own": [(self._home.connection_id(caller), caller.principal) for caller in replica.present],
                    "gone": gone,
                }
                try:
                    answer = await self._calls.ask(replica.owner, "presence", header, timeout=TELL_S)
                except Unreached as exc:
                    replica.untold = True
                    if gone and await self._leave_word(replica, gone):
                        del replica.gone[: len(gone)]
                    logger.debug("session %s: %s", replica.key[1], exc)
                    return  # told again at the next look
                if answer.get("moved"):
                    replica.untold = True
                    replica.owner = None
                    break
                del replica.gone[: len(gone)]
                if (answer["epoch"], answer["head"]) != (replica.log.epoch, replica.log.head):
                    self.refill(replica)
        finally:
            replica.telling = None
        if replica.owner is None and not replica.ended:
            self._home.ownerless(replica)

    async def _leave_word(self, replica: Replica, gone: list[list[Any]]) -> bool:
        """The owner cannot be reached: leave a flag in the store, which it looks for."""
        try:
            await self._store.request_abort(
                *replica.key, orjson.dumps({"kind": "gone", "node": self._home.node_id, "gone": gone})
            )
        except StoreUnavailable:
            return False
        return True


def _simple(chunks: Sequence[ChunkRow], head: int) -> bool:
    """Say whether chunks follow on ``head`` without a hole, and remove no message."""
    for chunk in chunks:
        if chunk.first_seq != head + 1 or b'"messages-removed"' in chunk.data:
            return False
        head = chunk.last_seq
    return bool(chunks)


def describe(log: Log, batch: Batch) -> Header | None:
    """Say what a transaction changed in a session, for those who follow it."""
    commit = batch.commit
    entry: Header = {"sid": commit.sid, "epoch": log.epoch, "size": 0}
    if commit.delete:
        return entry | {"deleted": True}
    if commit.chunk is not None:
        chunk = commit.chunk
        entry |= {"first": chunk.first_seq, "last": chunk.last_seq, "at": chunk.committed_at, "size": len(chunk.data)}
    if commit.remove_from is not None:
        entry["removed_at"] = commit.remove_from
    if commit.compaction is not None and commit.compaction.messages:
        entry["stored"] = log.archive.stored
    if commit.shares:
        entry["shares"] = [(row.principal, row.role) for row in commit.shares]
    if len(entry) == 3 and batch.epoch is None:
        return None
    return entry
