"""The store's interface and rows.

A store keeps four things: session rows, *chunks* (the events that one session added in one commit, one line of JSON
each), finished messages (each once, whole) and the commands that took effect (exactly once). It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gateway.redact import redact

if TYPE_CHECKING:
    from collections.abc import Sequence

TOMBSTONE_MS = 24 * 3600 * 1000
"""How long a deleted session's commands are remembered (contract, "Exactly once")."""


class _StoreError(Exception):
    """Its message may come from a driver and name an address: a password in it is masked."""

    def __init__(self, message: str = "") -> None:
        super().__init__(redact(message))


class StoreUnavailable(_StoreError):
    """The store cannot do it now (disk full, locked, gone); nothing of the commit was kept, or its fate is unknown."""


class StoreUnusable(_StoreError):
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


class ChunkRow(NamedTuple):
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
class ShareRow:
    """``principal`` may use session ``session_id`` of ``owner``, as ``owner`` or ``observer`` (None: no more)."""

    sid: int
    principal: str
    owner: str
    session_id: str
    role: str | None
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
    """All that one session adds or changes in one transaction, applied in the order of its fields, ``fence`` first."""

    sid: int
    session: SessionRow | None = None
    delete: bool = False
    chunk: ChunkRow | None = None
    remove_from: int | None = None
    """Stored messages from this position on are removed (edit, regenerate)."""
    commands: Sequence[CommandRow] = ()
    compaction: Compaction | None = None
    shares: Sequence[ShareRow] = ()
    """Set or, with role None, taken back."""
    fence: int | None = None
    """The lease that a node of a cluster writes under: without it in the store, nothing of this commit is kept."""


@dataclass(frozen=True, slots=True)
class StoredSession:
    """What it takes to bring a session back to memory, all as of one moment.

    The checkpoint at ``seq``, every chunk still held, and the newest stored messages, the oldest of them first.
    """

    row: SessionRow
    seq: int
    checkpoint: bytes | None
    chunks: Sequence[ChunkRow]
    stored_messages: int
    tail: Sequence[bytes] = ()

    @property
    def head(self) -> int:
        """The last seq."""
        return max(self.seq, self.chunks[-1].last_seq) if self.chunks else self.seq


class Store(Protocol):
    """Durable state. Every method may raise :exc:`StoreUnavailable`."""

    async def open(self) -> None:
        """Connect and bring the schema up to date. Raises :exc:`StoreUnusable`."""

    async def close(self) -> None:
        """Let go of the database; what is committed stays."""

    async def reach(self) -> None:
        """Return where the database is not known to be away, after an attempt to connect where it was.

        Raises :exc:`StoreUnavailable`. A file is always there: that somebody locks it for a moment is no absence.
        """

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        """Apply all commits in one transaction, or none; give the ``sid`` of those that were refused.

        Only what bears a ``fence`` is: where that lease is gone, or where another node has committed one of its
        commands. A refused commit leaves nothing behind, and the others of its transaction go through.
        """

    async def load(self, principal: str, session_id: str, newest: int = 0) -> StoredSession | None:
        """Read one session, with as many of its newest stored messages, all as of one moment.

        Read in two steps, what a commit moves from one place to the other between them would be there twice.
        """

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

    async def shared(self, principal: str, session_id: str) -> ShareRow | None:
        """Find what was shared with a principal under this id; of several the oldest."""

    async def shares(self, sid: int) -> list[ShareRow]:
        """List with whom a session is shared, oldest first."""

    async def shared_with(self, principal: str) -> list[ShareRow]:
        """List what was shared with a principal, oldest first."""

    async def active(self) -> list[tuple[str, str]]:
        """List (principal, session_id) of sessions that a dead process left with a run or a queue."""

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget expired tombstones, and chunks older than ``chunks_before`` that a checkpoint covers."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Who owns a session: the caller, or the living node that had it before. ``fence`` is that lease's."""

    node_id: str
    fence: int
    aborts: tuple[bytes, ...] = ()
    """Flags that a dead owner left undone: whoever takes over has to obey and clear them."""


@dataclass(frozen=True, slots=True)
class AbortFlag:
    """What others asked the owner of a session to stop: one payload for each request, oldest first."""

    principal: str
    session_id: str
    fence: int
    payloads: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Renewal:
    """The nodes that are alive by the database's clock, the caller among them, and the flags on its own sessions."""

    alive: frozenset[str]
    aborts: Sequence[AbortFlag]


class SharedStore(Store, Protocol):
    """A store that several nodes share. It also says which node owns which session; time is the database's own.

    A node is alive until the lease it renewed last has run out. A session's lease is good while its node is alive,
    and no longer once another node has taken it over: each claim that changes the owner gives a fence of its own,
    greater than any before. Every method may raise :exc:`StoreUnavailable`; all of them are safe to repeat.
    """

    def name(self, node_id: str) -> None:
        """Say before it is opened which node the store is for: what a dead one left half done in it can be ended."""

    async def renew(self, node_id: str, lease_s: float) -> Renewal:
        """Keep a node alive for ``lease_s`` seconds more. Flags are given again until they are cleared."""

    async def living(self) -> frozenset[str]:
        """Tell the nodes that are alive now: what a renewal told does not have those that started since."""

    async def leave(self, node_id: str) -> None:
        """Let go of a node and all of its leases: at the end of a drain."""

    async def claim(self, principal: str, session_id: str, node_id: str) -> Claim:
        """Make ``node_id`` the owner unless a living node is it. The session need not exist yet; the node has renewed.

        Of any number of nodes that claim at the same time, one becomes the owner and all are told which. Once this
        returns, nothing is committed any more under an older fence of this session.
        """

    async def release(self, fences: Sequence[int]) -> None:
        """Let go of leases; fences that are gone already do not matter."""

    async def orphans(self, limit: int) -> list[tuple[str, str]]:
        """List (principal, session_id) of active sessions that no living node owns."""

    async def request_abort(self, principal: str, session_id: str, payload: bytes) -> str | None:
        """Leave a flag for the session's owner, behind those it has not cleared; give the owner (dead or alive).

        None: nobody owns it, and nothing was kept. ``payload`` is one line: JSON without a line break.
        """

    async def clear_aborts(self, flags: Sequence[AbortFlag]) -> None:
        """Forget these flags, and none that came after they were read."""

    async def latch(self, principal: str, command_id: str, detail: str, ttl_s: float) -> None:
        """Remember for ``ttl_s`` seconds that a command was aborted before it came, and with which detail.

        Whoever latches looks for the command *afterwards*, and whoever commits a command looks for a latch
        afterwards: then one of the two sees the other, whichever node they are on.
        """

    async def latched(self, principal: str, command_id: str) -> str | None:
        """Give the detail of a command's early abort, None if there was none."""

    async def tail(self, sid: int, after_seq: int) -> list[ChunkRow]:
        """Read the chunks that hold events past ``after_seq``, oldest first, as far as they are still held."""

    async def heads(self, sids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Give (epoch, last seq) for each of these sessions that exists."""
