"""Stores for tests: one in memory, held to the contract's suite, and one that fails, waits and is audited."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from gateway.stores.base import (
    TOMBSTONE_MS,
    ChunkRow,
    CommandRow,
    Commit,
    SessionRow,
    ShareRow,
    Store,
    StoredSession,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
Event = dict[str, Any]


@dataclass(slots=True)
class _Kept:
    row: SessionRow
    seq: int = 0
    checkpoint: bytes | None = None
    chunks: dict[int, ChunkRow] = field(default_factory=dict)
    messages: dict[int, tuple[str, bytes]] = field(default_factory=dict)
    shares: dict[str, ShareRow] = field(default_factory=dict)


class MemoryStore:
    """What a store has to do, said in dicts. It outlives :meth:`close`, as a file does."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._commands: dict[tuple[str, str], tuple[int, CommandRow, int | None]] = {}
        self._open = False

    async def open(self) -> None:
        self._open = True

    async def close(self) -> None:
        self._open = False

    async def reach(self) -> None:
        self._check()

    def _check(self) -> None:
        if not self._open:
            raise StoreUnavailable("the store is closed")

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        self._check()
        self._refuse_conflicts(commits)
        for commit in commits:
            self._apply(commit)
        return frozenset()

    def _refuse_conflicts(self, commits: Sequence[Commit]) -> None:
        new = [(row.principal, row.command_id) for c in commits if not c.delete for row in c.commands]
        if len(set(new)) < len(new) or any(key in self._commands for key in new):
            raise StoreUnavailable("a command is stored once")
        names = {(kept.row.principal, kept.row.session_id): sid for sid, kept in self._kept.items()}
        for commit in commits:
            row = commit.session
            if row is not None and names.get((row.principal, row.session_id), commit.sid) != commit.sid:
                raise StoreUnavailable("a session is stored once")
            kept = self._kept.get(commit.sid)
            if commit.chunk is not None and kept is not None and commit.chunk.first_seq in kept.chunks:
                raise StoreUnavailable("a chunk is stored once")

    def _apply(self, commit: Commit) -> None:
        if commit.delete:
            self._kept.pop(commit.sid, None)
            expires = (commit.session.updated_at if commit.session else 0) + TOMBSTONE_MS
            for key, (sid, row, _) in list(self._commands.items()):
                if sid == commit.sid:
                    self._commands[key] = (sid, row, expires)
            return
        kept = self._kept.get(commit.sid)
        if commit.session is not None:
            if kept is None:
                kept = self._kept[commit.sid] = _Kept(commit.session)
            else:
                kept.row = replace(commit.session)
        if kept is None:
            return  # an empty commit; a session's first one describes it
        if commit.chunk is not None:
            kept.chunks[commit.chunk.first_seq] = commit.chunk
        if commit.remove_from is not None:
            for position in [p for p in kept.messages if p >= commit.remove_from]:
                del kept.messages[position]
        for row in commit.commands:
            self._commands[row.principal, row.command_id] = (commit.sid, row, None)
        for share in commit.shares:
            kept.shares.pop(share.principal, None)
            if share.role is not None:
                kept.shares[share.principal] = share
        compaction = commit.compaction
        if compaction is not None:
            for message in compaction.messages:
                kept.messages[message.position] = (message.message_id, message.data)
            kept.seq, kept.checkpoint = compaction.seq, compaction.checkpoint
            for first in [f for f, chunk in kept.chunks.items() if chunk.last_seq <= compaction.drop_to]:
                del kept.chunks[first]

    def _find(self, principal: str, session_id: str) -> _Kept | None:
        self._check()
        for kept in self._kept.values():
            if (kept.row.principal, kept.row.session_id) == (principal, session_id):
                return kept
        return None

    async def load(self, principal: str, session_id: str, newest: int = 0) -> StoredSession | None:
        kept = self._find(principal, session_id)
        if kept is None:
            return None
        chunks = [kept.chunks[first] for first in sorted(kept.chunks)]
        stored = max(kept.messages, default=-1) + 1
        tail = [kept.messages[position][1] for position in sorted(kept.messages)[max(0, stored - newest) :]]
        return StoredSession(kept.row, kept.seq, kept.checkpoint, chunks, stored, tail)

    async def session(self, principal: str, session_id: str) -> SessionRow | None:
        kept = self._find(principal, session_id)
        return None if kept is None else kept.row

    async def messages(self, sid: int, start: int, stop: int) -> list[bytes]:
        self._check()
        kept = self._kept.get(sid)
        return [] if kept is None else [kept.messages[p][1] for p in sorted(kept.messages) if start <= p < stop]

    async def position(self, sid: int, message_id: str) -> int | None:
        self._check()
        kept = self._kept.get(sid)
        found = [] if kept is None else [p for p, (id_, _) in kept.messages.items() if id_ == message_id]
        return found[0] if found else None

    async def sessions(self, principal: str, before: tuple[int, str] | None, limit: int) -> list[SessionRow]:
        self._check()
        rows = [kept.row for kept in self._kept.values() if kept.row.principal == principal]
        rows.sort(key=lambda row: (row.updated_at, row.session_id), reverse=True)
        return [row for row in rows if before is None or (row.updated_at, row.session_id) < before][:limit]

    async def command(self, principal: str, command_id: str) -> CommandRow | None:
        self._check()
        found = self._commands.get((principal, command_id))
        return None if found is None else found[1]

    def _shares(self) -> list[ShareRow]:
        self._check()
        rows = [share for kept in self._kept.values() for share in kept.shares.values()]
        return sorted(rows, key=lambda share: (share.created_at, share.sid, share.principal))

    async def shared(self, principal: str, session_id: str) -> ShareRow | None:
        return next((s for s in self._shares() if (s.principal, s.session_id) == (principal, session_id)), None)

    async def shares(self, sid: int) -> list[ShareRow]:
        return [share for share in self._shares() if share.sid == sid]

    async def shared_with(self, principal: str) -> list[ShareRow]:
        return [share for share in self._shares() if share.principal == principal]

    async def active(self) -> list[tuple[str, str]]:
        self._check()
        return [(kept.row.principal, kept.row.session_id) for kept in self._kept.values() if kept.row.active]

    async def sweep(self, now: int, chunks_before: int) -> None:
        self._check()
        for kept in self._kept.values():
            for first, chunk in list(kept.chunks.items()):
                if chunk.committed_at < chunks_before and chunk.last_seq <= kept.seq:
                    del kept.chunks[first]
        for key, (_, _, expires) in list(self._commands.items()):
            if expires is not None and expires < now:
                del self._commands[key]


class Ledger:
    """Every event that was ever committed, as whoever pulls the plug would find it. Checks each commit as it comes."""

    def __init__(self) -> None:
        self.events: dict[str, list[Event]] = {}
        self.rows: dict[str, SessionRow] = {}
        self.problems: list[AssertionError] = []
        """What a check found: raised where it was found, the writer would take it for a broken store."""

    def note(self, commits: Sequence[Commit]) -> None:
        try:
            self._note(commits)
        except AssertionError as exc:
            self.problems.append(exc)

    def _note(self, commits: Sequence[Commit]) -> None:
        for commit in commits:
            if commit.session is not None:
                self.rows[commit.session.session_id] = commit.session
            if commit.chunk is not None:
                self._chunk(commit.chunk)

    def _chunk(self, chunk: ChunkRow) -> None:
        new = [json.loads(line) for line in chunk.data.split(b"\n")]
        session_id = new[0]["session_id"]
        log = self.events.setdefault(session_id, [])
        seqs = [event["seq"] for event in new]
        expected = list(range(len(log) + 1, len(log) + 1 + len(new)))
        assert seqs == expected, f"invariant 1: seq has no gaps and one writer: {seqs}, not {expected}"
        assert (chunk.first_seq, chunk.last_seq) == (seqs[0], seqs[-1]), "invariant 1: a chunk says what it holds"
        for event in new:
            if event["type"] == "run-finish":
                together = [e for e in new if e["type"] == "message-finish" and e["run_id"] == event["run_id"]]
                assert together, "invariant 8: message-finish and run-finish are handed to the writer together"
        log.extend(new)


@dataclass
class FaultyStore:
    """A store that a test holds back, breaks, mends or kills; it tells the ledger what was really committed."""

    inner: Store
    ledger: Ledger
    held: bool = False
    broken: bool = False
    dead: bool = False
    fails: int = 0
    """So many of the next commits are refused."""
    doubts: int = 0
    """So many of the next commits are made, and then said to have failed: their fate is unknown to the gateway."""
    outstanding: int = 0
    answered: Callable[[], None] = lambda: None
    """Called while whoever asked still waits for the answer."""
    _gate: list[asyncio.Future[None]] = field(default_factory=list)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        self.held = False
        gate, self._gate = self._gate, []
        for waiter in gate:
            if not waiter.done():
                waiter.set_result(None)

    async def _ask(self, question: Awaitable[T]) -> T:
        self.outstanding += 1
        try:
            answer = await question
        finally:
            self.outstanding -= 1
        if self.dead:
            await asyncio.get_running_loop().create_future()
        self.answered()
        return answer

    async def _read(self, question: Any) -> Any:
        if self.broken:
            question.close()
            raise StoreUnavailable("the test broke the store")
        return await self._ask(question)

    async def reach(self) -> None:
        await self._read(self.inner.reach())

    async def open(self) -> None:
        await self._ask(self.inner.open())

    async def close(self) -> None:
        await self._ask(self.inner.close())

    async def commit(self, commits: Sequence[Commit]) -> frozenset[int]:
        if self.held:
            waiter = asyncio.get_running_loop().create_future()
            self._gate.append(waiter)
            await waiter
        if self.dead:
            await asyncio.get_running_loop().create_future()
        if self.fails or self.broken:
            self.fails = max(0, self.fails - 1)
            raise StoreUnavailable("the test refused the commit")
        refused = await self._ask(self.inner.commit(commits))
        self.ledger.note([commit for commit in commits if commit.sid not in refused])
        if self.doubts:
            self.doubts -= 1
            raise StoreUnavailable("the test lost the commit's answer")
        return refused

    async def load(self, principal: str, session_id: str, newest: int = 0) -> StoredSession | None:
        found: StoredSession | None = await self._read(self.inner.load(principal, session_id, newest))
        return found

    async def messages(self, sid: int, start: int, stop: int) -> list[bytes]:
        found: list[bytes] = await self._read(self.inner.messages(sid, start, stop))
        return found

    async def position(self, sid: int, message_id: str) -> int | None:
        found: int | None = await self._read(self.inner.position(sid, message_id))
        return found

    async def sessions(self, principal: str, before: tuple[int, str] | None, limit: int) -> list[SessionRow]:
        found: list[SessionRow] = await self._read(self.inner.sessions(principal, before, limit))
        return found

    async def session(self, principal: str, session_id: str) -> SessionRow | None:
        found: SessionRow | None = await self._read(self.inner.session(principal, session_id))
        return found

    async def command(self, principal: str, command_id: str) -> CommandRow | None:
        found: CommandRow | None = await self._read(self.inner.command(principal, command_id))
        return found

    async def shared(self, principal: str, session_id: str) -> ShareRow | None:
        found: ShareRow | None = await self._read(self.inner.shared(principal, session_id))
        return found

    async def shares(self, sid: int) -> list[ShareRow]:
        found: list[ShareRow] = await self._read(self.inner.shares(sid))
        return found

    async def shared_with(self, principal: str) -> list[ShareRow]:
        found: list[ShareRow] = await self._read(self.inner.shared_with(principal))
        return found

    async def active(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = await self._read(self.inner.active())
        return found

    async def sweep(self, now: int, chunks_before: int) -> None:
        await self._read(self.inner.sweep(now, chunks_before))
