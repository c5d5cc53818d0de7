"""One engine execution: the task that pulls the engine, the abort event, the grace, the end.

An abort is a plain method without an await: the event is set before it returns. The engine then closes in its own way
within the grace; if it does not, its task is cancelled, and if that does not help it is abandoned and the run sealed
all the same (``settled: false``).
"""

from __future__ import annotations

import asyncio
import copy
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic as clock
from typing import TYPE_CHECKING, Any, Protocol

from gateway.engine.errors import MessageErrorBuilder
from gateway.engine.port import RunContext, run_context
from gateway.seal import Ending, aborted, closing_events
from gateway.shape import Shaper
from protocol.codec import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gateway.engine.port import Engine
    from gateway.log import Log
    from gateway.steering import Steering
    from protocol.commands import OnDisconnect, OnLost
    from protocol.events import AbortReason, Mode
    from protocol.frames import AbortState
    from protocol.messages import Message, MessageError, UserMessage

logger = logging.getLogger(__name__)

BURST_S = 0.001
"""How long an engine that never waits is drained before the loop gets its turn (and the writer a commit)."""

CANCEL_EVERY_S = 0.2
CANCEL_TIMES = 5
"""A task that swallows a cancel gets it again, so often, before it is abandoned."""


@dataclass(slots=True)
class RunSpec:
    """What a prompt or resume asked for. Times in seconds."""

    run_id: str
    mode: Mode
    command_id: str | None = None
    messages: list[UserMessage] = field(default_factory=list)
    on_disconnect: OnDisconnect = "abort"
    on_lost: OnLost = "seal"
    grace_s: float | None = None
    deadline_s: float | None = None
    metadata: dict[str, Any] | None = None
    principal: str = ""
    """Who asked for it: the session's own, or one with whom it is shared. (Empty in rows of older versions.)"""
    attended: bool = False
    """It came over a connection, which owns the session: the disconnect rule is for it."""
    resumes: int = 0
    """How often the server has resumed this prompt by itself."""

    def options(self) -> dict[str, Any]:
        """Give what recovery needs to know of the run, as JSON data."""
        return {
            "run_id": self.run_id,
            "on_disconnect": self.on_disconnect,
            "on_lost": self.on_lost,
            "grace_s": self.grace_s,
            "deadline_s": self.deadline_s,
            "metadata": self.metadata,
            "principal": self.principal,
            "resumes": self.resumes,
        }


class RunHost(Protocol):
    """The session, as its run sees it."""

    principal: str
    session_id: str
    log: Log
    seen: set[str]

    async def history(self, spec: RunSpec) -> list[Message]:
        """Give the whole history with the run's own new messages last."""
        ...

    def run_finished(self, run: Run) -> None:
        """The run's last event has been appended."""
        ...

    def keep(self, task: asyncio.Task[None]) -> None:
        """Own a task until it ends."""
        ...


class Run:
    """A live run. It begins when its start is committed (:meth:`begin`) and ends once (``finished``)."""

    def __init__(
        self, host: RunHost, engine: Engine, spec: RunSpec, message_id: str, abort_grace_s: float, max_bytes: int = 0
    ) -> None:
        self.spec = spec
        self.run_id = spec.run_id
        self.abort_event = asyncio.Event()
        self.reason: AbortReason | None = None
        self.finished = False
        self.completed = False
        self.shaper = Shaper(message_id, host.seen)
        self.steered: list[tuple[str, str]] = []
        """Commands (principal, id) that were steered into the run."""
        self.steerings: list[Steering] = []
        """Prompts offered to the engine and not taken yet."""
        self.done = asyncio.Event()
        """Set once the run is sealed."""
        self._host = host
        self._engine = engine
        self._abort_grace_s = abort_grace_s
        self._max_bytes = max_bytes
        self._said = 0  # bytes, characters where it is text
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The start is durable: call the engine, unless the run has been aborted already."""
        if self.reason is not None:
            self._finish(aborted(self.reason))
        if self.finished:
            return
        if self.spec.deadline_s is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(self.spec.deadline_s, self.abort, "deadline")
        self._task = asyncio.create_task(self._drive(), name=f"run {self.run_id}")
        self._host.keep(self._task)

    def abort(self, reason: AbortReason, detail: str | None = None) -> AbortState:
        """Ask the run to stop. Sets the event; never waits."""
        if self.finished:
            return "too_late"
        if self.reason is not None:
            return "already_requested"
        self.reason = reason
        requested: dict[str, Any] = {"type": "abort-requested", "run_id": self.run_id, "reason": reason}
        if detail is not None:
            requested["detail"] = detail
        self._host.log.append(requested)
        self.shaper.begin_closing()
        self.abort_event.set()
        if self._task is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._abort_grace_s, self._cancel, CANCEL_TIMES)
        return "requested"

    def lose(self) -> None:
        """The store failed: stop the engine; nothing more of this run can be said."""
        self.finished = True
        self.abort_event.set()
        self._stop_timers()
        if self._task is not None:
            self._task.cancel()
        self.done.set()

    def _cancel(self, times: int) -> None:
        """The grace is over: cancel the engine's task, again where it swallows that, then leave it behind."""
        if self.finished or self._task is None:
            return
        if times == 0:
            logger.error("run %s: the engine ignores its cancellation and is abandoned", self.run_id)
            self._finish(aborted(self.reason or "policy", settled=False))
            return
        self._task.cancel()
        self._timer = asyncio.get_running_loop().call_later(CANCEL_EVERY_S, self._cancel, times - 1)

    async def _drive(self) -> None:
        failure: MessageError | None = None
        try:
            await self._pull()
        except asyncio.CancelledError:
            # Only our own grace and a failed store cancel this task, and it ends here.
            if self.reason is None and not self.finished:
                failure = MessageErrorBuilder.build(RuntimeError("the engine cancelled itself")).to_dict()
        except KeyboardInterrupt:
            raise  # the process is being ended; the next one seals the run
        except BaseException as exc:
            # Also what is no Exception, a tool's sys.exit() for one: nobody else would ever end the run.
            if self.reason is None:
                # In one line: the builder below logs an unknown error whole.
                logger.warning("run %s failed: %s", self.run_id, type(exc).__name__)
            else:
                logger.info("run %s: %r while it was being aborted", self.run_id, exc)
            failure = MessageErrorBuilder.build(exc).to_dict()
        if self.finished:
            return
        if self.reason is not None:
            self._finish(aborted(self.reason))
        elif self.abort_event.is_set() or (failure is not None and failure["reason"] == "AbortError"):
            self._finish(aborted("policy"))  # the engine set its own event, or says that it stopped itself
        elif failure is not None:
            self._finish(Ending("failed", "error", error=failure))
        else:
            self._finish(self.shaper.ended())

    async def _pull(self) -> None:
        spec, host = self.spec, self._host
        run_context.set(
            RunContext(
                spec.principal or host.principal, host.session_id, self.run_id, spec.metadata or {}, self._abort_grace_s
            )
        )
        messages: Sequence[Message] = spec.messages
        if spec.mode == "resume" or getattr(self._engine, "wants_history", False):
            messages = await host.history(spec)
            if self.reason is not None:
                return
        else:
            messages = copy.deepcopy(messages)  # the engine may change its own
        stream = self._engine.stream(
            abort=self.abort_event, mode=spec.mode, session_id=host.session_id, messages=messages
        )
        try:
            log = host.log
            continued, again, extend = self.shaper.continued, self.shaper.again, log.extend
            until = clock() + BURST_S
            waits = False
            async for event in stream:
                if self.finished:
                    return
                text = continued(event)
                if text is not None and extend(text):  # one more token of an open part: most events are that
                    self._said += len(text)
                else:
                    if waits and not log.pending:  # the writer has had its turn since, and with it all others
                        until = clock() + BURST_S
                    if text is None:
                        self._append(event)
                    else:
                        self._said += len(text)
                        log.append({**again(text), "run_id": self.run_id})
                    waits = log.pending
                if self._said > self._max_bytes > 0:
                    self.abort("policy", f"a run says at most {self._max_bytes} bytes")
                if clock() >= until or log.crowded:
                    await self._breathe()
                    until = clock() + BURST_S
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                with suppress(RuntimeError):
                    await close()

    def _append(self, event: Any) -> None:
        """Complete an event of the engine's and append what it comes to."""
        for shaped in self.shaper.feed(event):
            if shaped["type"] == "message-added":
                self._taken(shaped["id"])
                continue
            if self._max_bytes > 0:
                text = shaped.get("text")
                self._said += len(text) if text is not None else len(encode(shaped))
            shaped["run_id"] = self.run_id
            self._host.log.append(shaped)

    # -- steering

    def offer(self, steering: Steering) -> None:
        """Offer new messages to the engine, which takes them at its next safe point."""
        self.steerings.append(steering)
        self.shaper.steering.update(message["id"] for message in steering.spec.messages)
        task = asyncio.create_task(steering.offer(self._engine, self, self._host.session_id))
        self._host.keep(task)

    def place(self, steering: Steering) -> None:
        """Put offered messages where the run is now."""
        for shaped in self.shaper.steer():
            if shaped["type"] == "message-added":
                self._taken(steering.spec.messages[0]["id"])
                continue
            shaped["run_id"] = self.run_id
            self._host.log.append(shaped)

    def _taken(self, message_id: str) -> None:
        for steering in self.steerings:
            ids = [message["id"] for message in steering.spec.messages]
            if message_id in ids:
                self.shaper.steering.difference_update(ids)
                self.steerings.remove(steering)
                steering.place(self)
                return

    async def _breathe(self) -> None:
        await asyncio.sleep(0)
        while self._host.log.crowded and not self.finished:
            await self._host.log.room()

    def _finish(self, ending: Ending) -> None:
        """Append everything that closes the run; from here on an abort is too late."""
        self.finished = True
        self.completed = ending.status == "completed"
        self._stop_timers()
        if ending.status == "aborted":
            if self.reason is None:  # the engine aborted itself
                self._host.log.append({"type": "abort-requested", "run_id": self.run_id, "reason": "policy"})
            ending = self.shaper.aborted(ending)
        for event in closing_events(self.shaper.turn, ending):
            event["run_id"] = self.run_id
            self._host.log.append(event)
        self.done.set()
        self._host.run_finished(self)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None
