"""One session: commands in, the run, the queue, who owns it, what follows from a disconnect.

Everything here is a plain method: nothing waits between looking at the state and acting on it. What a command has to
wait for (its commit) is an :class:`Effect` that the writer completes.
"""

from __future__ import annotations

import asyncio
import copy
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from gateway.ids import new_id, now_ms
from gateway.owners import Owners
from gateway.prompts import title_of, user_messages
from gateway.run import Run, RunSpec
from gateway.seal import LOST, closing_events, open_turn
from gateway.services import Caller, Committed, Services, store_unavailable
from gateway.steering import Steering
from gateway.stores.base import CommandRow, SessionRow
from protocol import frames
from protocol.codec import encode
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gateway.log import Log
    from protocol.commands import AttachTarget, Prompt, Respond, Resume
    from protocol.events import AbortReason, DequeueReason
    from protocol.frames import Status
    from protocol.messages import Message

logger = logging.getLogger(__name__)

MAX_RESUMES = 2
"""How often the server resumes a lost prompt by itself (contract, "Crash, store failure, drain")."""

_DEQUEUE: dict[str, DequeueReason] = {"disconnect": "disconnect", "shutdown": "shutdown"}


class Session:
    """A session in memory. ``key`` is (principal, session id)."""

    def __init__(self, services: Services, principal: str, log: Log) -> None:
        self.principal = principal
        self.session_id = log.session_id
        self.log = log
        self.seen: set[str] = log.archive.seen
        self.title: str | None = None
        self.created_at = self.updated_at = now_ms()
        self.message_count = 0
        self.run: Run | None = None
        self.queue: list[RunSpec] = []
        self.owners = Owners(self._nobody_owns)
        self.deleting = False
        self.broken = False
        """A commit failed: what is in the store has to be read again before anything else happens."""
        self.touched = asyncio.get_running_loop().time()
        self._services = services
        self._interrupts = 0  # how many of the queue's first entries are interrupts
        self._last_spec: RunSpec | None = None
        self._prior_spec: RunSpec | None = None  # the one before: the last one's start may fail to be stored
        self._recent: deque[str] = deque(maxlen=64)  # run ids that have ended: too late to abort
        log.describe = self.row
        log.changed = lambda: services.changed(self)
        log.lost = self._store_lost

    @property
    def key(self) -> tuple[str, str]:
        """(principal, session id)."""
        return self.principal, self.session_id

    @property
    def status(self) -> Status:
        """What the session is doing, uncommitted changes included."""
        if self.run is None:
            return "idle"
        if self.run.reason is not None:
            return "aborting"
        return "waiting" if self.run.shaper.turn.approvals else "running"

    @property
    def idle(self) -> bool:
        """Nothing runs or waits, nobody who broke may still come back, and nothing is in doubt."""
        return not (self.run or self.queue or self.owners.awaited or self.broken or self.deleting)

    def row(self) -> SessionRow:
        """Describe the session for the store."""
        self.updated_at = max(self.updated_at, now_ms())
        # What a failed commit left open is not sealed yet: the next process has to find it if this one dies first.
        active = self.run is not None or bool(self.queue) or self.broken
        options = encode(self._last_spec.options()) if self._last_spec is not None else None
        return SessionRow(
            sid=self.log.sid,
            principal=self.principal,
            session_id=self.session_id,
            epoch=self.log.row_epoch,
            title=self.title,
            status=self.status,
            created_at=self.created_at,
            updated_at=self.updated_at,
            message_count=self.message_count + (self.run.shaper.more_messages if self.run is not None else 0),
            active=active,
            run=options,
        )

    # -- prompt and resume

    def prompt(
        self, command: Prompt, caller: Caller, *, body: bytes, removed_at: int | None, latched: str | None
    ) -> Committed | Steering:
        """Start a run, queue the prompt, or give it to the live run.

        ``latched`` is the detail of an abort that came before the prompt (None: none did). ``removed_at`` is the
        position of ``command.replaces``. Raises :exc:`CommandError`.
        """
        self._check_usable()
        busy = self.run is not None
        if busy and command.replaces is not None:
            raise CommandError("session_busy", "replaces needs an idle session")
        if busy and command.on_busy == "reject":
            raise CommandError("session_busy", "a run is live in this session")
        steers = busy and command.on_busy == "steer"
        if steers and getattr(self._services.engine, "steer", None) is None:
            raise CommandError("unsupported", "this engine cannot be steered")
        if busy and len(self.queue) >= self._services.queue_limit:
            raise CommandError("queue_full", f"{len(self.queue)} prompts are waiting already")
        self._check_quota(removed_at)
        spec = RunSpec(
            run_id=new_id("run"),
            mode="prompt",
            command_id=command.id,
            messages=user_messages(command, self._id_is_taken),
            on_disconnect=command.on_disconnect,
            on_lost=command.on_lost,
            grace_s=command.grace_s,
            deadline_s=self._services.limits.deadline(command.deadline_s),
            metadata=command.metadata,
            principal=caller.principal,
            attended=caller.outbox is not None,
        )
        if self.title is None:
            self.title = title_of(spec.messages)
        self._own(caller)
        if not busy:
            return self._accept(command, caller, body, spec, None, removed_at=removed_at, latched=latched)
        if steers and self.run is not None and self.run.reason is None and latched is None:
            return self._steer(command, caller, body, spec, self.run)
        position = self._enqueue(spec, first=command.on_busy == "interrupt")
        effect = self._accept(command, caller, body, spec, position)
        if latched is not None:
            self._dequeue(spec.run_id, "abort")
        elif command.on_busy == "interrupt" and self.run is not None:
            self.run.abort("superseded")
        return effect

    def resume(self, command: Resume, caller: Caller, *, body: bytes, latched: str | None) -> Committed:
        """Continue the last turn. Raises :exc:`CommandError`."""
        self._check_usable()
        if self.run is not None:
            raise CommandError("session_busy", "a run is live in this session")
        if not self.resumable:
            raise CommandError("not_resumable", "there is no unfinished turn to continue")
        self._check_quota()
        spec = RunSpec(
            run_id=new_id("run"),
            mode="resume",
            command_id=command.id,
            on_disconnect=command.on_disconnect,
            grace_s=command.grace_s,
            deadline_s=self._services.limits.deadline(command.deadline_s),
            principal=caller.principal,
        )
        self._own(caller)
        return self._accept(command, caller, body, spec, None, latched=latched)

    @property
    def resumable(self) -> bool:
        """Idle, and the last run did not end ``completed``; judged with what is not committed yet."""
        if self.run is not None:
            return False
        return self._ended_open if self._ended_open is not None else self.log.archive.fold.resumable

    _ended_open: bool | None = None

    def _check_usable(self) -> None:
        if self._services.draining:
            raise CommandError("draining", "the server is shutting down", retry_after_s=1.0)
        if self.broken:
            raise store_unavailable()
        if self.deleting:
            raise CommandError("session_not_found", "the session is being deleted")

    def _check_quota(self, removed_at: int | None = None) -> None:
        """Refuse a message too many, or a run too many where none is live: what waits takes the place of one."""
        most = self._services.limits.max_session_messages
        count = self.message_count if removed_at is None else removed_at
        if most and count >= most:
            raise CommandError("too_large", f"a session has at most {most} messages; start another")
        if self.run is None:
            self._services.runs.check(self.principal)

    def _accept(
        self,
        command: Prompt | Resume,
        caller: Caller,
        body: bytes,
        spec: RunSpec,
        position: int | None,
        *,
        removed_at: int | None = None,
        latched: str | None = None,
    ) -> Committed:
        """Append a run's start or place in the queue, and the command that asked for it, as one effect."""
        run = None
        if position is None:
            replaces = command.replaces if command.type == "prompt" else None
            run = self._start(spec, replaces, removed_at)
        ack = frames.ack(command.type, command.id, session_id=self.session_id, run_id=spec.run_id, queued=position)
        if command.id is not None:
            self._services.commands[caller.principal, command.id] = (self, spec.run_id)
        if run is not None and latched is not None:
            run.abort("user", latched or None)
        return self._acknowledge(command, caller, body, ack, run.begin if run is not None else None)

    def _acknowledge(
        self,
        command: Prompt | Resume | Respond,
        caller: Caller,
        body: bytes,
        ack: frames.Frame,
        begin: Callable[[], None] | None = None,
    ) -> Committed:
        """Store the command with what was appended for it; at the commit reply, attach to a run, and ``begin``."""
        if command.id is not None:
            row = CommandRow(caller.principal, command.id, self.session_id, body, encode(ack), now_ms())
            self.log.remember(row)

        def then() -> None:
            caller.reply(ack)
            if command.type != "respond":
                self.ensure_attached(caller)
            if begin is not None:
                begin()

        effect = Committed(then)
        self.log.after(effect)
        return effect

    def _steer(self, command: Prompt, caller: Caller, body: bytes, spec: RunSpec, run: Run) -> Steering:
        def place(run: Run) -> None:
            for message in spec.messages:
                self.message_count += 1
                event = _with_command({"type": "message-added", "message": message}, spec)
                self.log.append({**event, "run_id": run.run_id})
            if command.id is not None:
                self._services.commands[caller.principal, command.id] = (self, run.run_id)
                run.steered.append((caller.principal, command.id))
            ack = frames.ack("prompt", command.id, session_id=self.session_id, run_id=run.run_id)
            steering.follow(self._acknowledge(command, caller, body, ack).done)

        def decline() -> None:
            self._check_usable()
            if self.run is not None and len(self.queue) >= self._services.queue_limit:
                raise CommandError("queue_full", f"{len(self.queue)} prompts are waiting already")
            position = None if self.run is None else self._enqueue(spec, first=False)
            steering.follow(self._accept(command, caller, body, spec, position).done)

        steering = Steering(spec, place, decline)
        run.offer(steering)
        return steering

    def ensure_attached(self, caller: Caller) -> None:
        """Attach a prompt's connection as owner, at the head of this moment, unless it is one already."""
        outbox = caller.outbox
        if outbox is None:
            return
        if not outbox.owns(self.log):
            seq = 0 if self.log.head == 0 else None
            outbox.attach(self.log, "owner", epoch=self.log.epoch, seq=seq, now=True)

    def _start(self, spec: RunSpec, replaces: str | None = None, removed_at: int | None = None) -> Run:
        message_id = new_id("msg")
        services = self._services
        run = Run(self, services.engine, spec, message_id, services.abort_grace_s, services.limits.max_bytes)
        self.run = run
        services.runs.take(self.principal)
        self._prior_spec, self._last_spec = self._last_spec, spec
        self._ended_open = None
        append = self._append
        if replaces is not None and removed_at is not None:
            append({"type": "messages-removed", "from_message_id": replaces}, spec)
            self.log.remove_from(removed_at)
            self.message_count = removed_at
        for message in spec.messages:
            self.message_count += 1
            append(_with_command({"type": "message-added", "message": message}, spec), spec)
        append(_with_command({"type": "run-start", "mode": spec.mode}, spec), spec)
        append({"type": "message-start", "message_id": message_id, "role": "assistant"}, spec)
        self.message_count += 1
        return run

    def _append(self, event: dict[str, Any], spec: RunSpec) -> None:
        event["run_id"] = spec.run_id
        self.log.append(event)

    def _id_is_taken(self, message_id: str) -> bool:
        if message_id in self.seen or self.log.archive.position(message_id) is not None:
            return True
        self.seen.add(message_id)
        return False

    # -- the queue

    def _enqueue(self, spec: RunSpec, *, first: bool) -> int:
        index = self._interrupts if first else len(self.queue)
        self._interrupts += first
        self.queue.insert(index, spec)
        for message in spec.messages:
            self._append(_with_command({"type": "queued", "message": message}, spec), spec)
        return index + 1

    def _dequeue(self, run_id: str, reason: DequeueReason) -> bool:
        for index, spec in enumerate(self.queue):
            if spec.run_id == run_id:
                del self.queue[index]
                self._interrupts -= index < self._interrupts
                self._forget(spec)
                self._append({"type": "dequeued", "reason": reason}, spec)
                return True
        return False

    def _forget(self, spec: RunSpec, steered: Sequence[tuple[str, str]] = ()) -> None:
        self._recent.append(spec.run_id)
        if spec.command_id is not None:
            self._services.commands.pop((spec.principal, spec.command_id), None)
        for key in steered:
            self._services.commands.pop(key, None)

    def run_finished(self, run: Run) -> None:
        """Take the next prompt from the queue; see :class:`~gateway.run.RunHost`."""
        self._forget(run.spec, run.steered)
        if self.run is not run:
            return
        self.run = None
        self._services.runs.release(self.principal)
        self.touched = asyncio.get_running_loop().time()
        self._ended_open = not run.completed
        self.message_count += run.shaper.more_messages
        if self.queue and not self._services.draining:
            spec = self.queue.pop(0)
            self._interrupts -= self._interrupts > 0
            following = self._start(spec)
            self.log.after(Committed(following.begin))
            if spec.attended and not self.owners.held:  # its owner left while a run that goes on was before it
                self._nobody_owns()
        for steering in run.steerings:
            steering.decline()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Own a run's task; see :class:`~gateway.run.RunHost`."""
        self._services.tasks.add(task)
        task.add_done_callback(self._services.tasks.discard)

    async def history(self, spec: RunSpec) -> list[Message]:
        """Give the whole history with the run's own new messages last; see :class:`~gateway.run.RunHost`."""
        archive = self.log.archive
        own = {message["id"] for message in spec.messages}
        while True:
            window = archive.window
            older = await self._services.store.messages(self.log.sid, 0, window)
            if archive.window == window:  # else messages left memory for the store while it was being read
                break
        messages: list[Any] = [orjson.loads(data) for data in older]
        for message in copy.deepcopy(archive.fold.messages):
            if message["id"] not in own and message.get("run_id") != spec.run_id:
                messages.append(message)
        return messages + copy.deepcopy(spec.messages)

    # -- abort

    def abort(
        self, reason: AbortReason, detail: str | None = None, *, run_id: str | None = None
    ) -> list[dict[str, Any]]:
        """Set the abort event of the live run and empty the queue, or stop one run. Gives the ack's ``runs``."""
        if run_id is not None:
            return self._abort_one(run_id, reason, detail)
        runs = []
        if self.run is not None:
            self._drop_steerings(self.run)
            runs.append(self._aborted(self.run.run_id, self.run.abort(reason, detail)))
        for spec in list(self.queue):
            self._dequeue(spec.run_id, _DEQUEUE.get(reason, "abort"))
            runs.append(self._aborted(spec.run_id, "dequeued"))
        return runs

    def holds(self, run_id: str) -> bool:
        """Say whether a run is live here, or waits."""
        live = self.run is not None and self.run.run_id == run_id
        return live or any(spec.run_id == run_id for spec in self.queue)

    def _drop_steerings(self, run: Run) -> None:
        steerings, run.steerings = run.steerings, []
        for steering in steerings:
            steering.drop()

    def _abort_one(self, run_id: str, reason: AbortReason, detail: str | None) -> list[dict[str, Any]]:
        if self.run is not None and self.run.run_id == run_id:
            self._drop_steerings(self.run)
            return [self._aborted(run_id, self.run.abort(reason, detail))]
        if self._dequeue(run_id, _DEQUEUE.get(reason, "abort")):
            return [self._aborted(run_id, "dequeued")]
        known = run_id in self._recent or any(m.get("run_id") == run_id for m in self.log.archive.fold.messages)
        return [self._aborted(run_id, "too_late")] if known else []

    def _aborted(self, run_id: str, state: str) -> dict[str, Any]:
        return {"session_id": self.session_id, "run_id": run_id, "state": state}

    async def respond(self, command: Respond, caller: Caller, *, body: bytes) -> Committed:
        """Answer an approval; the first answer wins, and is acked once it is committed. Raises :exc:`CommandError`."""
        run, request_id = self.run, command.request_id
        if run is None or run.reason is not None or request_id not in run.shaper.turn.approvals:
            raise CommandError("request_not_found", "no such request is open")
        answer = getattr(self._services.engine, "respond", None)
        if answer is None:
            raise CommandError("unsupported", "this engine takes no answers")
        self._append(run.shaper.resolve(request_id, command.decision), run.spec)
        effect = self._acknowledge(command, caller, body, frames.ack("respond", command.id, session_id=self.session_id))
        name = run.shaper.engine_name(request_id)
        try:
            await answer(
                session_id=self.session_id,
                run_id=run.run_id,
                request_id=name,
                decision=command.decision,
                value=command.value,
            )
        except Exception:  # the answer is on record: that its engine could not take it is the engine's affair
            logger.exception("%s: the engine failed to take an answer", self.session_id)
        return effect

    # -- owners and the disconnect rule

    def _own(self, caller: Caller) -> None:
        if caller.outbox is not None:
            self.add_owner(caller)

    def add_owner(self, caller: Caller) -> None:
        """A connection owns the session from now on."""
        self.owners.add(caller)
        caller.owned.add(self)

    def disown(self, caller: Caller) -> None:
        """A connection gives its ownership up of its own will: no disconnect."""
        self.owners.discard(caller)
        caller.owned.discard(self)

    def disconnected(self, caller: Caller, *, on_purpose: bool, grace_s: float | None = None) -> None:
        """An owner's connection has ended. ``grace_s`` overrides the run's and the server's grace."""
        self.touched = asyncio.get_running_loop().time()
        caller.owned.discard(self)
        if self._services.draining:
            self.owners.discard(caller)
            return
        if self.run is None and not self.queue:
            self.owners.discard(caller)  # there is nothing that a grace could save
            return
        if grace_s is None:
            own = self.run.spec.grace_s if self.run is not None else None
            grace_s = own if own is not None else self._services.disconnect_grace_s
        self.owners.lose(caller, 0 if on_purpose else grace_s)

    def _nobody_owns(self) -> None:
        if self._services.draining or self.run is None:
            return
        if self.run.spec.on_disconnect == "abort":
            self.abort("disconnect")

    def attach(self, caller: Caller, target: AttachTarget, id_: str | None) -> Committed | None:
        """Place or replace a connection's cursor, answered by ``attached``: where a new epoch is needed, after it."""
        outbox = caller.outbox
        if outbox is None:
            raise CommandError("unsupported", "only a connection can attach")
        if target.role == "owner":
            self.add_owner(caller)
        else:
            self.disown(caller)
        ahead = target.seq is not None and target.seq > self.log.head and target.epoch == self.log.epoch
        if ahead and target.role == "owner":
            # The client has seen what this log has not: the log lost its tail. Its seqs must not be used twice.
            self.log.renew_epoch()
            effect = Committed(lambda: outbox.attach(self.log, target.role, id_=id_))
            self.log.after(effect)
            return effect
        outbox.attach(self.log, target.role, id_=id_, epoch=target.epoch, seq=target.seq)
        return None

    def retire(self) -> None:
        """Leave memory, at rest: let go of all that points back here, so that nothing waits for a collector.

        Whoever still has the session can append nothing any more: another may be in its place.
        """
        for owner in list(self.owners):
            self.disown(owner)
        self.owners = Owners(_nothing)
        self.log.stand_down()

    # -- recovery

    def restored(self, row: SessionRow) -> None:
        """Take over the row of a session that was in the store."""
        self.title, self.created_at, self.updated_at = row.title, row.created_at, row.updated_at
        self.message_count = self.log.archive.count
        if row.run is not None:
            options = orjson.loads(row.run)
            self._last_spec = RunSpec(mode="resume", **options)

    def seal_lost(self, *, stopped: bool = False) -> None:
        """Close what a dead process (or a failed store) left open; resume it if its prompt asked for that.

        ``stopped``: somebody wanted the run to end, and the process died before it heard of it.
        """
        fold = self.log.archive.fold
        waiting = list({entry["run_id"]: entry for entry in fold.queue}.values())
        run_id = fold.run_id
        stopped |= fold.status == "aborting"  # somebody wanted the run to end: it is not taken up again
        if run_id is not None:
            for event in closing_events(open_turn(fold), LOST):
                self.log.append({**event, "run_id": run_id})
            self._recent.append(run_id)
        for entry in waiting:
            self.log.append({"type": "dequeued", "run_id": entry["run_id"], "reason": "lost"})
        self.message_count = self.log.archive.count
        self._ended_open = True if run_id is not None else None
        self.log.redescribe()
        specs = (self._last_spec, self._prior_spec)
        last = next((spec for spec in specs if spec is not None and spec.run_id == run_id), None)
        if run_id is None or last is None or last.on_lost != "resume" or stopped:
            return
        if last.resumes < MAX_RESUMES:
            spec = RunSpec(
                run_id=new_id("run"),
                mode="resume",
                on_disconnect=last.on_disconnect,
                on_lost="resume",
                grace_s=last.grace_s,
                deadline_s=last.deadline_s,
                metadata=last.metadata,
                principal=last.principal,
                resumes=last.resumes + 1,
            )
            self.log.after(Committed(self._start(spec).begin))

    def halt(self) -> bool:
        """Stop what runs, at once and without a word in the log. False: nothing ran."""
        run, self.run = self.run, None
        if run is not None:
            self._services.runs.release(self.principal)
            run.lose()
            self._forget(run.spec, run.steered)
            for steering in run.steerings:
                steering.fail(store_unavailable())
        for spec in self.queue:
            self._forget(spec)
        self.queue.clear()
        self._interrupts = 0
        return run is not None

    def _store_lost(self) -> None:
        """A commit failed: stop what runs; nothing can be said until the store is back."""
        self.broken = True
        if self.halt():  # and not again each time that sealing it fails
            refusal = frames.error(store_unavailable(), None, self.session_id)
            for owner in {cursor.sink for cursor in self.log.cursors}:
                owner.reply(refusal)
        self._services.lost(self)


def _nothing() -> None:
    return None


def _with_command(event: dict[str, Any], spec: RunSpec) -> dict[str, Any]:
    if spec.command_id is not None:
        event["command_id"] = spec.command_id
    return event
