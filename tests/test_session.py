"""One session from inside: owners and grace, the queue, aborts at every moment, exactly once, what a broken store does.

The clock stands until a test moves it, commits wait where a test holds them (``support_world``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from protocol.messages import ABORT_ERROR
from tests.support_store import MemoryStore
from tests.support_world import SETTINGS, Client, End, World, one_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.session import Session
    from gateway.stores.base import StoredSession

Frame = dict[str, Any]


@pytest.fixture
def world() -> Iterator[World]:
    with one_world(MemoryStore(), replace(SETTINGS, retain_s=300.0, retain_bytes=10**7, evict_s=60.0)) as made:
        yield made


@pytest.fixture
def ann(world: World) -> Client:
    return connected(world, 0)


def connected(world: World, index: int) -> Client:
    client = world.clients[index]
    client.connect()
    world.sync()
    return client


def prompt(world: World, client: Client, text: str = "hi", **fields: Any) -> str:
    """Send a prompt and let it take its effect; gives its id."""
    id_ = client.once({"type": "prompt", "session_id": "s", "text": text, **fields})
    world.sync()
    return id_


def ask(world: World, client: Client, **frame: Any) -> Frame:
    id_ = client.new_id()
    client.send({"id": id_, **frame})
    world.sync()
    return client.answers.get(id_, {})


def push(world: World, *items: Any, which: int = -1) -> None:
    for item in items:
        world.puppets.live[which].push(item)
    world.sync()


def events(world: World, kind: str | None = None) -> list[Frame]:
    return [event for event in world.ledger.events["s"] if kind is None or event["type"] == kind]


def finishes(world: World) -> list[tuple[str, str | None]]:
    return [(event["status"], event["reason"]) for event in events(world, "run-finish")]


def live(world: World) -> Session:
    session = world.session("s")
    assert session is not None
    return session


# -- owners and the disconnect rule


@pytest.mark.parametrize("code", [1000, 1005])
def test_a_deliberate_close_of_the_last_owner_aborts_at_once(world: World, ann: Client, code: int) -> None:
    prompt(world, ann)
    ann.drop(code)
    world.sync()
    assert finishes(world) == [("aborted", "disconnect")]


@pytest.mark.parametrize("code", [1001, 1006])
def test_a_lost_connection_aborts_after_its_grace(world: World, ann: Client, code: int) -> None:
    prompt(world, ann)
    ann.drop(code)
    world.loop.advance(1.9)
    assert finishes(world) == []
    world.loop.advance(0.2)
    assert finishes(world) == [("aborted", "disconnect")]


@pytest.mark.parametrize(("grace", "soon"), [(0, 0.0), (10, 10.0)])
def test_the_prompts_own_grace_counts(world: World, ann: Client, grace: float, soon: float) -> None:
    prompt(world, ann, grace_s=grace)
    ann.drop(1006)
    if soon:
        world.loop.advance(soon - 0.1)
        assert finishes(world) == []
    world.loop.advance(0.2)
    assert finishes(world) == [("aborted", "disconnect")]


def test_coming_back_as_owner_within_the_grace_keeps_the_run(world: World, ann: Client) -> None:
    prompt(world, ann)
    ann.drop(1006)
    world.loop.advance(1.5)
    ann.connect()
    world.loop.advance(10)
    assert finishes(world) == []


def test_coming_back_as_observer_does_not(world: World, ann: Client) -> None:
    prompt(world, ann)
    ann.drop(1006)
    ann.roles["s"] = "observer"
    ann.connect()
    world.loop.advance(3)
    assert finishes(world) == [("aborted", "disconnect")]


def test_another_owner_keeps_the_run_and_an_observer_does_not(world: World, ann: Client) -> None:
    prompt(world, ann)
    bob, cy = connected(world, 1), connected(world, 2)
    bob.attach("s")
    cy.attach("s", role="observer")
    world.sync()
    ann.drop(1000)
    world.sync()
    assert finishes(world) == []
    bob.drop(1000)
    world.sync()
    assert finishes(world) == [("aborted", "disconnect")]


def test_each_lost_owner_counts_for_its_own_grace(world: World, ann: Client) -> None:
    prompt(world, ann)
    bob = connected(world, 1)
    bob.attach("s")
    world.sync()
    ann.drop(1006)
    world.loop.advance(1.5)
    bob.drop(1006)
    world.loop.advance(1.5)
    assert finishes(world) == []
    world.loop.advance(1)
    assert finishes(world) == [("aborted", "disconnect")]


def test_a_run_that_continues_is_left_alone(world: World, ann: Client) -> None:
    prompt(world, ann, on_disconnect="continue")
    ann.drop(1000)
    world.loop.advance(30)
    assert finishes(world) == []
    push(world, End())
    assert finishes(world) == [("completed", None)]


def test_a_detach_keeps_the_ownership_and_one_that_aborts_gives_it_up(world: World, ann: Client) -> None:
    prompt(world, ann)
    ann.detach("s")
    world.sync()
    assert finishes(world) == []
    assert ask(world, ann, type="detach", session_id="s", run="abort")["type"] == "ack"
    assert finishes(world) == [("aborted", "user")]
    assert list(live(world).owners) == []


def test_queued_prompts_go_with_the_run_that_a_disconnect_ends(world: World, ann: Client) -> None:
    prompt(world, ann)
    prompt(world, ann, on_busy="queue")
    ann.drop(1000)
    world.sync()
    assert [event["reason"] for event in events(world, "dequeued")] == ["disconnect"]
    assert len(events(world, "run-start")) == 1


# -- the queue


def test_queued_prompts_run_in_their_order_and_interrupts_before_them_in_theirs(world: World, ann: Client) -> None:
    prompt(world, ann, "first")
    for text, busy in (("q1", "queue"), ("i1", "interrupt"), ("i2", "interrupt")):
        prompt(world, ann, text, on_busy=busy)
    for _ in range(4):
        if world.puppets.live:
            push(world, End())
    said = [event["message"]["parts"][0]["text"] for event in events(world, "message-added")]
    assert said == ["first", "i1", "i2", "q1"]
    assert finishes(world)[0] == ("aborted", "superseded")


def test_an_ack_says_the_place_in_the_queue(world: World, ann: Client) -> None:
    prompt(world, ann)
    ids = [prompt(world, ann, on_busy=busy) for busy in ("queue", "queue", "interrupt")]
    assert [ann.answers[id_]["queued"] for id_ in ids[:2]] == [1, 2]


def test_a_full_queue_and_a_busy_session_refuse_and_store_nothing(world: World, ann: Client) -> None:
    prompt(world, ann)
    for _ in range(3):
        prompt(world, ann, on_busy="queue")
    codes = [ann.answers[prompt(world, ann, on_busy=busy)]["code"] for busy in ("queue", "reject")]
    assert codes == ["queue_full", "session_busy"]
    assert len(events(world, "queued")) == 3


def test_one_queued_prompt_can_be_aborted_alone(world: World, ann: Client) -> None:
    prompt(world, ann)
    first, second = (prompt(world, ann, on_busy="queue") for _ in range(2))
    (run,) = ask(world, ann, type="abort", command_id=first)["runs"]
    assert (run["state"], run["run_id"]) == ("dequeued", ann.run_ids[first])
    push(world, End())
    assert [event["run_id"] for event in events(world, "run-start")][1] == ann.run_ids[second]


# -- abort


def test_aborting_a_session_ends_its_run_and_empties_its_queue(world: World, ann: Client) -> None:
    prompt(world, ann)
    prompt(world, ann, on_busy="queue")
    runs = ask(world, ann, type="abort", session_id="s", reason="enough")["runs"]
    assert [run["state"] for run in runs] == ["requested", "dequeued"]
    assert events(world, "abort-requested")[0]["detail"] == "enough"
    assert finishes(world) == [("aborted", "user")]
    assert events(world, "run-finish")[0]["error"] == ABORT_ERROR


def test_repeated_late_and_idle_aborts_are_ordinary_acks(world: World, ann: Client) -> None:
    world.puppets.temper = "deaf"
    id_ = prompt(world, ann)
    states = []
    for _ in range(2):
        states += [run["state"] for run in ask(world, ann, type="abort", session_id="s")["runs"]]
    world.loop.advance(2)
    states += [run["state"] for run in ask(world, ann, type="abort", run_id=ann.run_ids[id_])["runs"]]
    states += [run["state"] for run in ask(world, ann, type="abort", command_id=id_)["runs"]]
    assert states == ["requested", "already_requested", "too_late", "too_late"]
    assert ask(world, ann, type="abort", session_id="s")["runs"] == []


@pytest.mark.parametrize(("temper", "settled"), [("deaf", True), ("stubborn", False)])
def test_an_engine_that_ignores_the_abort_is_cancelled_after_the_grace_or_left_behind(
    world: World, ann: Client, temper: str, settled: bool
) -> None:
    world.puppets.temper = temper
    prompt(world, ann)
    ask(world, ann, type="abort", session_id="s")
    world.loop.advance(0.9)
    assert finishes(world) == []
    world.loop.advance(3)
    assert finishes(world) == [("aborted", "user")]
    assert events(world, "run-finish")[0]["settled"] is settled
    prompt(world, ann)
    assert len(events(world, "run-start")) == 2, "the session goes on"


def test_an_abort_before_the_start_is_durable_ends_the_run_without_its_engine(world: World, ann: Client) -> None:
    world.store.hold()
    prompt(world, ann)
    assert ask(world, ann, type="abort", session_id="s")["runs"][0]["state"] == "requested"
    world.store.release()
    world.sync()
    assert finishes(world) == [("aborted", "user")]
    assert world.puppets.live == []


def test_an_abort_that_comes_before_its_prompt_is_remembered_for_a_minute(world: World, ann: Client) -> None:
    for wait, ended in ((59.0, True), (61.0, False)):
        latch = f"ann-{ann._ids + 2}"
        (run,) = ask(world, ann, type="abort", command_id=latch)["runs"]
        assert run["state"] == "latched"
        world.loop.advance(wait)
        assert prompt(world, ann) == latch
        assert (live(world).run is None) is ended
    assert finishes(world) == [("aborted", "user")]


def test_a_latched_prompt_that_would_queue_is_dequeued_at_once(world: World, ann: Client) -> None:
    prompt(world, ann)
    ask(world, ann, type="abort", command_id=f"ann-{ann._ids + 2}")
    prompt(world, ann, on_busy="queue")
    assert [event["reason"] for event in events(world, "dequeued")] == ["abort"]


def test_a_deadline_aborts(world: World, ann: Client) -> None:
    prompt(world, ann, deadline_s=5)
    world.loop.advance(4.9)
    assert finishes(world) == []
    world.loop.advance(0.2)
    assert finishes(world) == [("aborted", "deadline")]


class Foreign(BaseException):
    """Neither an Exception nor a cancellation."""


@pytest.mark.parametrize("error", [RuntimeError("no"), Foreign("odd"), SystemExit(3), GeneratorExit(), "no event"])
def test_whatever_an_engine_raises_its_run_ends(world: World, ann: Client, error: Any) -> None:
    prompt(world, ann)
    push(world, {"type": "text-delta", "text": "a"}, error)
    assert finishes(world) == [("failed", None)]
    assert live(world).run is None


def test_an_engine_that_raises_the_abort_error_has_stopped_itself(world: World, ann: Client) -> None:
    from gateway.engine.errors import AbortError

    prompt(world, ann)
    push(world, AbortError("enough"))
    assert finishes(world) == [("aborted", "policy")]
    assert events(world, "run-finish")[0]["error"] == ABORT_ERROR


# -- exactly once


def test_the_same_prompt_again_is_the_same_run(world: World, ann: Client) -> None:
    id_ = prompt(world, ann)
    bob = connected(world, 1)
    body = {"type": "prompt", "id": id_, "session_id": "s", "text": "hi"}
    bob.send(body)
    world.sync()
    answer = bob.answers[id_]
    assert (answer["duplicate"], answer["run_id"]) == (True, ann.run_ids[id_])
    assert bob.held["s"].run_id == ann.run_ids[id_], "and it attaches like the first"
    bob.send(body | {"text": "other"})
    world.sync()
    assert bob.answers[id_]["code"] == "id_reuse"
    assert len(events(world, "run-start")) == 1


def test_the_same_prompt_twice_at_once_is_one_run(world: World, ann: Client) -> None:
    bob = connected(world, 1)
    world.store.hold()
    body = {"type": "prompt", "id": "same", "session_id": "s", "text": "hi"}
    for client in (ann, bob):
        client.send(body)
    world.sync()
    world.store.release()
    world.sync()
    assert {ann.answers["same"].get("duplicate"), bob.answers["same"].get("duplicate")} == {None, True}
    assert len(events(world, "run-start")) == 1


@pytest.mark.parametrize("fate", ["fails", "doubts"])
def test_a_prompt_whose_commit_failed_can_be_sent_again(world: World, ann: Client, fate: str) -> None:
    setattr(world.store, fate, 1)
    id_ = prompt(world, ann)
    assert ann.answers[id_]["code"] == "store_unavailable"
    world.loop.advance(1)
    ann.send(ann.unanswered[id_])
    world.sync()
    assert ann.answers[id_]["type"] == "ack"
    assert len(events(world, "run-start")) == 1


# -- a store that fails


def test_a_run_whose_event_cannot_be_committed_is_sealed_lost_when_the_store_is_back(world: World, ann: Client) -> None:
    prompt(world, ann)
    world.store.broken = True
    push(world, {"type": "text-delta", "text": "never seen"})
    assert ann.answers[prompt(world, ann)]["code"] == "store_unavailable"
    world.loop.advance(2)
    assert finishes(world) == []
    world.store.broken = False
    world.loop.advance(1)
    assert finishes(world) == [("lost", None)]
    assert events(world, "text-delta") == []
    assert live(world).resumable


def test_what_a_failed_commit_left_open_is_found_by_the_next_process(world: World, ann: Client) -> None:
    prompt(world, ann)
    world.store.fails = 1
    push(world, {"type": "text-delta", "text": "never seen"})
    live(world).log.redescribe()  # as a rename does, before the head has been read again
    world.sync()
    world.crash()
    assert finishes(world) == [("lost", None)]


def test_who_attached_to_a_session_that_never_came_to_be_is_told(world: World, ann: Client) -> None:
    bob = connected(world, 1)
    world.store.hold()
    prompt(world, ann)
    bob.attach("s")
    world.sync()
    assert [frame["type"] for frame in bob.heard[-2:]] == ["attached", "snapshot"]
    world.store.fails = 1
    world.store.release()
    world.loop.advance(1)
    assert bob.heard[-1] == {"type": "detached", "session_id": "s", "reason": "deleted"}


def test_a_session_that_never_came_to_be_does_not_take_another_with_it(world: World, ann: Client) -> None:
    world.store.fails = 1
    prompt(world, ann)
    never = live(world)
    del world.hub.sessions[never.key]  # deleted over REST, and created again by the next prompt
    prompt(world, ann)
    second = live(world)
    assert second is not never
    world.loop.advance(3)
    assert world.session("s") is second
    assert second.run is not None
    assert world.hub.housekeeper.lost == set()


@pytest.mark.parametrize("stopped", [False, True])
def test_a_lost_prompt_is_resumed_where_it_asked_for_that_unless_somebody_had_stopped_it(
    world: World, ann: Client, stopped: bool
) -> None:
    world.puppets.temper = "deaf"
    prompt(world, ann, on_lost="resume")
    if stopped:
        ask(world, ann, type="abort", session_id="s")
    world.crash()
    assert finishes(world) == [("lost", None)]
    assert [event["mode"] for event in events(world, "run-start")] == ["prompt"] + ["resume"] * (not stopped)


def test_a_lost_prompt_is_resumed_twice_at_most(world: World, ann: Client) -> None:
    prompt(world, ann, on_lost="resume")
    for _ in range(4):
        world.crash()
    assert [event["mode"] for event in events(world, "run-start")] == ["prompt", "resume", "resume"]
    assert world.puppets.live == []


# -- a client that has seen more than the log has


def ahead(world: World, ann: Client) -> Client:
    prompt(world, ann)
    bob = connected(world, 1)
    return bob


def test_an_owner_that_is_ahead_makes_a_new_epoch_for_everybody(world: World, ann: Client) -> None:
    bob = ahead(world, ann)
    epoch = live(world).log.epoch
    bob.attach("s", claim=(epoch, 99))
    world.sync()
    assert live(world).log.epoch != epoch
    assert ann.held["s"].epoch == bob.held["s"].epoch == live(world).log.epoch


def test_an_observer_that_is_ahead_gets_a_snapshot(world: World, ann: Client) -> None:
    bob = ahead(world, ann)
    epoch = live(world).log.epoch
    bob.attach("s", role="observer", claim=(epoch, 99))
    world.sync()
    assert live(world).log.epoch == epoch == bob.held["s"].epoch


def test_attaches_are_answered_in_order_also_where_one_makes_a_new_epoch(world: World, ann: Client) -> None:
    bob = ahead(world, ann)
    world.store.hold()
    bob.attach("s", claim=(live(world).log.epoch, 99))
    pinged = bob.new_id()
    bob.send({"type": "watch", "id": pinged, "on": True})
    world.sync()
    assert pinged not in bob.answers
    world.store.release()
    world.sync()
    assert list(bob.answers)[-1] == pinged
    assert bob.held["s"].seq == live(world).log.head


def test_an_attach_whose_new_epoch_cannot_be_stored_is_told(world: World, ann: Client) -> None:
    bob = ahead(world, ann)
    world.store.fails = 1
    bob.attach("s", claim=(live(world).log.epoch, 99))
    world.sync()
    assert [answer["code"] for answer in bob.answers.values()] == ["store_unavailable"]


def test_a_client_that_leaves_before_its_new_epoch_is_stored_leaves_nothing_behind(world: World, ann: Client) -> None:
    bob = ahead(world, ann)
    world.store.hold()
    bob.attach("s", claim=(live(world).log.epoch, 99))
    world.sync()
    bob.drop(1000)
    ann.drop(1000)
    world.sync()
    world.store.release()
    world.sync()
    assert live(world).log.cursors == set()
    assert list(live(world).owners) == []


# -- memory and the store


def test_a_session_that_a_prompt_makes_while_it_is_looked_for_is_one_session(
    world: World, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, found = world.store, world.loop.create_future()
    load = store.load

    async def slow(principal: str, session_id: str, newest: int) -> StoredSession | None:
        await found
        return await load(principal, session_id, newest)

    monkeypatch.setattr(store, "load", slow)
    looking = world.loop.create_task(world.hub._load(("local", "s")))
    world.sync()
    monkeypatch.setattr(store, "load", load)
    prompt(world, ann)
    made = live(world)
    found.set_result(None)
    world.sync()
    assert looking.result() is made
    assert live(world) is made


def test_an_idle_session_leaves_memory_and_comes_back_as_it_was(world: World, ann: Client) -> None:
    prompt(world, ann)
    push(world, {"type": "text-delta", "text": "kept"}, End())
    before = live(world)
    state = before.log.archive.fold.state()
    ann.drop(1000)
    world.loop.advance(400)
    assert world.session("s") is None
    again = world.loop.run(world.hub.find("local", "s"))
    assert again is not None
    assert again is not before
    assert again.log.archive.fold.state() == state
    assert (again.title, again.message_count, again.created_at) == ("hi", 2, before.created_at)


def test_the_history_for_an_engine_is_whole_although_a_compaction_comes_between(
    world: World, ann: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        prompt(world, ann, f"n{n}")
        push(world, End())
    session, store = live(world), world.store
    assert session.log.archive.window == 0
    answered = world.loop.create_future()
    messages = store.messages

    async def slow(sid: int, start: int, stop: int) -> list[bytes]:
        found = await messages(sid, start, stop)
        await answered
        return found

    monkeypatch.setattr(store, "messages", slow)
    prompt(world, ann, "last")
    run = session.run
    assert run is not None
    asking = world.loop.create_task(session.history(run.spec))
    world.sync()
    session.log.compact()
    world.sync()
    assert session.log.archive.window > 0
    answered.set_result(None)
    world.sync()
    said = [m["parts"][0].get("text") for m in asking.result() if m["role"] == "user"]
    assert said == [*(f"n{n}" for n in range(40)), "last"]


def test_editing_removes_a_message_and_all_after_it(world: World, ann: Client) -> None:
    for text in ("one", "two"):
        prompt(world, ann, text)
        push(world, End())
    first = ann.held["s"].messages[2]["id"]
    prompt(world, ann, "two, but better", replaces=first)
    push(world, End())
    said = [m["parts"][0]["text"] for m in ann.held["s"].messages if m["role"] == "user"]
    assert said == ["one", "two, but better"]
    assert live(world).message_count == 4


@pytest.mark.parametrize(("command", "code"), [("prompt", "message_not_found"), ("resume", "session_not_found")])
def test_a_refused_command_makes_no_session(world: World, ann: Client, command: str, code: str) -> None:
    frame: Frame = {"type": command, "session_id": "s"}
    if command == "prompt":
        frame |= {"text": "x", "replaces": "nothing"}
    id_ = ann.once(frame)
    world.sync()
    assert ann.answers[id_]["code"] == code
    assert world.session("s") is None


def test_a_completed_turn_is_not_resumable_and_an_aborted_one_is(world: World, ann: Client) -> None:
    prompt(world, ann)
    push(world, End())
    assert ask(world, ann, type="resume", session_id="s")["code"] == "not_resumable"
    prompt(world, ann)
    ask(world, ann, type="abort", session_id="s")
    assert ask(world, ann, type="resume", session_id="s")["type"] == "ack"
    assert events(world, "run-start")[-1]["mode"] == "resume"


def test_the_first_answer_to_an_approval_wins(world: World, ann: Client) -> None:
    prompt(world, ann)
    push(world, {"type": "tool-call", "call_id": "c", "tool": "t"}, {"type": "approval-request", "request_id": "q"})
    assert live(world).status == "waiting"
    answer = {"type": "respond", "session_id": "s", "request_id": "q", "decision": "allow"}
    assert ask(world, ann, **answer)["type"] == "ack"
    assert ask(world, ann, **answer)["code"] == "request_not_found"
    assert [event["decision"] for event in events(world, "approval-resolved")] == ["allow"]


def test_draining_seals_what_does_not_finish_in_time_and_loses_no_queued_prompt_in_silence(
    world: World, ann: Client
) -> None:
    prompt(world, ann)
    prompt(world, ann, on_busy="queue")
    draining = world.loop.create_task(world.hub.drain(3.0))
    world.sync()
    assert ann.answers[prompt(world, ann)]["code"] == "draining"
    world.loop.advance(3.1)
    assert draining.done()
    assert finishes(world) == [("aborted", "shutdown")]
    assert [event["reason"] for event in events(world, "dequeued")] == ["shutdown"]


def test_nothing_in_a_session_waits_for_a_client_that_does_not_read(world: World, ann: Client) -> None:
    assert ann.socket is not None
    prompt(world, ann)
    ann.socket.reads = False
    bob = connected(world, 1)
    bob.attach("s", role="observer")
    push(world, *({"type": "text-delta", "text": "x" * 1000, "part_id": f"p{n}"} for n in range(50)), End())
    assert finishes(world) == [("completed", None)]
    assert bob.held["s"].seq == live(world).log.head
    world.loop.advance(9.0)
    assert ann.socket.closed is None
    world.loop.advance(15.0)
    assert ann.socket.closed == 1006, "it was given up after its send had taken too long, and then cut off"
