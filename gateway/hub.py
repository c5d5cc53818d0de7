"""The sessions that live on this node: find, create, seal after a crash, evict, drain; commands in.

A command arrives as a model and leaves as frames on its caller's outbox. What the store has to be asked is asked here,
before the session decides; the session itself never waits.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from typing import TYPE_CHECKING, Any, assert_never

import orjson

from gateway.archive import SNAPSHOT_BYTES, SNAPSHOT_MESSAGES, fit
from gateway.housekeeper import Housekeeper
from gateway.ids import new_id, new_row_id
from gateway.latches import Latches
from gateway.log import Log
from gateway.parking import Parking
from gateway.prompts import size_of
from gateway.quota import Quota
from gateway.services import Committed, RunLimits, Services, store_unavailable
from gateway.session import Session
from gateway.sharing import Sharing, require
from gateway.stores.base import StoreUnavailable
from gateway.writer import Writer
from protocol import commands as c
from protocol import frames
from protocol.codec import BATCH_BYTES, MAX_MESSAGE_BYTES
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from gateway.config import Settings
    from gateway.engine.port import Engine
    from gateway.services import Caller
    from gateway.stores.base import CommandRow, SessionRow, Store, StoredSession

logger = logging.getLogger(__name__)


class Hub:
    """All sessions of this node and the writer that commits for them."""

    clustered = False
    """Other nodes serve the same sessions."""

    def __init__(self, engine: Engine, store: Store, settings: Settings, *, single: bool = False) -> None:
        """``single``: without authentication everybody is one principal, who may have all that there is."""
        self.settings = settings
        self.store = store
        self.writer = Writer(store)
        self.sessions: dict[tuple[str, str], Session] = {}
        self.latches = Latches()
        self.parking = Parking(self)
        self.housekeeper = Housekeeper(self)
        self.sharing = Sharing(self, single=single)
        self.services = Services(
            engine=engine,
            store=store,
            abort_grace_s=settings.abort_grace,
            disconnect_grace_s=settings.disconnect_grace,
            queue_limit=settings.queue_limit,
            changed=self._session_changed,
            lost=self.housekeeper.lost.add,
            commands={},
            tasks=set(),
            runs=Quota("live runs", each=0 if single else settings.max_runs_per_principal, total=settings.max_runs),
            limits=RunLimits(
                deadline_s=settings.run_deadline,
                max_deadline_s=settings.max_run_deadline,
                max_bytes=settings.max_run_bytes,
                max_session_messages=settings.max_session_messages,
            ),
        )
        self.watchers: dict[str, set[Caller]] = {}
        self._loading: dict[tuple[str, str], asyncio.Task[Session | None]] = {}
        self._deletions: dict[tuple[str, str], asyncio.Future[None]] = {}
        self._in_flight: dict[tuple[str, str], asyncio.Future[None]] = {}

    @property
    def draining(self) -> bool:
        """The server is about to leave."""
        return self.services.draining

    async def condition(self) -> tuple[str, bool]:
        """Say how this node is, in a word, and whether new clients should come to it."""
        if self.draining:
            return "draining", False
        try:
            # Asked, not remembered: once nobody is sent here any more, nothing else would notice that it is back.
            await self.store.reach()
        except StoreUnavailable:
            return "store unavailable", False
        return "ready", True

    # -- life

    async def start(self) -> None:
        """Open the store, seal what a dead process left, start committing. Raises ``StoreUnusable``."""
        await self.store.open()
        self.writer.start()
        for key in await self.store.active():
            session = await self.find(*key)
            if session is not None:
                session.seal_lost()
        await self.writer.settled()
        self.housekeeper.start()

    async def drain(self, seconds: float) -> None:
        """Let live runs finish within ``seconds``, then abort them with reason ``shutdown`` and wait for the seals."""
        self.services.draining = True
        ends = [asyncio.create_task(run.done.wait()) for run in self._live()]
        if ends:
            await asyncio.wait(ends, timeout=seconds)
        for session in list(self.sessions.values()):
            session.abort("shutdown")
        if ends:
            await asyncio.wait(ends)
        await self.writer.settled()

    async def stop(self) -> None:
        """Seal what still runs, commit, and close the store."""
        await self.drain(0)
        await self.housekeeper.stop()
        leftover = [task for task in self.services.tasks if not task.done()]
        for task in leftover:
            task.cancel()
        if leftover:
            await asyncio.wait(leftover, timeout=1.0)
        await self.writer.stop()
        await self.store.close()

    def _live(self) -> list[Any]:
        return [session.run for session in self.sessions.values() if session.run is not None]

    # -- sessions

    async def find(self, principal: str, session_id: str) -> Session | None:
        """Give a session, from memory or the store. Raises ``store_unavailable``."""
        key = (principal, session_id)
        while (session := self.sessions.get(key)) is None:
            task = self._loading.get(key)
            if task is None:
                task = self._loading[key] = asyncio.create_task(self._load(key))
                task.add_done_callback(lambda _: self._loading.pop(key, None))
            try:
                if await asyncio.shield(task) is None and key not in self.sessions:
                    return None
            except StoreUnavailable:
                raise store_unavailable() from None
            # Looked up again: since it was loaded it may have been deleted, or have left.
        session.touched = asyncio.get_running_loop().time()
        return session

    async def get(self, principal: str, session_id: str) -> Session:
        """Give a session. Raises ``session_not_found``."""
        session = await self.find(principal, session_id)
        if session is None or session.deleting:
            raise CommandError("session_not_found", f"there is no session {session_id}")
        return session

    async def view(self, principal: str, session_id: str) -> Log:
        """Give the log of a session that a principal may look at. Raises ``session_not_found``."""
        session, _ = await self.sharing.reach(principal, session_id, "observer")
        return session.log

    async def _load(self, key: tuple[str, str]) -> Session | None:
        found = await self._read(key)
        created = self.sessions.get(key)
        if found is None or created is not None:  # while we read, a prompt made the session: one log has one writer
            return created
        log = self._log(found.row.sid, key[1], found.row.epoch)
        log.restore(found)
        session = Session(self.services, key[0], log)
        session.restored(found.row)
        return self._admit(session)

    async def _read(self, key: tuple[str, str]) -> StoredSession | None:
        """Read a session with its newest stored messages."""
        return await self.store.load(*key, newest=SNAPSHOT_MESSAGES)

    async def recover(self, session: Session) -> None:
        """Read the head of a session whose commit failed again, and seal what ran. Raises ``StoreUnavailable``."""
        found = await self.store.load(*session.key)
        self.housekeeper.lost.discard(session)
        if found is None:
            self._dissolve(session)  # it never came to be
            return
        session.log.catch_up(found)
        session.broken = False
        session.seal_lost()

    def _log(self, sid: int, session_id: str, epoch: str) -> Log:
        log = Log(self.writer, sid, session_id, epoch)
        log.retain_bytes = self.settings.retain_bytes
        return log

    def _create(self, principal: str, session_id: str) -> Session:
        log = self._log(new_row_id(), session_id, new_id("ep"))
        return self._admit(Session(self.services, principal, log))

    def _admit(self, session: Session) -> Session:
        self.sessions[session.key] = session
        self.parking.back(session)
        return session

    async def list_sessions(self, principal: str, before: str | None, limit: int) -> list[SessionRow]:
        """List sessions, newest first, those older than session ``before``."""
        try:
            place = None
            if before is not None:
                row = await self.store.session(principal, before)
                if row is None:
                    raise CommandError("session_not_found", f"before: there is no session {before}")
                place = (row.updated_at, row.session_id)
            return await self.store.sessions(principal, place, limit)
        except StoreUnavailable:
            raise store_unavailable() from None

    async def rename(self, principal: str, session_id: str, title: str) -> SessionRow:
        """Set a session's title."""
        session, _ = await self.sharing.reach(principal, session_id)
        session.title = title
        session.log.redescribe()
        await self._committed(session)
        return session.row()

    async def delete(self, principal: str, session_id: str) -> None:
        """Abort, seal, forget; tell every cursor ``detached``."""
        session, _ = await self.sharing.reach(principal, session_id)
        session.deleting = True
        deleted = self._deletions[session.key] = asyncio.get_running_loop().create_future()
        try:
            await self._delete(session)
        except CommandError:
            session.deleting = False
            raise
        finally:
            del self._deletions[session.key]
            deleted.set_result(None)

    async def _delete(self, session: Session) -> None:
        session.abort("user", "the session was deleted")
        if session.run is not None:
            await session.run.done.wait()
        await self._committed(session)

        def gone() -> None:
            self._dissolve(session)
            self._tell(session, deleted=True)

        effect = Committed(gone)
        session.log.delete(effect)
        await effect.done

    def _dissolve(self, session: Session) -> None:
        """A session is no more: say so to everybody who is attached."""
        self.sessions.pop(session.key, None)
        for cursor in list(session.log.cursors):
            cursor.sink.end(cursor, "deleted")
        for owner in list(session.owners):
            session.disown(owner)

    async def _committed(self, session: Session) -> None:
        effect = Committed()
        session.log.after(effect)
        await effect.done

    # -- commands

    async def handle(self, caller: Caller, command: c.Command) -> None:
        """Carry out a command that may have to wait. Raises :exc:`CommandError`."""
        match command:
            case c.Prompt(on_busy="steer") if self._busy(caller, command.session_id):
                # It may take until the agent's next safe point: later commands do not wait for it.
                self._keep(asyncio.create_task(self._steer(caller, command)))
            case c.Prompt():
                await self._once(caller, command, self._prompt)
            case c.Resume():
                await self._once(caller, command, self._resume)
            case c.Attach():
                await self.attach(caller, command, command.id)
            case c.Detach():
                self._detach(caller, command)
            case c.Respond():
                await self._once(caller, command, self._respond)
            case c.History():
                caller.reply(await self._history(caller.principal, command))
            case c.Watch():
                self.watch(caller, on=command.on)
                caller.reply(frames.ack("watch", command.id))
            case c.Abort():
                await self.abort(caller, command)
            case c.Ping():
                caller.reply(frames.pong(command.id))
            case c.Hello():
                raise CommandError("invalid", "hello: this connection has been opened already")
            case _:
                assert_never(command)

    async def _once(
        self,
        caller: Caller,
        command: c.Prompt | c.Resume | c.Respond,
        act: Callable[[Caller, Any, bytes], Awaitable[None]],
    ) -> None:
        """Carry out a command at most once per (principal, id), whatever is sent again after whatever loss."""
        body = hashlib.sha256(command.model_dump_json(exclude={"id"}).encode()).digest()
        if command.id is None:
            await act(caller, command, body)
            return
        key = (caller.principal, command.id)
        while key in self._in_flight:
            await asyncio.wait([self._in_flight[key]])
        turn = self._in_flight[key] = asyncio.get_running_loop().create_future()
        try:
            try:
                row = await self.store.command(*key)
            except StoreUnavailable:
                raise store_unavailable() from None
            if row is None:
                await act(caller, command, body)
            elif row.body != body:
                raise CommandError("id_reuse", "this id was used for another command")
            else:
                await self._repeat(caller, row)
        finally:
            del self._in_flight[key]
            turn.set_result(None)

    def _busy(self, caller: Caller, session_id: str | None) -> bool:
        session = self._at_hand(caller, session_id)
        return session is not None and session.run is not None

    def _at_hand(self, caller: Caller, session_id: str | None) -> Session | None:
        """Give a session in memory that a caller may do anything with: its principal's, or a shared one it owns."""
        own = self.sessions.get((caller.principal, session_id or ""))
        return own or next((session for session in _awake(caller) if session.session_id == session_id), None)

    async def _steer(self, caller: Caller, command: c.Prompt) -> None:
        try:
            await self._once(caller, command, self._prompt)
        except CommandError as exc:
            caller.reply(frames.error(exc, command.id, command.session_id))

    def _keep(self, task: asyncio.Task[None]) -> None:
        self.services.tasks.add(task)
        task.add_done_callback(self.services.tasks.discard)

    async def _repeat(self, caller: Caller, row: CommandRow) -> None:
        scope, role = await self.sharing.place(caller.principal, row.session_id)
        session = await self.find(scope, row.session_id) if role == "owner" else None
        ack = orjson.loads(row.ack)
        ack.pop("queued", None)
        caller.reply(ack | {"duplicate": True})
        if ack["command"] == "respond":  # which attaches nobody
            return
        if session is not None and not session.deleting:
            session.ensure_attached(caller)
            if caller.outbox is not None:
                session.add_owner(caller)
        elif caller.outbox is not None:
            reason = "deleted" if role == "owner" else "forbidden"
            caller.reply(frames.build("detached", session_id=row.session_id, reason=reason))

    async def _prompt(self, caller: Caller, command: c.Prompt, body: bytes) -> None:
        self._check_draining()
        most = self.settings.max_prompt_bytes
        if most and size_of(command) > most:
            raise CommandError("too_large", f"a prompt has at most {most} bytes")
        session_id = command.session_id or new_id("ses")
        scope, session, seen = caller.principal, None, self.sharing.changes
        if command.session_id:
            scope, role = await self.sharing.place(caller.principal, session_id)
            require(caller.principal, session_id, role, "owner")
            session = await self.find(scope, session_id)
        while session is not None and session.deleting:  # then the id is free for a new session
            await asyncio.wait([self._deletions[session.key]])
            session = await self.find(scope, session_id)
        self._check_room(caller, session_id)
        removed_at = None
        if command.replaces is not None:
            if session is None:
                raise CommandError("message_not_found", "replaces: there is no such message")
            removed_at = await self._position(session.log, command.replaces, "replaces")
        # Nothing waits from here to the session's decision, so one creation only.
        moved = session is not None and self.sessions.get(session.key) is not session
        if moved or (scope != caller.principal and (session is None or seen != self.sharing.changes)):
            # It has left memory; or what was shared is gone, or may not be shared any more.
            await self._prompt(caller, command, body)
            return
        if session is None:
            session = self.sessions.get((caller.principal, session_id)) or self._create(caller.principal, session_id)
        latched = self.latches.peek(caller.principal, command.id)
        effect = session.prompt(command, caller, body=body, removed_at=removed_at, latched=latched)
        self.latches.drop(caller.principal, command.id)
        await effect.done

    async def _resume(self, caller: Caller, command: c.Resume, body: bytes) -> None:
        self._check_draining()
        session, _ = await self.sharing.reach(caller.principal, command.session_id)
        self._check_room(caller, command.session_id)
        latched = self.latches.peek(caller.principal, command.id)
        effect = session.resume(command, caller, body=body, latched=latched)
        self.latches.drop(caller.principal, command.id)
        await effect.done

    async def _respond(self, caller: Caller, command: c.Respond, body: bytes) -> None:
        session, _ = await self.sharing.reach(caller.principal, command.session_id)
        effect = await session.respond(command, caller, body=body)
        await effect.done

    def _check_draining(self) -> None:
        if self.draining:
            raise CommandError("draining", "the server is shutting down", retry_after_s=1.0)

    def _check_room(self, caller: Caller, session_id: str) -> None:
        outbox = caller.outbox
        if outbox is None or session_id in outbox.cursors:
            return
        if len(outbox.cursors) >= self.settings.max_sessions:
            raise CommandError("too_large", f"a connection has at most {self.settings.max_sessions} sessions")

    async def attach(self, caller: Caller, target: c.AttachTarget, id_: str | None) -> None:
        """Subscribe a connection to a session."""
        session, role = await self.sharing.reach(caller.principal, target.session_id, "observer")
        self._check_room(caller, target.session_id)
        if role != "owner":  # who asked for more is told so by ``attached``
            target = target.model_copy(update={"role": role})
        renewed = session.attach(caller, target, id_)
        if renewed is not None:
            await renewed.done

    def _detach(self, caller: Caller, command: c.Detach) -> None:
        attached = caller.outbox is not None and caller.outbox.detach(command.session_id)
        session = self._at_hand(caller, command.session_id)
        held = session or next((one for one in caller.owned if one.session_id == command.session_id), None)
        gives_up = command.run == "abort" and held in caller.owned
        if not attached and not gives_up:
            raise CommandError("not_attached", f"this connection is not attached to {command.session_id}")
        caller.reply(frames.ack("detach", command.id, session_id=command.session_id))
        if gives_up and held is not None:
            held.disown(caller)
        if command.run == "abort" and session is not None:
            session.abort("user")

    def watch(self, caller: Caller, *, on: bool) -> None:
        """Turn the live session list of a connection on or off."""
        watchers = self.watchers.setdefault(caller.principal, set())
        if on:
            watchers.add(caller)
        else:
            watchers.discard(caller)
        if not watchers:
            del self.watchers[caller.principal]

    # -- abort

    def abort_now(self, caller: Caller, command: c.Abort) -> list[dict[str, Any]] | None:
        """Abort what is in memory, with no wait before the event is set. None: :meth:`abort` has to look further."""
        principal = caller.principal
        runs: list[dict[str, Any]] = []
        if command.command_id is not None:
            live = self.services.commands.get((principal, command.command_id))
            if live is None:
                return None
            session, run_id = live
            if session.principal != principal and session not in caller.owned:
                return None  # it was shared: is it still?
            runs = session.abort("user", command.reason, run_id=run_id)
        elif command.session_id is not None:
            found = self._at_hand(caller, command.session_id)
            if found is None or found.deleting:
                return None
            runs = found.abort("user", command.reason, run_id=command.run_id)
        elif command.run_id is not None:
            for session in {*self._sessions_of(principal), *_awake(caller)}:
                runs += session.abort("user", command.reason, run_id=command.run_id)
            if not runs and self._holder(command.run_id) is not None:
                return None  # somebody else's: was it shared?
        else:
            for session in _awake(caller):
                if session.run is not None:
                    runs += session.abort("user", command.reason)
        return runs

    def _sessions_of(self, principal: str) -> list[Session]:
        return [session for key, session in self.sessions.items() if key[0] == principal]

    async def abort(self, caller: Caller, command: c.Abort, stopped: Sequence[dict[str, Any]] = ()) -> None:
        """Abort, asking the store about what is not in memory: too late, idle, unknown, or not there yet.

        ``stopped`` is what the same command has stopped before it waited.
        """
        runs = self.abort_now(caller, command)
        if runs is not None:
            known = {run["run_id"] for run in stopped}
            runs = [*stopped, *(run for run in runs if run["run_id"] not in known)]
            caller.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=runs))
            return
        principal = caller.principal
        if command.session_id is None and command.run_id is not None and command.command_id is None:
            runs = await self._abort_shared(principal, command, self._holder(command.run_id), command.run_id)
            caller.reply(frames.ack("abort", command.id, runs=runs))
            return
        if command.command_id is not None:
            live = self.services.commands.get((principal, command.command_id))
            if live is not None:
                runs = await self._abort_shared(principal, command, *live)
                caller.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=runs))
                return
            # Latched before the store is asked: the prompt may come while it answers.
            self.latches.set(principal, command.command_id, command.reason)
            try:
                row = await self.store.command(principal, command.command_id)
            except StoreUnavailable:
                row = None
            if row is not None:
                self.latches.drop(principal, command.command_id)
                ids = orjson.loads(row.ack)
                entry = {"session_id": ids["session_id"], "run_id": ids["run_id"], "state": "too_late"}
            else:
                if command.session_id is not None:
                    _, role = await self.sharing.place(principal, command.session_id)
                    if role != "owner":
                        self.latches.drop(principal, command.command_id)
                    require(principal, command.session_id, role, "owner")
                entry = {"session_id": command.session_id, "run_id": None, "state": "latched"}
            caller.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=[entry]))
            return
        assert command.session_id is not None
        session, _ = await self.sharing.reach(principal, command.session_id)
        runs = session.abort("user", command.reason, run_id=command.run_id)
        caller.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=runs))

    def _holder(self, run_id: str) -> Session | None:
        """Give the session in memory, whoever's it is, in which a run is live or waits."""
        return next((session for session in self.sessions.values() if session.holds(run_id)), None)

    async def _abort_shared(
        self, principal: str, command: c.Abort, session: Session | None, run_id: str
    ) -> list[dict[str, Any]]:
        """Abort a run of a session that was shared. Who named it by its command is told why not, as others are."""
        if session is None:
            return []
        try:
            reached, _ = await self.sharing.reach(principal, session.session_id)
            if reached is not session:
                raise CommandError("session_not_found", f"there is no session {session.session_id}")
        except CommandError as exc:
            if command.command_id is None and exc.code in ("session_not_found", "forbidden"):
                return []  # as for a run that nobody has
            raise
        return session.abort("user", command.reason, run_id=run_id)

    # -- history

    async def _position(self, log: Log, message_id: str, field: str) -> int:
        position = log.archive.position(message_id)
        if position is None:
            try:
                position = await self.store.position(log.sid, message_id)
            except StoreUnavailable:
                raise store_unavailable() from None
        if position is None:
            raise CommandError("message_not_found", f"{field}: there is no such message")
        return position

    async def _history(self, principal: str, command: c.History) -> frames.Frame:
        log = await self.view(principal, command.session_id)
        archive = log.archive
        stop = archive.count
        if command.before is not None:
            stop = await self._position(log, command.before, "before")
        start = max(0, stop - command.limit)
        messages: list[Any] = archive.slice(max(start, archive.window), stop)
        if start < archive.window:
            boundary = min(stop, archive.window)
            try:
                stored = await self.store.messages(log.sid, start, boundary)
            except StoreUnavailable:
                raise store_unavailable() from None
            messages = [orjson.loads(data) for data in stored] + messages
        kept = _newest_within(messages, SNAPSHOT_BYTES)
        return frames.build(
            "history",
            command.id,
            session_id=command.session_id,
            messages=kept,
            has_more=stop - len(kept) > 0,
        )

    # -- connections

    def disconnected(self, caller: Caller, *, on_purpose: bool, grace_s: float | None = None) -> None:
        """A connection has ended: take its cursors away and apply the disconnect rule to what it owned."""
        self.watch(caller, on=False)
        if caller.outbox is not None:
            caller.outbox.clear()
            caller.outbox = None  # a command still under way attaches nothing any more
        for owned in list(caller.owned):
            owned.disconnected(caller, on_purpose=on_purpose, grace_s=grace_s)

    def limits(self) -> frames.LimitsInfo:
        """Give the limits that ``welcome`` states."""
        return {
            "max_frame_bytes": self.settings.max_frame_bytes,
            "max_sessions": self.settings.max_sessions,
            "commands_per_s": self.settings.commands_per_s,
            "max_queue": self.settings.queue_limit,
            "max_message_bytes": MAX_MESSAGE_BYTES,
            "batch_bytes": BATCH_BYTES,
        }

    def _session_changed(self, session: Session) -> None:
        self._tell(session)

    def _tell(self, session: Session, *, deleted: bool | None = None) -> None:
        frame: frames.Frame = {
            "type": "session-changed",
            "session_id": session.session_id,
            "title": session.title,
            "status": session.status,
            "updated_at": session.updated_at,
        }
        if deleted:
            frame["deleted"] = True
        self._show(session.principal, frame)

    def _show(self, principal: str, frame: frames.Frame) -> None:
        """Give a line of the session list to those who watch it here."""
        for watcher in self.watchers.get(principal, ()):
            if watcher.outbox is not None:
                watcher.outbox.change(frame)


def _awake(caller: Caller) -> list[Session]:
    """Give what a connection owns that is in memory."""
    return [owned for owned in caller.owned if isinstance(owned, Session)]


def _newest_within(messages: list[Any], limit: int) -> list[Any]:
    size = 0
    for index in range(len(messages) - 1, -1, -1):
        size += len(orjson.dumps(messages[index])) + 1
        if size > limit:
            return messages[index + 1 :] or [fit(messages[index], limit)]
    return messages
