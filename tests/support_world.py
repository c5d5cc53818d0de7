"""A gateway without a network: the real hub, endpoint, sessions and logs, on a clock and a store that a test holds.

Clients are conforming ones (the client rule, nothing else) over sockets that a test lets read, or not. What they are
sent is held against the ledger of what was really committed, frame by frame.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gateway.auth import Anonymous
from gateway.config import Settings
from gateway.endpoint import Endpoint
from gateway.engine.port import current_run
from gateway.hub import Hub
from gateway.outbox import REPLY_BYTES
from gateway.parking import Parked
from protocol.codec import BATCH_BYTES, MAX_MESSAGE_BYTES, decode_message, encode
from protocol.transcript import Transcript
from tests.e2e.support import check_log
from tests.support_log import held
from tests.support_loop import fake_loop
from tests.support_store import FaultyStore, Ledger

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping, Sequence

    from gateway.session import Session
    from gateway.stores.base import Store
    from tests.support_loop import FakeLoop

Frame = dict[str, Any]
Event = dict[str, Any]
Claim = tuple["str | None", "int | None"]
"""Epoch and seq of an attach."""

SETTINGS = Settings(
    disconnect_grace=2.0,
    abort_grace=1.0,
    retain_s=30.0,
    retain_bytes=6000,
    evict_s=20.0,
    queue_limit=3,
    send_timeout=10.0,
    commands_per_s=1e6,
)

CLOSED = {"type": "websocket.disconnect", "code": 1006, "reason": ""}
SESSION_FRAMES = frozenset({"attached", "snapshot", "detached"})
CONNECTION_FRAMES = frozenset({"welcome", "ack", "error", "pong", "goaway", "session-changed", "history"})


class Script:
    """What one run's engine will do: a test pushes, the engine yields."""

    def __init__(self, run: str, abort: asyncio.Event, temper: str) -> None:
        self.run = run
        self.temper = temper
        self.cancelled = 0
        self._abort = abort
        self._items: deque[Any] = deque()
        self._wake = asyncio.Event()

    def push(self, item: Any) -> None:
        self._items.append(item)
        self._wake.set()

    async def next(self) -> Any:
        """Give the next item; None when an engine that obeys has been told to stop."""
        while True:
            if self._items:
                return self._items.popleft()
            self._wake.clear()
            obeys = self.temper == "obeys"
            if obeys and self._abort.is_set():
                return None
            waits = [asyncio.ensure_future(self._wake.wait())]
            if obeys:
                waits.append(asyncio.ensure_future(self._abort.wait()))
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.temper != "stubborn" or self.cancelled > 20:
                    raise
            finally:
                for wait in waits:
                    wait.cancel()


class End:
    """The engine returns."""


class Puppets:
    """An engine whose runs a test plays. ``temper``: ``obeys``, ``deaf`` (ignores the abort) or ``stubborn`` (the
    cancellation too)."""

    def __init__(self) -> None:
        self.live: list[Script] = []
        self.temper = "obeys"
        self.started: list[str] = []

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]
    ) -> AsyncIterator[Event]:
        context = current_run()
        assert context is not None
        script = Script(context.run_id, abort, self.temper)
        self.live.append(script)
        try:
            while (item := await script.next()) is not None:
                if isinstance(item, End):
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
            yield {"type": "tool-error", "error": "stopped", "interrupted": True, "outcome": "interrupted"}
            yield {"type": "message-finish", "finish_reason": "aborted", "usage": None}
        finally:
            self.live.remove(script)

    async def respond(self, **answer: Any) -> bool:
        return True

    async def steer(self, *, session_id: str, run_id: str, messages: Sequence[Any]) -> bool:
        """Obedient engines take it; the deaf say no."""
        return any(script.run == run_id and script.temper == "obeys" for script in self.live)


class Socket:
    """A WebSocket between an endpoint and a client in the same loop. ``reads`` False: its buffer is full."""

    def __init__(self, deliver: Callable[[str], None]) -> None:
        self.reads = True
        self.closed: int | None = None
        self.transport = self  # where the endpoint cuts a connection past ASGI
        self._deliver = deliver
        self._inbox: deque[MutableMapping[str, Any]] = deque([{"type": "websocket.connect"}])
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._credit = 0
        self.problems: list[AssertionError] = []

    def push(self, frame: Frame) -> None:
        self._put({"type": "websocket.receive", "text": json.dumps(frame)})

    def hang_up(self, code: int) -> None:
        self.closed = code
        self._put({"type": "websocket.disconnect", "code": code, "reason": ""})
        self._room.set()

    def abort(self) -> None:
        if self.closed is None:
            self.hang_up(1006)

    def read(self, messages: int) -> None:
        """Take so many messages of what waits."""
        self._credit += messages
        self._room.set()

    def read_on(self) -> None:
        self.reads = True
        self._room.set()

    def _put(self, message: MutableMapping[str, Any]) -> None:
        self._inbox.append(message)
        self._arrived.set()

    async def receive(self) -> MutableMapping[str, Any]:
        while not self._inbox:
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "websocket.close":
            if self.closed is None:
                self.hang_up(message["code"])
            return
        if message["type"] != "websocket.send":
            return
        while not self.reads and not self._credit and self.closed is None:
            self._room.clear()
            await self._room.wait()
        if self.closed is not None:
            raise OSError("the socket is closed")
        self._credit = max(0, self._credit - 1)
        try:
            self._deliver(message["text"])
        except AssertionError as exc:  # raised here, the endpoint would take it for a broken socket
            self.problems.append(exc)


class Client:
    """A conforming client on one socket at a time. What it holds of each session outlives the socket."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.batch = False
        self.socket: Socket | None = None
        self.held: dict[str, Transcript] = {}
        self.roles: dict[str, str] = {}
        """Sessions it wants to see, and as what."""
        self.unanswered: dict[str, Frame] = {}
        """Prompts and resumes not answered yet: sent again after a reconnect, to the letter."""
        self.answers: dict[str, Frame] = {}
        self.heard: list[Frame] = []
        """All that it was sent since a test last cleared it."""
        self.run_ids: dict[str, str] = {}
        """command id → run id, as acknowledged."""
        self.awaited: set[str] = set()
        """Ids of prompts first sent on this socket and not answered yet."""
        self._attaching: dict[str, str] = {}  # session -> id of the attach under way
        self._claims: dict[str, Claim] = {}
        self._live: set[str] = set()  # sessions whose events this socket should get
        self._snapshot_due: set[str] = set()
        self._ids = 0
        self.counted = 0

    # -- doing

    def connect(self, *, batch: bool = False) -> None:
        assert self.socket is None
        self.batch = batch
        self.awaited.clear()
        self._attaching.clear()
        self._live.clear()
        self._snapshot_due.clear()
        self.socket = Socket(self._message)
        self.world.serve(self.socket)
        self.send({"type": "hello", "batch": batch})
        for session_id in list(self.roles):
            self.attach(session_id)
        for command in self.unanswered.values():
            self.send(command)

    def drop(self, code: int) -> None:
        if self.socket is not None and self.socket.closed is None:
            self.socket.hang_up(code)
        self.socket = None

    def send(self, frame: Frame) -> None:
        assert self.socket is not None
        self.socket.push(frame)

    def new_id(self) -> str:
        self._ids += 1
        return f"{self.name}-{self._ids}"

    def once(self, frame: Frame) -> str:
        """Send a prompt or resume that will be sent again until it is answered."""
        id_ = self.new_id()
        self.unanswered[id_] = {**frame, "id": id_}
        self.awaited.add(id_)
        self.send(self.unanswered[id_])
        return id_

    def attach(self, session_id: str, *, role: str | None = None, claim: Claim | None = None) -> None:
        """Attach from what is held, or from what ``claim`` says."""
        role = self.roles[session_id] = role or self.roles.get(session_id, "owner")
        transcript = self.held.get(session_id)
        if claim is None:
            claim = (None, None) if transcript is None else (transcript.epoch, transcript.seq)
        id_ = self.new_id()
        self._attaching[session_id] = id_
        self._claims[session_id] = claim
        frame: Frame = {"type": "attach", "id": id_, "session_id": session_id, "role": role}
        if claim[0] is not None:
            frame["epoch"] = claim[0]
        if claim[1] is not None:
            frame["seq"] = claim[1]
        self.send(frame)

    def detach(self, session_id: str) -> None:
        self.roles.pop(session_id, None)
        self._attaching.pop(session_id, None)
        self.send({"type": "detach", "id": self.new_id(), "session_id": session_id})

    def check_up_to_date(self) -> None:
        """Who is attached and reads has all that was published, whether the session is in memory or not."""
        if self.socket is None or not self.socket.reads:
            return
        for session_id in self._live & self.roles.keys() - self._attaching.keys():
            session = self.world.session(session_id)
            parked = self.world.hub.parking.sessions.get(("local", session_id))
            head = session.log.head if session is not None else parked.seq if parked is not None else None
            assert self.held[session_id].seq == head, f"invariant 6: {self.name} is attached to {session_id}"

    # -- hearing

    def _message(self, text: str) -> None:
        size = len(text.encode())
        assert size <= MAX_MESSAGE_BYTES, f"a server message is at most 1 MiB: {size}"
        frames = decode_message(text)
        if text.startswith("["):
            assert self.batch, "arrays only to a client that asked for batches"
            assert size <= BATCH_BYTES or len(frames) == 1, f"a batch is at most 64 KiB: {size}"
        for frame in frames:
            self._frame(frame)

    def _frame(self, frame: Frame) -> None:
        self.heard.append(frame)
        kind = frame["type"]
        if kind in CONNECTION_FRAMES:
            self._reply(frame)
        elif kind in SESSION_FRAMES:
            self._session_frame(frame)
        else:
            self._event(frame)

    def _reply(self, frame: Frame) -> None:
        id_ = frame.get("id")
        if id_ is None:
            return
        if id_ in self.unanswered and frame.get("code") != "store_unavailable":
            del self.unanswered[id_]
            if frame["type"] == "ack":
                previous = self.run_ids.setdefault(id_, frame["run_id"])
                assert previous == frame["run_id"], "exactly once: the same command is the same run"
                self.roles.setdefault(frame["session_id"], "owner")
        self.awaited.discard(id_)
        if frame["type"] == "error":
            for session_id, attach_id in list(self._attaching.items()):
                if attach_id == id_:
                    del self._attaching[session_id]
                    self._live.discard(session_id)
        self.answers[id_] = frame

    def _session_frame(self, frame: Frame) -> None:
        session_id = frame["session_id"]
        if frame["type"] == "detached":
            self._live.discard(session_id)
            return
        waits_for = self._attaching.get(session_id)
        if waits_for is not None:
            if frame.get("id") != waits_for:
                return  # of the cursor that the attach under way replaces
            del self._attaching[session_id]
        if session_id not in self.roles and frame.get("id") is not None:
            return  # detached meanwhile
        transcript = self.held.setdefault(session_id, Transcript())
        if frame["type"] == "attached":
            claim = self._claims.pop(session_id, (None, None)) if waits_for is not None else (None, None)
            self._check_attached(frame, claim, transcript)
            self.roles[session_id] = frame["role"]
            if frame["recovery"] == "snapshot":
                self._snapshot_due.add(session_id)
            else:
                if claim[1] is not None and claim[1] != transcript.seq:
                    # It went back to what it held at that seq, as a client does that kept it elsewhere.
                    self.held[session_id] = transcript = self.world.fold_at(session_id, claim[1])
                assert session_id not in self._snapshot_due
            self._live.add(session_id)
        else:
            assert session_id in self._snapshot_due, "a snapshot comes after an attached that announces it"
            self._snapshot_due.discard(session_id)
            self.world.check_snapshot(frame)
        transcript.apply(frame)

    def _check_attached(self, frame: Frame, claim: Claim, transcript: Transcript) -> None:
        epoch, seq = claim
        recovery = frame["recovery"]
        session_id = frame["session_id"]
        self.world.check_durable(session_id, frame["seq"])
        if recovery == "live":
            assert frame["seq"] == (seq or 0), "invariant 6: live means that nothing was missed"
        if recovery in ("live", "replay"):
            assert epoch == frame["epoch"] or not seq, "invariant 7: another epoch gets a snapshot"
            assert (seq or 0) <= frame["seq"], "invariant 7: a seq above the head gets a snapshot"
        elif seq is not None and epoch == frame["epoch"]:
            floor = self.world.floor(session_id)
            lost = floor is None or seq < floor or seq > frame["seq"]
            assert lost, "invariant 9: within the retained log it is a replay"

    def _event(self, frame: Frame) -> None:
        session_id = frame["session_id"]
        self.counted += 1
        self.world.check_events(frame)
        if session_id in self._attaching or session_id not in self.roles:
            return
        assert session_id in self._live, f"invariant 6: an event before its attached: {frame}"
        assert session_id not in self._snapshot_due, "invariant 6: an event before its snapshot"
        verdict = self.held[session_id].apply(frame)
        assert verdict == "applied", f"invariant 6: {verdict} at {self.held[session_id].seq}: {frame}"
        early = frame.get("command_id") in self.awaited
        assert not early, f"invariant 3: the ack precedes the run's first event: {frame}"


class World:
    """The process that can be killed, its store that cannot, and the clients."""

    def __init__(self, loop: FakeLoop, disk: Callable[[], Store], *, settings: Settings = SETTINGS) -> None:
        self.loop = loop
        self.settings = settings
        self.ledger = Ledger()
        self.clients = [Client(self, name) for name in ("ann", "bob", "cy")]
        self._disk = disk
        self.hasty = 0
        """So many times yet, sessions leave memory as soon as they may while the store is being asked something."""
        self._sockets: list[Socket] = []
        self._folds: dict[str, Transcript] = {}
        self._boot()

    def _boot(self) -> None:
        self.store = FaultyStore(self._disk(), self.ledger, answered=self._answered)
        self.loop.busy = lambda: self.store.outstanding > 0
        self.puppets = Puppets()
        self.hub = Hub(self.puppets, self.store, self.settings)
        self.endpoint = Endpoint(self.hub, Anonymous(), self.settings)
        self.loop.run(self.hub.start())
        self.loop.run(_call(self.endpoint.start))
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, socket: Socket) -> None:
        self._sockets.append(socket)
        scope = {"type": "websocket", "headers": [], "subprotocols": []}
        task = self.loop.create_task(self.endpoint(scope, socket.receive, socket.send))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def crash(self) -> None:
        """Kill -9: what is committed stays, everything else is gone; then start again."""
        self.store.dead = True
        for client in self.clients:
            client.socket = None
        for script in list(self.puppets.live):
            script.temper = "deaf"
        self.loop.kill_tasks()
        self.loop.run(self.store.inner.close())
        self._sockets.clear()
        self._boot()

    def sync(self) -> None:
        """Come to rest, drop sockets that have ended, and look at what the checks found."""
        self.loop.settle()
        for client in self.clients:
            if client.socket is not None and client.socket.closed is not None:
                client.socket = None
        problems = self.ledger.problems + [p for socket in self._sockets for p in socket.problems]
        if problems:
            raise problems[0]
        assert self.loop.problems == []

    def leave_memory(self) -> None:
        """Have every session that may leave memory do so, however short it has been at rest."""
        parking = self.hub.parking
        for session in list(self.hub.sessions.values()):
            if parking.may_leave(session):
                parking.leave(session)

    def _answered(self) -> None:
        if self.hasty:
            self.hasty -= 1
            self.leave_memory()
            # And once more when whoever asked has gone on, but nobody who waits for that one.
            self.loop.call_soon(self.leave_memory)

    def session(self, session_id: str) -> Session | None:
        return self.hub.sessions.get(("local", session_id))

    def floor(self, session_id: str) -> int | None:
        session = self.session(session_id)
        return None if session is None else session.log.floor

    # -- what clients were sent, against what was committed

    def check_durable(self, session_id: str, seq: int) -> None:
        head = len(self.ledger.events.get(session_id, ()))
        assert seq <= head, f"invariant 2: committed before sent: seq {seq} of {head}"

    def check_events(self, frame: Frame) -> None:
        session_id, last = frame["session_id"], frame["seq"]
        first: Any = frame.get("from", last)
        self.check_durable(session_id, last)
        covered = self.ledger.events[session_id][first - 1 : last]
        if first == last:
            assert frame == covered[0], "invariant 2: what is sent is what was committed"
            return
        assert {e["part_id"] for e in covered} == {frame["part_id"]}, "a merge is of one part"
        assert {e["type"] for e in covered} == {frame["type"]}, "a merge is of one type"
        assert "".join(e["text"] for e in covered) == frame["text"], "a merge says what its deltas said"

    def fold_at(self, session_id: str, seq: int) -> Transcript:
        fold = Transcript()
        for event in self.ledger.events.get(session_id, [])[:seq]:
            assert fold.apply(json.loads(json.dumps(event))) == "applied"
        return fold

    def check_snapshot(self, frame: Frame) -> None:
        session_id = frame["session_id"]
        self.check_durable(session_id, frame["seq"])
        truth = self.fold_at(session_id, frame["seq"])
        messages = frame["messages"]
        assert len(messages) <= 50, "invariant 9: a snapshot has at most 50 messages"
        newest = truth.messages[len(truth.messages) - len(messages) :]
        assert messages == newest, "invariant 6: a snapshot is the fold at its seq"
        assert frame["has_more"] == (len(truth.messages) > len(messages)), "a snapshot says whether there is more"
        for name in ("status", "run_id", "resumable", "pending", "queue"):
            assert frame[name] == getattr(truth, name), f"invariant 6: a snapshot is the fold at its seq: {name}"

    def check_bounds(self) -> None:
        """Invariant 10, and the bound on what a log holds in memory."""
        for link in self.endpoint.links:
            outbox = link._out
            assert outbox._front_bytes <= REPLY_BYTES or outbox.overflowed, "invariant 10: replies are bounded"
        for session in self.hub.sessions.values():
            log = session.log
            assert list(held(log)) == list(range(log.floor + 1, log.head + 1)), (
                "invariant 1: the ring holds floor+1 … head"
            )
            for cursor in log.cursors:
                assert cursor.seq <= log.head, "invariant 6: a cursor is never ahead of its log"
        self.check_parked()
        for client in self.clients:
            client.check_up_to_date()

    def check_parked(self) -> None:
        """What has left memory and who waits for it know of each other, and of nothing else."""
        at_rest = self.hub.parking.sessions
        assert not at_rest.keys() & self.hub.sessions.keys(), "a session is in memory or it is not"
        held = set()
        for link in self.endpoint.links:
            for session_id, place in link._out.cursors.items():
                if isinstance(place, Parked):
                    assert place.session_id == session_id
                    assert link._out in (*place.attached, *place.observing)
                    held.add(place)
            for owned in link.owned:
                if isinstance(owned, Parked):
                    assert link in owned.owners
                    held.add(owned)
        assert held == set(at_rest.values()), "nothing is kept for connections that have ended"

    async def server_messages(self, session: Session) -> list[Frame]:
        archive = session.log.archive
        older = await self.store.inner.messages(session.log.sid, 0, archive.window)
        newer: list[Frame] = json.loads(encode(archive.fold.messages))
        return [json.loads(data) for data in older] + newer


async def _call(function: Callable[[], None]) -> None:
    function()


@contextmanager
def one_world(memory: Any, settings: Settings) -> Iterator[World]:
    """Give a world on a loop of its own; at the end each session's log is looked at, and nothing goes on."""
    with fake_loop() as loop:
        world = World(loop, lambda: memory, settings=settings)
        yield world
        world.sync()
        world.check_bounds()
        for events in world.ledger.events.values():
            check_log(events, finished=False)
        world.store.dead = True
        for script in world.puppets.live:
            script.temper = "deaf"
        loop.kill_tasks()
