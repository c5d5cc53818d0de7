"""Several nodes on one PostgreSQL database: who is alive, who owns which session, what is to be stopped.

Ownership is decided here and nowhere else, by the database's clock and in its transactions. A commit keeps its lease's
row (``for key share``) until it has been made, a claim changes that row's key: one of the two waits for the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.stores.base import AbortFlag, ChunkRow, Claim, Renewal
from gateway.stores.postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"

_RENEW = f"""
    insert into nodes (node_id, expires_at) values (%s, {_NOW} + %s)
    on conflict (node_id) do update set expires_at = excluded.expires_at
"""
_ALIVE = f"select node_id from nodes where expires_at > {_NOW}"
_CUT_OFF = f"""
    select pg_terminate_backend(a.pid) from nodes n
    join pg_stat_activity a on a.application_name like '%% ' || n.node_id
    where n.expires_at <= {_NOW} and n.node_id <> %s and a.datname = current_database()
        and a.usename = current_user and a.state <> 'idle'
"""
"""A process that stops in the middle of sending a transaction keeps its locks: the server has begun, waits for the rest
and counts no time, and the kernel of a frozen process goes on answering. Its lease is over; so is its transaction."""
_BURY = f"delete from nodes where expires_at < {_NOW} - 86400000"
_FLAGS = "select principal, session_id, fence, aborts from leases where node_id = %s and aborts is not null"

_CLAIM = f"""
    insert into leases as held (fence, principal, session_id, node_id)
    values (nextval('fences'), %s, %s, %s)
    on conflict (principal, session_id) do update set fence = excluded.fence, node_id = excluded.node_id
    where held.node_id <> excluded.node_id
      and not exists (select 1 from nodes n where n.node_id = held.node_id and n.expires_at > {_NOW})
    returning node_id, fence, aborts
"""
_OWNER = "select node_id, fence, aborts from leases where principal = %s and session_id = %s"

_ORPHANS = f"""
    select s.principal, s.session_id from sessions s
    where s.active = 1 and not exists (
        select 1 from leases l join nodes n on n.node_id = l.node_id
        where l.principal = s.principal and l.session_id = s.session_id and n.expires_at > {_NOW})
    limit %s
"""
_REQUEST = r"""
    update leases set aborts = coalesce(aborts, '') || %s::bytea || '\x0a'::bytea
    where principal = %s and session_id = %s returning node_id
"""
_CLEAR = """
    update leases set aborts = nullif(substring(aborts from %s::int), '')
    where fence = %s and substring(aborts for %s::int) = %s
"""
_LATCH = f"""
    insert into latches (principal, command_id, detail, expires_at) values (%s, %s, %s, {_NOW} + %s)
    on conflict (principal, command_id) do update set detail = excluded.detail, expires_at = excluded.expires_at
"""
_LATCHED = f"select detail from latches where principal = %s and command_id = %s and expires_at > {_NOW}"
_UNLATCH = f"delete from latches where expires_at < {_NOW}"

_TAIL = """
    select first_seq, last_seq, committed_at, data from chunks where sid = %s and last_seq > %s order by first_seq
"""
_HEADS = """
    select s.sid, s.epoch, greatest(s.checkpoint_seq, c.last_seq) from sessions s
    left join lateral (select last_seq from chunks where sid = s.sid order by first_seq desc limit 1) c on true
    where s.sid = any(%s)
"""


class SharedPostgresStore(PostgresStore):
    """A :class:`~gateway.stores.base.SharedStore`."""

    alone = False

    def name(self, node_id: str) -> None:
        """Have the database know whose connections these are."""
        given = self._address.parameters["application_name"]
        self._address.parameters["application_name"] = f"{given[:40]} {node_id}"

    async def renew(self, node_id: str, lease_s: float) -> Renewal:
        """Keep a node alive; tell the living, and the flags on its own sessions."""
        await self._run([(_RENEW, (node_id, int(lease_s * 1000)))])
        await self._run([(_CUT_OFF, (node_id,))])
        alive = await self.living()
        flags = (await self._run([(_FLAGS, (node_id,))]))[0]
        return Renewal(alive, [AbortFlag(p, s, f, _lines(a)) for p, s, f, a in flags])

    async def living(self) -> frozenset[str]:
        """Tell the nodes that are alive."""
        return frozenset(row[0] for row in (await self._run([(_ALIVE, ())]))[0])

    async def leave(self, node_id: str) -> None:
        """Let go of a node and its leases."""
        await self._run([("delete from nodes where node_id = %s", (node_id,))])
        await self._run([("delete from leases where node_id = %s", (node_id,))])

    async def claim(self, principal: str, session_id: str, node_id: str) -> Claim:
        """Become the owner, or learn who it is."""
        while True:
            made = (await self._run([(_CLAIM, (principal, session_id, node_id))]))[0]
            found = made or (await self._run([(_OWNER, (principal, session_id))]))[0]
            if found:  # else its owner let go of it between the two
                owner, fence, aborts = found[0]
                return Claim(owner, fence, _lines(aborts) if owner == node_id else ())

    async def release(self, fences: Sequence[int]) -> None:
        """Let go of leases."""
        await self._run([("delete from leases where fence = any(%s)", (list(fences),))])

    async def orphans(self, limit: int) -> list[tuple[str, str]]:
        """List active sessions that no living node owns."""
        return [(row[0], row[1]) for row in (await self._run([(_ORPHANS, (limit,))]))[0]]

    async def request_abort(self, principal: str, session_id: str, payload: bytes) -> str | None:
        """Leave a flag for the owner."""
        found = (await self._run([(_REQUEST, (payload, principal, session_id))]))[0]
        return found[0][0] if found else None

    async def clear_aborts(self, flags: Sequence[AbortFlag]) -> None:
        """Forget these flags: what was read is the front of what is there now."""
        for flag in flags:
            seen = b"".join(payload + b"\n" for payload in flag.payloads)
            await self._run([(_CLEAR, (len(seen) + 1, flag.fence, len(seen), seen))])

    async def latch(self, principal: str, command_id: str, detail: str, ttl_s: float) -> None:
        """Remember an abort whose command has not come."""
        await self._run([(_LATCH, (principal, command_id, detail, int(ttl_s * 1000)))])

    async def latched(self, principal: str, command_id: str) -> str | None:
        """Give the detail of a command's early abort."""
        found = (await self._run([(_LATCHED, (principal, command_id))]))[0]
        return found[0][0] if found else None

    async def tail(self, sid: int, after_seq: int) -> list[ChunkRow]:
        """Read the chunks past a seq."""
        return [ChunkRow(*row) for row in (await self._run([(_TAIL, (sid, after_seq))]))[0]]

    async def heads(self, sids: Sequence[int]) -> dict[int, tuple[str, int]]:
        """Give (epoch, last seq) of sessions."""
        rows = (await self._run([(_HEADS, (list(sids),))]))[0]
        return {sid: (epoch, seq) for sid, epoch, seq in rows}

    async def sweep(self, now: int, chunks_before: int) -> None:
        """Forget what nobody can ask for any more, dead nodes and old latches too."""
        await super().sweep(now, chunks_before)
        await self._run([(_BURY, ())])
        await self._run([(_UNLATCH, ())])


def _lines(aborts: Any) -> tuple[bytes, ...]:
    return tuple(bytes(aborts).split(b"\n")[:-1]) if aborts else ()
