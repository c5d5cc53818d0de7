"""Where a server kills itself: at the n-th passage of a boundary, by SIGKILL, with no hook in the product.

Named functions of the product are wrapped in the forked child before it starts. A boundary that the product no longer
has fails loudly: there is nothing to wrap.
"""

from __future__ import annotations

import functools
import os
import signal
from typing import TYPE_CHECKING, Any

from gateway import housekeeper
from gateway.archive import Archive
from gateway.log import Log
from gateway.outbox import Outbox
from gateway.session import Session
from gateway.stores import checkpoints, migrate, recent, sql
from gateway.stores.checkpoints import Checkpoints
from gateway.stores.sql import SqliteStore
from gateway.stores.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Countdown:
    """Dies at the n-th passage."""

    def __init__(self, passages: int) -> None:
        self._left = passages

    def last(self) -> bool:
        self._left -= 1
        return self._left == 0

    def passage(self) -> None:
        if self.last():
            die()


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _before(owner: Any, name: str, passage: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        passage()
        return original(*args, **kwargs)

    setattr(owner, name, wrapped)


def _after(owner: Any, name: str, passage: Callable[[], None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        passage()
        return result

    setattr(owner, name, wrapped)


def before_append(count: Countdown) -> None:
    """The engine has said something, the log has not got it."""
    _before(Log, "append", count.passage)


def before_commit(count: Countdown) -> None:
    """Stamped and encoded; the store has not been asked."""
    _before(SqliteStore, "commit", count.passage)


def in_commit(count: Countdown) -> None:
    """Some statements of a transaction are done, others are not."""
    _between_statements(count, compacting=False)


def after_commit(count: Countdown) -> None:
    """Durable; nobody has been told."""
    _after(SqliteStore, "_commit", count.passage)


def before_send(count: Countdown) -> None:
    """Published, taken from the outbox; no byte is on the wire."""
    _after(Outbox, "next_message", count.passage)


def mid_send(count: Countdown) -> None:
    """Half of a frame is on the wire."""
    from gateway.sockets import BoundedWebSocket as Socket

    original = Socket.say

    def say(self: Socket, text: bytes) -> None:
        if count.last():
            self.conn.send_text(text)
            data = b"".join(self.conn.data_to_send())
            os.write(self.transport.get_extra_info("socket").fileno(), data[: len(data) // 2])
            die()
        original(self, text)

    Socket.say = say  # type: ignore[method-assign]


def sealing(count: Countdown) -> None:
    """The start-up recovery has appended some of the closing events of a lost run."""
    original = Session.seal_lost
    counting = False

    def seal_lost(self: Session, *, stopped: bool = False) -> None:
        nonlocal counting
        if not counting:
            counting = True
            _before(Log, "append", count.passage)
        original(self, stopped=stopped)
        count.passage()

    Session.seal_lost = seal_lost  # type: ignore[method-assign]


def sealed(count: Countdown) -> None:
    """The seals are being committed, or are and nobody serves yet."""
    _between_statements(count, compacting=False)
    _after(SqliteStore, "_commit", count.passage)


def compacting(count: Countdown) -> None:
    """Messages are stored whole, the checkpoint or the dropping of chunks is not; or it is, and nobody knows."""
    housekeeper.EVERY_S = 0.02
    _between_statements(count, compacting=True)
    _before(Archive, "compacted", count.passage)


def checkpointing(count: Countdown) -> None:
    """The write-ahead log is being moved into the database."""
    checkpoints.EVERY_BYTES = 2000
    original = Checkpoints._run

    def run(self: Checkpoints) -> None:
        if count.last():
            import threading

            threading.Timer(0.0002, die).start()
        original(self)

    Checkpoints._run = run  # type: ignore[method-assign]


def moving(count: Countdown) -> None:
    """Chunks are in their place, what they were is still there; or it is gone, and nobody knows."""
    recent.MOVE_AFTER_MS = 0
    sql.MOVE_EVERY_S = 0.005
    original = SqliteStore._write

    def write(self: SqliteStore, statements: Iterable[tuple[str, Any]]) -> None:
        def counted() -> Iterator[tuple[str, Any]]:
            for text, rows in statements:
                yield text, rows
                if text in (recent.PLACE, recent.CUT):
                    count.passage()

        original(self, counted())

    SqliteStore._write = write  # type: ignore[method-assign]
    _before(recent.Recent, "done", count.passage)


def migrating(count: Countdown) -> None:
    """Some statements of a migration are done."""
    import sqlalchemy as sa

    original = migrate.migrate

    def migrating_(connection: sa.engine.Connection) -> None:
        sa.event.listen(connection, "after_cursor_execute", lambda *_: count.passage())
        original(connection)
        count.passage()

    migrate.migrate = migrating_


def _between_statements(count: Countdown, *, compacting: bool) -> None:
    original = Statements.plan

    def plan(self: Statements, commits: Any, put: Any = None) -> Iterator[tuple[str, Any]]:
        counted = not compacting or any(commit.compaction is not None for commit in commits)
        for statement in original(self, commits, put):
            yield statement
            if counted:
                count.passage()

    Statements.plan = plan  # type: ignore[method-assign]


BOUNDARIES: dict[str, Callable[[Countdown], None]] = {
    install_.__name__: install_
    for install_ in (
        before_append,
        before_commit,
        in_commit,
        after_commit,
        before_send,
        mid_send,
        sealing,
        sealed,
        compacting,
        checkpointing,
        moving,
        migrating,
    )
}


def install(boundary: str, passages: int) -> None:
    """Arrange to die at the n-th passage of a boundary."""
    BOUNDARIES[boundary](Countdown(passages))
