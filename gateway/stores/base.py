"""The store's interface and rows.

A store keeps four things: session rows, *chunks* (the events that one session added in one commit, one line of JSON
each), finished messages (each once, whole) and the commands that took effect (exactly once). It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

TOMBSTONE_MS = 24 * 3600 * 1000
"""How long a deleted session's commands are remembered (contract, "Exactly once")."""


class StoreUnavailable(Exception):
    """The store cannot do it now (disk full, locked, gone); nothing of the commit was kept, or its fate is unknown."""


class StoreUnusable(Exception):
    """The store can never be opened as it is (newer schema, unwritable, not ours); start-up ends with one line."""


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session as lists and recovery need it. Times in ms since 1970; ``run`` is the live run's options as JSON."""

    sid: int
    principal: str
    session_id: str
    epoch: str
    title: str | None
    status: str
    created_at: int
    updated_at: int
    message_count: int
    active: bool
    """A run is live or prompts wait: after a crash, start-up seals it."""
    run: bytes | None = None


@dataclass(frozen=True, slots=True)
class ChunkRow:
    """Events ``first_seq`` to ``last_seq``, committed together; ``data`` has one JSON object a line."""

    first_seq: int
    last_seq: int
    committed_at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class MessageRow:
    """A finished message at its place in the session (0 is the oldest)."""

    position: int
    message_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class CommandRow:
    """A command that took effect: ``body`` is the digest of its content, ``ack`` its answer as JSON."""

    principal: str
    command_id: str
    session_id: str
    body: bytes
    ack: bytes
    created_at: int


@dataclass(frozen=True, slots=True)
class Compaction:
    """Finished messages stored whole, the fold's remainder at ``seq``, and the seq up to which chunks may go."""

    seq: int
    checkpoint: bytes
    messages: Sequence[MessageRow]
    drop_to: int


@dataclass(slots=True)
class Commit:
    """All that one session adds or changes in one transaction, applied in the order of the fields."""

    sid: int
    session: SessionRow | None = None
    delete: bool = False
    chunk: ChunkRow | None = None
    remove_from: int | None = None
    """Stored messages from this position on are removed (edit, regenerate)."""
    commands: list[CommandRow] = field(default_factory=list)
    compaction: Compaction | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What it takes to bring a session back to memory: the checkpoint at ``seq`` and every chunk still held."""

    row: SessionRow
    seq: int
    checkpoint: bytes | None
    chunks: Sequence[ChunkRow]
    stored_messages: int


class Store(Protocol):
    """Durable state. Every method may raise :exc:`StoreUnavailable`."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises :exc:`StoreUnusable`."""

    async def close(self) -> None:
        """Let go of the database; what is committed stays."""

    async def commit(self, commits: Sequence[Commit]) -> None:
        """Apply all commits in one transaction, or none."""

    async def load(self, principal: str, session_id: str) -> StoredSession | None:
        """Read one session whole."""

    async def messages(self, sid: int, start: int, stop: int) -> list[bytes]:
        """Read stored messages by position, ``start`` to before ``stop``, oldest first."""

    async def position(self, sid: int, message_id: str) -> int | None:
        """Find a stored message's position."""

    async def sessions(self, principal: str, before: tuple[int, str] | None, limit: int) -> list[SessionRow]:
        """List sessions, newest (by ``updated_at``, then id) first, those after ``before`` in that order."""

    async def session(self, principal: str, session_id: str) -> SessionRow | None:
        """Read one session's row."""

    async def command(self, principal: str, command_id: str) -> CommandRow | None:
        """Find a command that took effect."""

    async def active(self) -> list[tuple[str, str]]:
        """List (principal, session_id) of sessions that a dead process left with a run or a queue."""

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget expired tombstones, and chunks older than ``chunks_before`` that a checkpoint covers."""
