"""A log that follows another node's: same events, same cursors, nothing of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.log import Log
from gateway.outbox import Outbox
from gateway.stores.base import ChunkRow, Commit, StoredSession
from gateway.writer import Writer
from tests.support_log import (
    commit,
    delta,
    frames_of,
    held,
    make_log,
    say,
    session_row,
    start,
    stored,
    text_start,
    turn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


def chunks_of(log: Log) -> list[ChunkRow]:
    """Everything that an owner has committed, event by event."""
    return [ChunkRow(seq, seq, 1000, line) for seq, line in held(log).items()]


def follower() -> Log:
    log = make_log()
    log.stand_down()
    return log


def attached(log: Log, **place: Any) -> Outbox:
    outbox = Outbox(lambda: None)
    outbox.attach(log, "owner", **place)
    return outbox


def test_a_follower_shows_what_the_owner_committed() -> None:
    owner, log = make_log(), follower()
    turn(owner, 1)
    outbox = attached(log, seq=0)
    for chunk in chunks_of(owner):
        assert log.follow(chunk, None)
    got = [frame for frame in frames_of(outbox) if "seq" in frame and frame["type"] != "attached"]
    assert got == [orjson.loads(line) for line in held(owner).values()]
    assert log.archive.snapshot("s") == owner.archive.snapshot("s")


def test_what_it_has_already_changes_nothing_and_a_hole_is_said() -> None:
    owner, log = make_log(), follower()
    turn(owner, 1)
    chunks = chunks_of(owner)
    for chunk in [*chunks[:3], *chunks[:3]]:
        assert log.follow(chunk, None)
    assert log.head == 3
    assert not log.follow(chunks[5], None)
    assert log.head == 3
    assert list(held(log)) == [1, 2, 3]


def test_a_removed_message_that_only_the_store_has_goes_where_the_owner_says() -> None:
    owner, log = make_log(), follower()
    for n in range(60):
        turn(owner, n)
    for chunk in chunks_of(owner):
        log.follow(chunk, None)
    log.archive.stored_to(120)
    assert log.archive.window == 70, "what the store has, and no snapshot needs, is let go of"
    first = orjson.loads(held(owner)[1])["message"]["id"]
    removal = orjson.dumps(
        {"type": "messages-removed", "session_id": "s", "seq": owner.head + 1, "run_id": "r", "from_message_id": first}
    )
    assert log.follow(ChunkRow(owner.head + 1, owner.head + 1, 1000, removal), 0)
    assert (log.archive.count, log.archive.stored) == (0, 0)


def test_after_a_reload_cursors_go_on_where_they_were() -> None:
    owner, log = make_log(), follower()
    commits = [say(owner, *start())]
    found = stored(owner, commits)
    log.reload(found)
    outbox = attached(log, epoch="ep", seq=1)
    frames_of(outbox)
    commits.append(say(owner, text_start(), delta("more")))
    log.reload(stored(owner, commits))
    assert [frame["type"] for frame in frames_of(outbox)] == ["text-start", "text-delta"]


def test_after_a_reload_with_another_epoch_cursors_get_a_snapshot() -> None:
    owner, log = make_log(), follower()
    commits = [say(owner, *start())]
    log.reload(stored(owner, commits))
    outbox = attached(log, epoch="ep", seq=1)
    frames_of(outbox)
    owner.renew_epoch()
    commits.append(commit(owner))
    log.reload(stored(owner, commits))
    assert log.epoch == owner.epoch
    kinds = [(frame["type"], frame.get("recovery")) for frame in frames_of(outbox)]
    assert kinds == [("attached", "snapshot"), ("snapshot", None)]


class Refusing:
    """A store that another node has taken a session from."""

    def __init__(self) -> None:
        self.refuses: frozenset[int] = frozenset()
        self.commits: list[Commit] = []

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        self.commits += [one for one in commits if one.sid not in self.refuses]
        return self.refuses


class Waiting:
    """An effect that somebody waits for."""

    result: str | None = None

    def committed(self) -> None:
        self.result = "committed"

    def failed(self) -> None:
        self.result = "failed"


async def owned(writer: Writer, sid: int) -> Log:
    log = Log(writer, sid, f"s{sid}", "ep")
    log.describe = lambda: session_row(sid=sid, session_id=f"s{sid}")
    log.fence = sid
    return log


async def test_what_the_store_refuses_is_never_shown_and_harms_no_other_session() -> None:
    store = Refusing()
    writer = Writer(store)  # type: ignore[arg-type]
    published: list[int] = []
    writer.committed = lambda taken: published.extend(log.sid for log, _ in taken)
    lost, kept = await owned(writer, 1), await owned(writer, 2)
    gone: list[str] = []
    lost.refused = lambda: gone.append("refused")
    store.refuses = frozenset({1})
    effects = [Waiting(), Waiting()]
    for log, effect in zip((lost, kept), effects, strict=True):
        for event in start():
            log.append(event)
        log.after(effect)
    writer.start()
    await writer.settled()
    assert [effect.result for effect in effects] == ["failed", "committed"]
    assert (lost.head, kept.head) == (0, 3)
    assert gone == ["refused"]
    assert published == [2]
    assert [one.fence for one in store.commits] == [2]
    await writer.stop()


async def test_a_log_that_follows_writes_nothing_whoever_appends_to_it() -> None:
    store = Refusing()
    writer = Writer(store)  # type: ignore[arg-type]
    writer.committed = lambda taken: None
    log = await owned(writer, 1)
    effect = Waiting()
    log.append(start()[0])
    log.after(effect)
    log.stand_down()
    assert effect.result == "failed"
    log.append(start()[0])
    writer.start()
    await writer.settled()
    assert store.commits == []
    assert log.head == 0
    log.stand_up(7)
    log.describe = session_row
    log.append(start()[0])
    await writer.settled()
    assert [one.fence for one in store.commits] == [7]
    await writer.stop()


def test_a_stored_session_is_what_a_follower_starts_from() -> None:
    owner, log = make_log(), follower()
    turn(owner, 1)
    found = StoredSession(session_row(), 0, None, chunks_of(owner), 0)
    log.restore(found)
    assert (log.head, log.floor) == (owner.head, 0)
