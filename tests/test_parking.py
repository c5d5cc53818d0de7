"""Sessions that leave memory although somebody is attached or owns them: nobody notices, and little is left.

The clock stands until a test moves it, commits wait where a test holds them (``support_world``).
"""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import weakref
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gateway import archive, housekeeper, hub, parking
from gateway.outbox import Outbox
from gateway.parking import Parked, Parking
from gateway.stores.base import Commit, SessionRow
from tests.support_store import MemoryStore
from tests.support_world import SETTINGS, Client, End, World, one_world

if TYPE_CHECKING:
    from collections.abc import Iterator

Frame = dict[str, Any]

EVICT_S = 20.0


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def world(memory: MemoryStore) -> Iterator[World]:
    settings = replace(SETTINGS, evict_s=EVICT_S, retain_s=300.0, retain_bytes=10**7, max_sessions=500)
    with one_world(memory, settings) as made:
        yield made


@pytest.fixture
def ann(world: World) -> Client:
    """Somebody who has had a run in session ``s``, and is attached to it as its owner."""
    client = connected(world, 0)
    run(world, client)
    return client


@pytest.fixture
def bob(world: World) -> Client:
    return connected(world, 1)


def connected(world: World, index: int) -> Client:
    client = world.clients[index]
    client.connect()
    world.sync()
    return client


def prompt(world: World, client: Client, **fields: Any) -> str:
    """Send a prompt and let it take its effect; gives its id."""
    id_ = client.once({"type": "prompt", "session_id": "s", "text": "hi", **fields})
    world.sync()
    return id_


def run(world: World, client: Client, text: str = "hello", **fields: Any) -> None:
    """A whole run."""
    prompt(world, client, **fields)
    world.puppets.live[-1].push({"type": "text-delta", "text": text})
    world.puppets.live[-1].push(End())
    world.sync()


def ask(world: World, client: Client, **frame: Any) -> Frame:
    id_ = client.new_id()
    client.send({"id": id_, **frame})
    world.sync()
    return client.answers.get(id_, {})


def rest(world: World) -> None:
    """Let so much time pass that what is at rest has left memory; forget what clients have heard so far."""
    world.loop.advance(EVICT_S + 2 * housekeeper.EVERY_S)
    world.sync()
    for client in world.clients:
        client.heard.clear()


def parked(world: World, session_id: str = "s") -> Parked:
    """What is left of a session, which is nowhere else."""
    assert world.session(session_id) is None, "it has left memory"
    return world.hub.parking.sessions["local", session_id]


def kinds(client: Client) -> list[str]:
    return [frame["type"] for frame in client.heard]


def finishes(world: World) -> list[tuple[str, str | None]]:
    events = [event for event in world.ledger.events["s"] if event["type"] == "run-finish"]
    return [(event["status"], event["reason"]) for event in events]


# -- leaving


def test_what_is_at_rest_for_long_enough_leaves_memory_although_somebody_is_attached(world: World, ann: Client) -> None:
    world.loop.advance(EVICT_S - 1)
    assert world.session("s") is not None
    rest(world)
    assert parked(world).seq == ann.held["s"].seq
    assert kinds(ann) == []


def test_nothing_is_left_of_it_and_no_collector_has_to_look(world: World, ann: Client) -> None:
    session = world.session("s")
    assert session is not None
    left: list[weakref.ref[Any]] = [
        weakref.ref(session),
        weakref.ref(session.log),
        weakref.ref(session.log.archive.fold),
    ]
    gc.collect()
    gc.disable()
    try:
        del session
        rest(world)
        assert [one() for one in left] == [None, None, None]
    finally:
        gc.enable()


def test_an_attached_session_at_rest_costs_less_than_a_kilobyte(memory: MemoryStore, world: World, bob: Client) -> None:
    names = [f"a-session-with-a-name-of-its-own-{number:04}" for number in range(400)]
    rows = [
        SessionRow(number, "local", name, f"ep_of_{name}", "Its title", "idle", 1, 1, 0, active=False)
        for number, name in enumerate(names)
    ]
    world.loop.run(memory.commit([Commit(row.sid, session=row) for row in rows]))

    def attach(some: list[str]) -> None:
        for name in some:
            ask(world, bob, type="attach", session_id=name, seq=0)
        rest(world)
        bob.answers.clear()
        bob.held.clear()
        gc.collect()

    attach(names[:100])  # what is made once, is made now
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        attach(names[100:])
        cost = (tracemalloc.get_traced_memory()[0] - before) / 300
    finally:
        tracemalloc.stop()
    assert world.hub.sessions == {}
    assert len(world.hub.parking.sessions) == 400
    assert cost < 1000


def test_what_runs_or_waits_stays(world: World, ann: Client) -> None:
    prompt(world, ann)
    rest(world)
    assert world.session("s") is not None
    world.puppets.live[-1].push(End())
    rest(world)
    assert parked(world)


def test_a_client_that_has_not_taken_everything_keeps_the_session_there(world: World, ann: Client, bob: Client) -> None:
    bob.attach("s")
    world.sync()
    assert bob.socket is not None
    bob.socket.reads = False
    run(world, ann)
    world.loop.advance(2 * housekeeper.EVERY_S)  # compacted
    session = world.session("s")
    assert session is not None
    session.touched -= EVICT_S
    world.loop.advance(2 * housekeeper.EVERY_S)
    assert world.session("s") is session
    bob.socket.read_on()
    rest(world)
    assert parked(world)


def test_who_broke_and_may_come_back_in_time_keeps_the_session_there(world: World, ann: Client) -> None:
    prompt(world, ann, grace_s=100)
    ann.drop(1006)
    world.sync()
    world.puppets.live[-1].push(End())
    rest(world)
    assert world.session("s") is not None
    world.loop.advance(100)
    assert world.session("s") is None
    assert world.hub.parking.sessions == {}, "nobody is left"


def test_what_is_being_committed_stays(world: World, ann: Client) -> None:
    session = world.session("s")
    assert session is not None
    world.loop.advance(2 * housekeeper.EVERY_S)  # compacted
    world.store.hold()
    renamed = world.loop.create_task(world.hub.rename("local", "s", "Named"))
    world.sync()
    world.loop.advance(EVICT_S * 2)
    assert world.session("s") is session
    world.store.release()
    world.sync()
    assert renamed.result().title == "Named"
    rest(world)
    assert parked(world)


def test_many_events_are_not_read_again_but_wait_for_their_time(world: World, ann: Client) -> None:
    run(world, ann, "x" * parking.RELOAD_BYTES)
    rest(world)
    assert world.session("s") is not None
    world.loop.advance(300)
    assert parked(world)


def test_many_leave_by_and_by(world: World, bob: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeper, "LEAVE_AT_ONCE", 2)
    for name in "abcde":
        run(world, bob, session_id=name)
    world.loop.advance(2 * housekeeper.EVERY_S)  # compacted, all of them
    for session in world.hub.sessions.values():
        session.touched -= EVICT_S

    async def meanwhile() -> list[int]:
        leaving = asyncio.ensure_future(world.hub.housekeeper.let_go())
        left = []
        while not leaving.done():
            await asyncio.sleep(0)
            left.append(len(world.hub.parking.sessions))
        return left

    assert world.loop.run(meanwhile()) == [2, 4, 5]


# -- coming back


def test_a_prompt_of_another_connection_streams_to_those_who_waited(world: World, ann: Client, bob: Client) -> None:
    rest(world)
    head = parked(world).seq
    run(world, bob)
    assert kinds(ann)[0] == "message-added", "no attached, no snapshot"
    assert kinds(ann)[-1] == "run-finish"
    seqs = [frame["seq"] for frame in ann.heard]
    assert seqs == list(range(head + 1, head + 1 + len(seqs))), "nothing is missing, nothing comes twice"
    rest(world)
    run(world, bob)  # and again, to both
    assert ann.held["s"].dump() == bob.held["s"].dump()


def test_both_roles_come_back_as_they_were(world: World, ann: Client, bob: Client) -> None:
    bob.attach("s", role="observer")
    world.sync()
    rest(world)
    assert len(parked(world).attached) == len(parked(world).observing) == 1
    prompt(world, connected(world, 2), on_disconnect="abort")
    ann.drop(1000)
    world.clients[2].drop(1000)
    world.sync()
    assert finishes(world)[-1] == ("aborted", "disconnect"), "an observer holds no run"
    assert kinds(bob)[-1] == "run-finish"


def test_who_owns_it_at_rest_holds_the_run_that_comes(world: World, ann: Client, bob: Client) -> None:
    rest(world)
    prompt(world, bob)
    bob.drop(1000)
    world.sync()
    assert len(finishes(world)) == 1, "ann owns it, too"
    ann.drop(1000)
    world.sync()
    assert finishes(world)[-1] == ("aborted", "disconnect")


def test_who_has_left_meanwhile_does_not(world: World, ann: Client, bob: Client) -> None:
    rest(world)
    ann.drop(1006)
    world.sync()
    assert world.hub.parking.sessions == {}
    prompt(world, bob)
    bob.drop(1000)
    world.sync()
    assert finishes(world)[-1] == ("aborted", "disconnect")


def test_who_has_detached_owns_it_still_until_it_gives_that_up(world: World, ann: Client, bob: Client) -> None:
    ask(world, ann, type="detach", session_id="s")
    ann.roles.pop("s")
    rest(world)
    prompt(world, bob)
    bob.drop(1000)
    world.sync()
    assert len(finishes(world)) == 1
    world.puppets.live[-1].push(End())
    rest(world)
    assert (parked(world).attached, len(parked(world).owners)) == ((), 1)
    assert ask(world, ann, type="detach", session_id="s", run="abort")["type"] == "ack"
    assert world.hub.parking.sessions == {}
    assert ask(world, ann, type="detach", session_id="s", run="abort")["code"] == "not_attached"


@pytest.mark.parametrize("run_", ["continue", "abort"])
def test_a_detach_is_answered_without_the_session(world: World, ann: Client, bob: Client, run_: str) -> None:
    rest(world)
    ann.roles.pop("s")
    assert ask(world, ann, type="detach", session_id="s", run=run_)["type"] == "ack"
    assert world.session("s") is None
    assert ask(world, ann, type="detach", session_id="s")["code"] == "not_attached"
    ann.heard.clear()
    run(world, bob)
    assert kinds(ann) == []


def test_attaching_again_replaces_what_waits(world: World, ann: Client, bob: Client) -> None:
    rest(world)
    ann.attach("s", role="observer")
    world.sync()
    assert kinds(ann) == ["attached"]
    assert ann.heard[0]["recovery"] == "live"
    run(world, bob)
    assert kinds(ann).count("run-finish") == 1
    session = world.session("s")
    assert session is not None
    assert [owner.principal for owner in session.owners] == ["local"], "bob alone owns it"


def test_an_abort_finds_nothing_to_stop(world: World, ann: Client) -> None:
    for frame in ({}, {"session_id": "s"}):
        rest(world)
        assert ask(world, ann, type="abort", **frame)["runs"] == []
        assert kinds(ann) == ["ack"]
    ended = next(iter(ann.run_ids.values()))
    rest(world)
    states = [one["state"] for one in ask(world, ann, type="abort", session_id="s", run_id=ended)["runs"]]
    assert states == ["too_late"]
    rest(world)
    assert parked(world)


def test_it_can_be_read_and_leaves_again(world: World, ann: Client) -> None:
    rest(world)
    assert len(ask(world, ann, type="history", session_id="s")["messages"]) == 2
    assert kinds(ann) == ["history"]
    assert world.session("s") is not None
    rest(world)
    assert parked(world)


def test_a_new_title_is_told_to_those_who_watch(world: World, ann: Client, bob: Client) -> None:
    ask(world, bob, type="watch", on=True)
    rest(world)
    world.loop.run(world.hub.rename("local", "s", "Named"))
    world.sync()
    assert [frame["title"] for frame in bob.heard] == ["Named"]
    assert kinds(ann) == []


def test_a_deletion_is_told(world: World, ann: Client, bob: Client) -> None:
    bob.attach("s", role="observer")
    world.sync()
    rest(world)
    world.loop.run(world.hub.delete("local", "s"))
    world.sync()
    for client in (ann, bob):
        assert client.heard == [{"type": "detached", "session_id": "s", "reason": "deleted"}]
    assert (world.hub.sessions, world.hub.parking.sessions) == ({}, {})


def test_while_the_store_is_away_it_waits(world: World, ann: Client, bob: Client) -> None:
    rest(world)
    world.store.broken = True
    id_ = prompt(world, bob)
    assert bob.answers[id_]["code"] == "store_unavailable"
    assert parked(world)
    world.store.broken = False
    run(world, bob)
    assert kinds(ann)[-1] == "run-finish"


def test_a_log_that_is_another_one_by_then_is_told_of(world: World, memory: MemoryStore, ann: Client) -> None:
    """As when the database was put back: the client holds what never was, in this log."""
    rest(world)
    row = world.loop.run(memory.session("local", "s"))
    assert row is not None
    world.loop.run(memory.commit([Commit(row.sid, session=replace(row, epoch="ep_restored"))]))
    world.loop.run(world.hub.get("local", "s"))
    world.sync()
    assert kinds(ann) == ["attached", "snapshot"]
    assert ann.held["s"].epoch == "ep_restored"


def test_a_session_that_is_gone_by_then_is_made_anew_for_all(
    world: World, memory: MemoryStore, ann: Client, bob: Client
) -> None:
    rest(world)
    row = world.loop.run(memory.session("local", "s"))
    assert row is not None
    world.loop.run(memory.commit([Commit(row.sid, session=row, delete=True)]))
    world.ledger.events.pop("s")
    run(world, bob)
    assert kinds(ann)[:2] == ["attached", "snapshot"]
    assert ann.held["s"].dump() == bob.held["s"].dump()


def test_one_that_has_left_before_whoever_waited_for_it_goes_on_comes_back(
    world: World, ann: Client, bob: Client
) -> None:
    rest(world)
    world.hasty = 5
    run(world, bob)
    assert world.hasty == 0
    assert ann.held["s"].dump() == bob.held["s"].dump()
    assert "error" not in kinds(bob)


def test_one_that_leaves_between_finding_it_and_deciding_in_it_comes_back(
    world: World, memory: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archive, hub):
        monkeypatch.setattr(module, "SNAPSHOT_MESSAGES", 2)
    ann, bob = connected(world, 0), connected(world, 1)
    for _ in range(3):
        run(world, ann)
    world.loop.advance(2 * housekeeper.EVERY_S)  # compacted: the older messages are in the store alone
    ask_position = memory.position
    left: list[Parked] = []

    async def position(sid: int, message_id: str) -> int | None:
        found = await ask_position(sid, message_id)
        if not left:
            world.leave_memory()
            left.append(parked(world))
        return found

    monkeypatch.setattr(memory, "position", position)
    run(world, bob, replaces=ann.held["s"].messages[0]["id"])
    assert left
    assert len(ann.held["s"].messages) == 2
    assert "error" not in kinds(bob)


def test_what_is_at_rest_counts_toward_a_connections_sessions(world: World, bob: Client) -> None:
    for number in range(500):
        bob.send({"type": "prompt", "id": f"p{number}", "session_id": f"s{number}", "text": "hi"})
        world.sync()
        world.puppets.live[-1].push(End())
        world.loop.advance(0.002)  # row ids go by the clock
    for _ in range(3):
        rest(world)
    assert len(world.hub.parking.sessions) == 500
    assert ask(world, bob, type="prompt", session_id="one-more", text="hi")["code"] == "too_large"
    bob.attach("s7")
    world.sync()
    assert kinds(bob)[-1] == "attached"


def test_a_drain_lets_it_lie(world: World, ann: Client) -> None:
    rest(world)
    world.loop.run(world.hub.drain(1.0))
    assert parked(world)
    ann.drop(1006)
    world.sync()
    assert world.hub.parking.sessions == {}


def test_whoever_still_has_the_session_can_append_nothing(world: World, ann: Client, bob: Client) -> None:
    old = world.session("s")
    assert old is not None
    rest(world)
    run(world, bob)
    old.seal_lost()
    world.sync()
    assert len(finishes(world)) == 2


# -- those who wait


class Somebody:
    """A connection, as far as a session at rest knows one."""

    principal = "local"

    def __init__(self) -> None:
        self.outbox: Outbox | None = Outbox(lambda: None)
        self.owned: set[Any] = set()

    def reply(self, frame: Frame) -> None:
        raise AssertionError(frame)


def test_of_a_thousand_who_wait_each_may_go(world: World, ann: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session = world.session("s")
    assert session is not None
    crowd = [Somebody() for _ in range(1000)]
    for one in crowd:
        assert one.outbox is not None
        one.outbox.attach(session.log, "owner")
        one.outbox.next_message()
        one.outbox.cursors["s"].seq = session.log.head
        session.add_owner(one)
    sweeps = []
    sweep = Parked._sweep

    def counted(self: Parked) -> None:
        sweeps.append(self)
        sweep(self)

    monkeypatch.setattr(Parked, "_sweep", counted)
    Parking.leave(world.hub.parking, session)
    left = parked(world)
    for number, one in enumerate(crowd):
        assert one.outbox is not None
        one.outbox.clear()
        left.disconnected(one, on_purpose=True)
        assert one.owned == set()
        if number == 700:
            back = world.loop.run(world.hub.get("local", "s"))
            assert (len(back.log.cursors), len(back.owners)) == (300, 300)
            break
    assert len(sweeps) < 20, "each of them once, not each time all of them"
