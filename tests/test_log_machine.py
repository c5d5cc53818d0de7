"""Random interleavings of everything that happens to a session, held to the ten invariants of the wire contract.

One machine drives the real hub, endpoint, sessions, runs, logs and outboxes on a clock and a store that it holds in its
hands: engines play, fail and ignore their abort, commits wait, fail, or succeed unnoticed, clients stall, reconnect
and lie about what they have seen, time passes, and now and then somebody pulls the plug. Frame by frame, what is sent
is compared with what was committed (``support_world``); in the end everything is let go, and every client must hold
exactly the server's transcript.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gateway import archive, hub
from gateway.stores.sql import SqliteStore
from tests.e2e.support import check_log
from tests.support_loop import fake_loop
from tests.support_store import MemoryStore
from tests.support_world import Client, End, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.stores.base import Store

SESSIONS = ("s1", "s2")

_parts = st.sampled_from([None, "p1", "p2"])
_calls = st.sampled_from([None, "c1", "c2"])
_texts = st.text('ab"\\é\u2028😀', min_size=1, max_size=6) | st.just("x" * 300)
_data = st.none() | st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2)


def _event(type_: str, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(type_), **fields}).map(
        lambda event: {name: value for name, value in event.items() if value is not None}
    )


EVENTS = st.one_of(
    _event("text-delta", text=_texts, part_id=_parts),
    _event("text-delta", text=_texts),
    _event("reasoning-delta", text=_texts, part_id=_parts),
    _event("text-start", part_id=_parts),
    _event("text-end", part_id=_parts),
    _event("step-start"),
    _event("step-finish", usage=st.sampled_from([None, {"input_tokens": 1, "output_tokens": 2}])),
    _event("message-start", message_id=st.sampled_from([None, "m1"])),
    _event("message-finish", finish_reason=st.sampled_from(["stop", "length"])),
    _event("tool-input-start", call_id=_calls, tool=st.just("t")),
    _event("tool-input-delta", call_id=_calls, tool=st.just("t"), text=_texts),
    _event("tool-call", call_id=_calls, tool=st.just("t"), input=_data),
    _event("tool-start", call_id=_calls),
    _event("tool-progress", call_id=_calls, data=_data),
    _event("tool-result", call_id=_calls, output=_data),
    _event("tool-error", call_id=_calls, error=st.just("no")),
    _event("approval-request", call_id=_calls, request_id=st.sampled_from([None, "r1"])),
    _event("approval-resolved", request_id=st.just("r1"), decision=st.just("expired")),
    _event("retry", attempt=st.just(1), delay_s=st.just(0.5)),
    _event("custom", name=st.just("n"), data=_data, message_id=st.sampled_from([None, "m1"])),
    _event("run-finish"),
    _event("nonsense"),
)

_clients = st.integers(0, 2)
_sessions = st.sampled_from(SESSIONS)
_picks = st.integers(0, 10)


class LogMachine(RuleBasedStateMachine):
    """What may happen to two sessions, three clients, one store and one process."""

    disk: ClassVar[Callable[[], AbstractContextManager[Callable[[], Store]]]]
    """Makes one database, and says how to open it again."""

    def __init__(self) -> None:
        super().__init__()
        self._resources = ExitStack()
        for module in (archive, hub):  # so that sessions outgrow the memory within a machine's life
            self._resources.enter_context(patch.object(module, "SNAPSHOT_MESSAGES", 4))
        disk = self._resources.enter_context(type(self).disk())
        self.world = World(self._resources.enter_context(fake_loop()), disk)
        self.requested: set[str] = set()  # runs whose abort was acknowledged as requested

    # -- clients

    def client(self, index: int) -> Client:
        return self.world.clients[index]

    def connected(self) -> list[Client]:
        return [client for client in self.world.clients if client.socket is not None]

    @initialize(batch=st.booleans())
    def somebody_prompts(self, batch: bool) -> None:
        ann = self.client(0)
        ann.connect(batch=batch)
        self.world.sync()
        ann.once({"type": "prompt", "session_id": "s1", "text": "hello"})

    @rule(index=_clients, batch=st.booleans())
    def connect(self, index: int, batch: bool) -> None:
        if self.client(index).socket is None:
            self.client(index).connect(batch=batch)

    @rule(index=_clients, code=st.sampled_from([1000, 1001, 1005, 1006]))
    def disconnect(self, index: int, code: int) -> None:
        self.client(index).drop(code)

    @rule(index=_clients, code=st.sampled_from([1000, 1006]), batch=st.booleans())
    def reconnect(self, index: int, code: int, batch: bool) -> None:
        self.client(index).drop(code)
        self.client(index).connect(batch=batch)

    @rule(
        index=_clients,
        session=_sessions,
        role=st.sampled_from(["owner", "observer"]),
        claim=st.sampled_from(["held", "held", "nothing", "start", "stranger", "lie", "older"]),
    )
    def attach(self, index: int, session: str, role: str, claim: str) -> None:
        client = self.client(index)
        if client.socket is None:
            return
        held = client.held.get(session)
        epoch, seq = (None, 0) if held is None else (held.epoch, held.seq)
        claims: dict[str, Any] = {
            "held": None,
            "nothing": (None, None),
            "start": (None, 0),
            "stranger": ("ep_stranger", max(1, seq)),
            "lie": (epoch, seq + 1000),
            "older": (epoch, seq // 2),
        }
        client.attach(session, role=role, claim=claims[claim])

    @rule(index=_clients, session=_sessions)
    def detach(self, index: int, session: str) -> None:
        if self.client(index).socket is not None:
            self.client(index).detach(session)

    @rule(index=_clients)
    def stall(self, index: int) -> None:
        socket = self.client(index).socket
        if socket is not None:
            socket.reads = False

    @rule(index=_clients, messages=st.integers(1, 3))
    def read_a_little(self, index: int, messages: int) -> None:
        socket = self.client(index).socket
        if socket is not None:
            socket.read(messages)

    @rule(index=_clients)
    def read_on(self, index: int) -> None:
        socket = self.client(index).socket
        if socket is not None:
            socket.read_on()

    # -- commands

    @rule(
        index=_clients,
        session=_sessions,
        busy=st.sampled_from(["reject", "queue", "queue", "interrupt", "steer"]),
        left=st.sampled_from(["abort", "continue"]),
        lost=st.sampled_from(["seal", "resume"]),
        deadline=st.sampled_from([None, None, 3.0]),
        temper=st.sampled_from(["obeys", "obeys", "deaf", "stubborn"]),
    )
    def prompt(
        self, index: int, session: str, busy: str, left: str, lost: str, deadline: float | None, temper: str
    ) -> None:
        client = self.client(index)
        if client.socket is None:
            return
        self.world.puppets.temper = temper
        frame: dict[str, Any] = {"type": "prompt", "session_id": session, "text": "go on", "on_lost": lost}
        frame |= {"on_busy": busy, "on_disconnect": left}
        if deadline is not None:
            frame["deadline_s"] = deadline
        client.once(frame)

    @rule(index=_clients, session=_sessions, pick=_picks)
    def edit(self, index: int, session: str, pick: int) -> None:
        client = self.client(index)
        held = self.world.fold_at(session, 10**9).messages
        if client.socket is not None and held:
            replaced = held[pick % len(held)]["id"]
            client.once({"type": "prompt", "session_id": session, "text": "rather", "replaces": replaced})

    @rule(index=_clients, session=_sessions)
    def resume(self, index: int, session: str) -> None:
        if self.client(index).socket is not None:
            self.client(index).once({"type": "resume", "session_id": session})

    @rule(index=_clients, session=_sessions, what=st.sampled_from(["session", "run", "command", "future", "all"]))
    def abort(self, index: int, session: str, what: str) -> None:
        client = self.client(index)
        if client.socket is None:
            return
        frame: dict[str, Any] = {"type": "abort", "id": client.new_id()}
        if what == "session":
            frame["session_id"] = session
        elif what == "run" and client.run_ids:
            frame["run_id"] = list(client.run_ids.values())[-1]
        elif what == "command" and client.run_ids:
            frame["command_id"] = list(client.run_ids)[-1]
        elif what == "future":
            frame["command_id"] = f"{client.name}-{client._ids + 1}"
        client.send(frame)

    @rule(index=_clients, session=_sessions, decision=st.sampled_from(["allow", "deny"]))
    def respond(self, index: int, session: str, decision: str) -> None:
        client = self.client(index)
        held = client.held.get(session)
        if client.socket is not None and held is not None and held.pending:
            request = held.pending[0]["request_id"]
            answer = {"session_id": session, "request_id": request, "decision": decision}
            client.send({"type": "respond", "id": client.new_id(), **answer})

    # -- engines

    @precondition(lambda self: self.world.puppets.live)
    @rule(pick=_picks, events=st.lists(EVENTS, min_size=1, max_size=6))
    def engine_yields(self, pick: int, events: list[dict[str, Any]]) -> None:
        live = self.world.puppets.live
        for event in events:
            live[pick % len(live)].push(event)

    @precondition(lambda self: self.world.puppets.live)
    @rule(pick=_picks, how=st.sampled_from(["end", "end", "error", "no event"]))
    def engine_stops(self, pick: int, how: str) -> None:
        live = self.world.puppets.live
        item = {"end": End(), "error": RuntimeError("the model is down"), "no event": "no event"}[how]
        live[pick % len(live)].push(item)

    @precondition(lambda self: self.world.puppets.live)
    @rule(
        pick=_picks,
        before=st.lists(EVENTS, max_size=4),
        after=st.lists(EVENTS, min_size=1, max_size=4),
        temper=st.sampled_from(["deaf", "stubborn", "obeys"]),
    )
    def engine_goes_on_after_an_abort(self, pick: int, before: list[Any], after: list[Any], temper: str) -> None:
        script = self.world.puppets.live[pick % len(self.world.puppets.live)]
        script.temper = temper
        for event in before:
            script.push(event)
        self.world.sync()
        for client in self.connected():
            client.send({"type": "abort", "id": client.new_id(), "run_id": script.run})
        for event in after:
            script.push(event)

    @rule(seconds=st.sampled_from([31.0, 62.0]))
    def the_log_is_compacted(self, seconds: float) -> None:
        self.world.loop.advance(seconds)

    # -- the store, time, the plug

    @rule()
    def hold_commits(self) -> None:
        self.world.store.hold()

    @rule()
    def let_commits_go(self) -> None:
        self.world.store.release()

    @rule(times=st.integers(1, 2))
    def refuse_commits(self, times: int) -> None:
        self.world.store.fails = times

    @rule()
    def doubt_a_commit(self) -> None:
        self.world.store.doubts = 1

    @rule(broken=st.booleans())
    def break_or_mend_the_store(self, broken: bool) -> None:
        self.world.store.broken = broken

    @rule(seconds=st.sampled_from([0.1, 0.6, 1.5, 3.0, 12.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.loop.advance(seconds)

    @rule()
    def sessions_leave_memory(self) -> None:
        self.world.leave_memory()

    @rule(times=st.integers(1, 3))
    def sessions_leave_memory_while_somebody_waits_for_the_store(self, times: int) -> None:
        self.world.hasty = times

    @rule()
    def everything_goes_quiet(self) -> None:
        """Nobody is connected, nothing runs, time passes: sessions leave memory."""
        for client in self.world.clients:
            client.drop(1000)
        self.world.store.release()
        self.world.store.broken = False
        for script in list(self.world.puppets.live):
            script.push(End())
        for _ in range(4):
            self.world.loop.advance(31.0)

    @rule()
    def crash(self) -> None:
        self.world.crash()

    # -- the invariants that can be seen at any moment

    @invariant()
    def holds(self) -> None:
        world = self.world
        world.sync()
        world.check_bounds()
        for events in world.ledger.events.values():
            check_log(events, finished=False)  # invariants 1, 3 and 4
        for session_id, row in world.ledger.rows.items():
            truth = world.fold_at(session_id, 10**9)
            owed = truth.run_id is not None or bool(truth.queue)
            assert row.active or not owed, "a run that is not sealed is found by the next process"
        for client in world.clients:
            for answer in client.answers.values():
                for run in answer.get("runs", ()):
                    states = ("requested", "already_requested", "dequeued", "too_late", "latched")
                    assert run["state"] in states, "invariant 8: an abort's ack says where it stands"
                    if run["state"] in ("requested", "already_requested"):
                        self.requested.add(run["run_id"])

    # -- and those that are seen in the end

    def teardown(self) -> None:
        try:
            self.settle_everything()
        finally:
            try:
                self.world.store.dead = True
                for script in list(self.world.puppets.live):
                    script.temper = "deaf"
                self.world.loop.kill_tasks()
                self.world.loop.run(self.world.store.inner.close())
            finally:
                self._resources.close()

    def settle_everything(self) -> None:
        world = self.world
        world.sync()
        world.store.release()
        world.store.broken, world.store.fails, world.store.doubts = False, 0, 0
        world.loop.advance(2.0)
        # Whoever has stalled stalls still: no run waits for a slow client (invariant 10).
        self.end_all_runs()
        for batch in (False, True):  # the first time to have every command answered, the second to see every session
            for client in world.clients:
                client.drop(1006)
            world.sync()
            for client in world.clients:
                client.roles = dict.fromkeys([*client.roles, *world.ledger.events], "owner")
                client.connect(batch=batch == (client.name == "bob"))
                world.sync()
            self.end_all_runs()
        for client in world.clients:
            assert not client.unanswered, f"every command is answered: {client.unanswered}"
        self.check_everything()
        self.grow_and_come_back()

    def check_everything(self) -> None:
        for session_id, events in self.world.ledger.events.items():
            check_log(events)
            self.check_aborts(events)
            self.check_once(events)
            self.check_transcripts(session_id)

    def grow_and_come_back(self) -> None:
        """Three more turns, compacted away; another epoch's cursors; another process: the transcript stays the same."""
        world = self.world
        for _ in range(3):
            world.clients[0].once({"type": "prompt", "session_id": "s1", "text": "more"})
            world.sync()
            self.end_all_runs()
        world.loop.advance(62.0)
        self.check_everything()
        for client in world.clients:
            for session_id, held in client.held.items():
                client.attach(session_id, claim=("ep_stranger", max(1, held.seq)))
            world.sync()
        self.check_everything()
        world.crash()
        for client in world.clients:
            client.connect(batch=client.name == "cy")
            world.sync()
        self.check_everything()

    def end_all_runs(self) -> None:
        world = self.world
        for _ in range(50):
            world.sync()
            if not any(session.run or session.queue for session in world.hub.sessions.values()):
                return
            for script in list(world.puppets.live):
                script.push(End())
            world.loop.advance(0.1)
        raise AssertionError("invariant 3: every run ends")

    def check_aborts(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if event["type"] == "run-finish" and event["run_id"] in self.requested:
                assert event["status"] in ("aborted", "lost"), "invariant 8: abort wins before the end"

    def check_once(self, events: list[dict[str, Any]]) -> None:
        for kind in ("run-start", "queued"):
            ids = [event["command_id"] for event in events if event["type"] == kind and "command_id" in event]
            assert len(set(ids)) == len(ids), "exactly once: a command has one effect"

    def check_transcripts(self, session_id: str) -> None:
        world = self.world
        truth = world.fold_at(session_id, 10**9)
        session = world.loop.run(world.hub.find("local", session_id))
        assert session is not None
        assert world.loop.run(world.server_messages(session)) == truth.messages, "the server forgets no message"
        assert session.message_count == len(truth.messages), "the session's row counts its messages"
        for client in world.clients:
            held = client.held.get(session_id)
            assert held is not None, f"{client.name} is attached to {session_id}: {client.answers}"
            assert (held.epoch, held.seq) == (session.log.epoch, session.log.head), (
                "invariant 5: a client is at the head"
            )
            count = len(held.messages)
            assert held.messages == truth.messages[len(truth.messages) - count :], "invariant 5: the same transcript"
            assert held.has_more or count == len(truth.messages), "invariant 5: the whole transcript"
            for name in ("status", "run_id", "resumable", "pending", "queue"):
                assert getattr(held, name) == getattr(truth, name), f"invariant 5: the same transcript: {name}"


@contextmanager
def _memory() -> Iterator[Callable[[], Store]]:
    store = MemoryStore()
    yield lambda: store


@contextmanager
def _sqlite() -> Iterator[Callable[[], Store]]:
    with TemporaryDirectory(prefix="gateway-machine-") as folder:
        yield lambda: SqliteStore(str(Path(folder) / "g.db"))


class InMemory(LogMachine):
    """The machine on a store in memory, which is held to the same suite as the real ones."""

    disk = staticmethod(_memory)


class OnSqlite(LogMachine):
    """The same on a file."""

    disk = staticmethod(_sqlite)


def _profile(examples: int, steps: int) -> settings:
    return settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )


TestInMemory = InMemory.TestCase
TestInMemory.settings = _profile(120, 50)
TestOnSqlite = OnSqlite.TestCase
TestOnSqlite.settings = _profile(10, 30)
