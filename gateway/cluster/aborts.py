"""Stop, across nodes: the flag goes into the store first, then the signal to the owner.

A bus that fails at the wrong moment cannot lose a Stop: the owner finds the flag when it renews its lease, and so
does whoever takes over from a dead owner. An abort of a command that has not come yet is latched in the store, where
any node finds it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Any

import orjson

from gateway.cluster.calls import Unreached
from gateway.cluster.errors import Elsewhere
from gateway.ids import now_ms
from gateway.latches import LATCH_S
from gateway.services import store_unavailable
from gateway.sharing import require
from gateway.stores.base import AbortFlag, StoreUnavailable
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.cluster.calls import Header
    from gateway.cluster.errors import Key
    from gateway.cluster.hub import ClusterHub
    from gateway.cluster.replicas import Replica
    from gateway.services import Caller
    from gateway.session import Session
    from gateway.stores.base import Renewal, StoredSession
    from protocol.commands import Abort

logger = logging.getLogger(__name__)

Runs = list[dict[str, Any]]

ANSWER_S = 2.0
"""How long the owner may take to say what an abort did; its flag is in the store already."""

REMEMBERED = 10_000
"""How many aborts are known to have been obeyed, and how, so that their flags do not stop what came later."""


class Aborts:
    """The aborts of one node: those that it passes on, and those that it obeys."""

    def __init__(self, hub: ClusterHub) -> None:
        self._hub = hub
        self._obeyed: dict[str, Runs] = {}

    # -- passing on

    async def abort(self, caller: Caller, command: Abort) -> Runs:
        """Stop what a command means, wherever it runs; gives the ack's ``runs``. Raises :exc:`CommandError`."""
        reason = command.reason
        if command.command_id is not None:
            return await self._by_command(caller, command.command_id, command)
        if command.session_id is not None:
            return await self._by_session(caller, command.session_id, command.run_id, reason)
        if command.run_id is not None:
            return await self._by_run(caller, command.run_id, reason)
        runs = self._hub.abort_here(caller, command)
        busy = [replica for replica in self._hub.replicas.present(caller) if replica.busy]
        stops = [self._stop(replica.key, None, reason) for replica in busy]
        for found in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(found, list):
                runs += found
            elif not isinstance(found, CommandError):
                raise found
        return runs

    async def _by_session(self, caller: Caller, session_id: str, run_id: str | None, reason: str | None) -> Runs:
        hub = self._hub
        replica = hub.replica_at_hand(caller, session_id)
        if replica is not None and (runs := await self._stop_there(replica.key, run_id, reason)) is not None:
            return runs
        try:
            session, _ = await hub.sharing.reach(caller.principal, session_id)
            return session.abort("user", reason, run_id=run_id)
        except Elsewhere as exc:
            key = exc.key
        if key[0] != caller.principal:
            _, role = await hub.sharing.place(caller.principal, session_id)
            require(caller.principal, session_id, role, "owner")
        return await self._stop(key, run_id, reason)

    async def _stop(self, key: Key, run_id: str | None, reason: str | None) -> Runs:
        """Stop a session's runs, or one of them, wherever it is owned by now."""
        runs = await self._stop_there(key, run_id, reason)
        if runs is not None:
            return runs
        try:
            session = await self._hub.find(*key)
        except Elsewhere as exc:
            if exc.node_id is None:  # this node leaves, and nobody has the session: nothing runs
                return []
            runs = await self._stop_there(key, run_id, reason)
            if runs is None:
                raise store_unavailable() from None
            return runs
        return [] if session is None else session.abort("user", reason, run_id=run_id)

    async def stop_quietly(self, replica: Replica) -> None:
        """Stop what runs in a session for a caller who has been answered already."""
        try:
            await self._stop(replica.key, None, None)
        except CommandError as exc:
            logger.warning("session %s: its run could not be stopped: %s", replica.key[1], exc.message)

    async def _stop_there(self, key: Key, run_id: str | None, reason: str | None) -> Runs | None:
        """Flag, then signal. None: nobody owns the session, or this node does and has it not in memory."""
        hub = self._hub
        replica = hub.replicas.get(key)
        # Looked at before anything is asked: this node may take the session over meanwhile, and nothing runs any more.
        known = run_id or (replica.log.archive.fold.run_id if replica is not None else None)
        word = {"id": secrets.token_hex(8), "kind": "abort", "run_id": run_id, "reason": reason, "at": now_ms()}
        payload = orjson.dumps(word)
        flagged = True
        try:
            owner = await hub.store.request_abort(*key, payload)
        except StoreUnavailable:
            flagged, owner = False, replica.owner if replica is not None else None
        if owner is None:
            return None
        if owner == hub.node_id:
            session = hub.sessions.get(key)
            return None if session is None else self._obey_word(session, word)
        try:
            answer = await hub.calls.ask(owner, "abort", {"key": key, "word": word}, timeout=ANSWER_S)
        except Unreached:
            answer = {"moved": True}
        if not answer.get("moved"):
            runs: Runs = answer["runs"]
            return runs
        if not flagged:
            raise store_unavailable()
        # Whoever owns it finds the flag. What it stops is what this node knew to run.
        return [{"session_id": key[1], "run_id": known, "state": "requested"}] if known is not None else []

    async def _by_command(self, caller: Caller, command_id: str, command: Abort) -> Runs:
        hub, principal, reason = self._hub, caller.principal, command.reason
        # Latched before the store is asked: the prompt may come while it answers, here or on another node.
        hub.latches.set(principal, command_id, reason)
        try:
            if command.session_id is not None:
                await self._allowed(caller, command_id, command.session_id)
            await hub.store.latch(principal, command_id, reason or "", LATCH_S)
            row = await hub.store.command(principal, command_id)
        except StoreUnavailable:
            raise store_unavailable() from None
        live = hub.services.commands.get((principal, command_id))
        if live is not None and (live[0].principal == principal or live[0] in caller.owned):  # it came here meanwhile
            return live[0].abort("user", reason, run_id=live[1])
        if row is None:
            return [{"session_id": command.session_id, "run_id": None, "state": "latched"}]
        hub.latches.drop(principal, command_id)
        ids = orjson.loads(row.ack)
        problem = CommandError("session_not_found", f"there is no session {ids['session_id']}")
        try:
            if runs := await self._by_session(caller, ids["session_id"], ids["run_id"], reason):
                return runs
        except CommandError as exc:
            if exc.code not in ("session_not_found", "forbidden"):
                raise
            problem = exc
        # Of a session that was shared, and is not any more: who started a run is told why it may not stop it.
        if hub.holds(ids["run_id"]) or any(answer["holds"] for answer in await self._ask_all("holds", ids["run_id"])):
            raise problem
        return [{"session_id": ids["session_id"], "run_id": ids["run_id"], "state": "too_late"}]

    async def _allowed(self, caller: Caller, command_id: str, session_id: str) -> None:
        """Refuse to latch an abort for a session that was shared to look at. Raises ``forbidden``."""
        hub, principal = self._hub, caller.principal
        _, role = await hub.sharing.place(principal, session_id)
        if role != "owner" and await hub.store.command(principal, command_id) is None:
            hub.latches.drop(principal, command_id)
            require(principal, session_id, role, "owner")

    async def _by_run(self, caller: Caller, run_id: str, reason: str | None) -> Runs:
        hub, principal = self._hub, caller.principal
        if runs := await hub.abort_run(principal, run_id, reason):
            return runs
        for replica in hub.replicas.all():
            if replica.holds(run_id) and (
                replica.key[0] == principal
                or caller in replica.present
                or await hub.sharing.owns(principal, replica.key)
            ):
                return await self._stop(replica.key, run_id, reason)
        answers = await self._ask_all("abort_run", run_id, p=principal, reason=reason)
        return [run for answer in answers for run in answer["runs"]]

    async def _ask_all(self, op: str, run_id: str, **header: Any) -> list[Header]:
        """Ask all other nodes about a run, one of which may have it. Raises :exc:`CommandError`."""
        hub = self._hub
        try:
            others = await hub.store.living() - {hub.node_id}
        except StoreUnavailable:
            raise store_unavailable() from None
        questions = [hub.calls.ask(node, op, {"run_id": run_id, **header}, timeout=ANSWER_S) for node in others]
        answers = await asyncio.gather(*questions, return_exceptions=True)
        told = [answer for answer in answers if isinstance(answer, dict) and "error" not in answer]
        if len(told) < len(answers) and not any(answer.get("runs") or answer.get("holds") for answer in told):
            raise store_unavailable()  # the node that did not tell may be the one
        return told

    # -- early and late

    async def early(self, principal: str, command_id: str | None) -> None:
        """A command is about to be carried out: look whether it was aborted before it came."""
        if command_id is None:
            return
        try:
            detail = await self._hub.store.latched(principal, command_id)
        except StoreUnavailable:
            raise store_unavailable() from None
        if detail is not None:
            self._hub.latches.set(principal, command_id, detail or None)

    async def late(self, principal: str, command_id: str) -> None:
        """A command is committed: whoever aborted it meanwhile has seen it, or is seen now."""
        try:
            detail = await self._hub.store.latched(principal, command_id)
        except StoreUnavailable:
            return  # then its run is about to be lost as well
        live = self._hub.services.commands.get((principal, command_id))
        if detail is not None and live is not None:
            live[0].abort("user", detail or None, run_id=live[1])

    # -- obeying

    def signalled(self, session: Session, word: Header) -> Runs:
        """A signal has come: obey it, and take its flag away."""
        fence = session.log.fence
        runs = self._obey_word(session, word)
        if fence is not None:
            flag = AbortFlag(*session.key, fence, (orjson.dumps(word),))
            self._hub.keep(asyncio.create_task(self.clear([flag])))
        return runs

    def renewed(self, renewal: Renewal) -> None:
        """Obey the flags of the sessions that this node owns."""
        for flag in renewal.aborts:
            session = self._hub.sessions.get((flag.principal, flag.session_id))
            if session is not None:
                self.obey(session, flag)
        if renewal.aborts:
            self._hub.keep(asyncio.create_task(self.clear(renewal.aborts)))

    def mean(self, flag: AbortFlag, found: StoredSession) -> bool:
        """Say whether a flag is for the run that a dead owner has left: then it is not taken up again."""
        run_id = orjson.loads(found.row.run)["run_id"] if found.row.run is not None else None
        return any(word["kind"] == "abort" and word["run_id"] in (None, run_id) for word in _words(flag))

    def obey(self, session: Session, flag: AbortFlag) -> None:
        """Do what a flag says, unless its signal came before it."""
        for word in _words(flag):
            if word["kind"] == "gone":
                self._hub.apply_gone(session, word["node"], word["gone"])
            else:
                self._obey_word(session, word)

    def _obey_word(self, session: Session, word: Header) -> Runs:
        done = self._obeyed.get(word["id"])
        if done is None:
            while len(self._obeyed) >= REMEMBERED:
                del self._obeyed[next(iter(self._obeyed))]
            done = self._obeyed[word["id"]] = session.abort("user", word["reason"], run_id=word["run_id"])
        return done  # also to a signal that comes behind its flag: who sent it is told what it did

    async def clear(self, flags: Sequence[AbortFlag]) -> None:
        """Take flags away that have been obeyed."""
        try:
            await self._hub.store.clear_aborts(flags)
        except StoreUnavailable as exc:
            logger.debug("flags stay for now: %s", exc)


def _words(flag: AbortFlag) -> list[Header]:
    """Read what was left for the owner of a session."""
    return [orjson.loads(payload) for payload in flag.payloads]
