"""One run: history → step (model, then its tools) → step … until the turn ends.

Three tasks share the work. The *supervisor* (:meth:`Run.execute`) decides how the run ends and is never cancelled by an
abort; the *watcher* waits on the abort event; the *work* does everything that may take time and may be cancelled. The
work task pulls the model itself, so it enters and leaves every context manager of the provider in one place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, cast

from gateway.engine.abort import Latch, outlast
from gateway.engine.calls import ToolCalls
from gateway.engine.draft import Draft
from gateway.engine.errors import (
    ContentFilterError,
    NotResumable,
    OutputLengthError,
    RunRefused,
    UnknownError,
)
from gateway.engine.extensions import AgentRunContext, Extensions, StepFinishedEvent
from gateway.engine.halt import complete, halt_abort, halt_failure
from gateway.engine.history import model_messages, resumable, steps_of
from gateway.engine.messages import ModelMessage, new_id, now_ms
from gateway.engine.model import (
    Model,
    ModelRequest,
)
from gateway.engine.outbox import Outbox
from gateway.engine.phases import AgentPhase, AgentState
from gateway.engine.port import current_run
from gateway.engine.step import generate
from gateway.engine.tools import offered

if TYPE_CHECKING:
    from gateway.engine.errors import AssistantMessageError
    from gateway.engine.port import EngineEvent, Mode
    from gateway.engine.store import SessionStore
    from gateway.engine.tools import Tool
    from protocol.messages import Message, Usage

log = logging.getLogger("gateway.engine")

Compact = Callable[[Sequence[ModelMessage]], Awaitable[Sequence[ModelMessage]]]


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """What all runs of an agent share; see :class:`gateway.engine.agent.Agent` for the meaning of each."""

    model: Model
    tools: Mapping[str, Tool]
    extensions: Extensions
    store: SessionStore | None
    system_prompt: str | None
    max_steps: int
    abort_grace_s: float
    seal_deadline_s: float
    queue_limit: int
    compact: Compact | None
    sleep: Callable[[float], Awaitable[None]]


HOST_SHARE = 0.8
"""The engine's share of the session's grace."""


class _Stopped(Exception):
    """Leaves the work at a boundary once the run is stopping: a cancellation was swallowed or has not come yet."""


def _nobody(name: str, data: Any) -> None:
    """The run is over, and nobody reads."""


@dataclass(slots=True)
class _Steering:
    messages: Sequence[Message]
    taken: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Run:
    """One run from its first event to its last."""

    def __init__(
        self,
        config: AgentConfig,
        *,
        abort: asyncio.Event,
        mode: Mode,
        session_id: str,
        messages: Sequence[Message],
        on_started: Callable[[Run], None],
        on_idle: Callable[[Run], None],
    ) -> None:
        host = current_run()
        hosted = host is not None and host.session_id == session_id
        self.config = config
        self.abort = abort
        # Inside the gateway the log is the only truth: nothing is kept here, and ``messages`` is the whole history.
        self.store = None if hosted else config.store
        # Its cancellation at the end of its own grace would come just before we can say what was abandoned.
        limit = host.abort_grace_s if host is not None and hosted else None
        self.grace_s = config.abort_grace_s if limit is None else min(config.abort_grace_s, limit * HOST_SHARE)
        self.context = AgentRunContext(
            session_id=session_id,
            run_id=host.run_id if host is not None and hosted else new_id("run"),
            mode=mode,
            emit=self._emit_custom,
        )
        self.key = self.context.run_id if hosted else session_id
        """Under which the run is live. Alone: one run a session. Inside the gateway the session sees to that; there two
        principals may use one session id, and a run that had to be abandoned must not block the next."""
        self.state = AgentState()
        self.latch = Latch(abort)
        self.outbox = Outbox(config.queue_limit)
        self.calls: ToolCalls | None = None
        self.settled = True
        """False once a tool had to be abandoned."""
        self.finish_reason = "stop"
        self.refusal: Exception | None = None
        self._given = [_complete(message) for message in messages]
        self._unsaved: list[Message] = list(self._given) if mode == "prompt" else []
        self._draft: Draft | None = None
        self._turns: list[ModelMessage] = []
        self._steering: list[_Steering] = []
        self._closed: asyncio.Future[str] | None = None
        self.task: asyncio.Task[None] | None = None
        self._on_started = on_started
        self._on_idle = on_idle

    @property
    def draft(self) -> Draft:
        """The message under way; its ``message-start`` goes out with the first look at it."""
        if self._draft is None:
            self._draft = Draft(self.outbox.put, self.context.run_id)
        return self._draft

    # -- the supervisor -----------------------------------------------------------------------------------------------

    def start(self) -> asyncio.Task[None]:
        """Start the run in a task of its own, away from its reader's cancellations. Raises :exc:`SessionBusy`."""
        self._on_started(self)
        self._closed = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self.execute(), name=f"run {self.context.run_id}")
        return self.task

    def refused(self) -> Exception:
        """Give the refusal away: raised to the reader it has the frames that know this run."""
        refusal, self.refusal = self.refusal, None
        assert refusal is not None
        return refusal

    def close(self, reason: str) -> None:
        """Stop the run because its reader leaves: the same as an abort."""
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(reason)

    async def execute(self) -> None:
        """Run to the end, whatever happens, and close the outbox."""
        watcher = asyncio.create_task(cast("Any", self.abort.wait()), name=f"abort watcher {self.context.run_id}")
        work: asyncio.Task[None] | None = None
        cancelled: asyncio.CancelledError | None = None
        try:
            # The watcher's first step tells whether the event belongs to this loop: before any side effect.
            await asyncio.sleep(0)
            if watcher.done() and (misuse := watcher.exception()) is not None:
                self.refusal = misuse if isinstance(misuse, Exception) else RuntimeError(str(misuse))
                return
            if not self.abort.is_set():
                work = asyncio.create_task(self._work(), name=f"work {self.context.run_id}")
                waited: set[asyncio.Future[Any]] = {work, watcher, cast("Any", self._closed)}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:  # the loop is shutting down: seal what can be sealed
            cancelled = error
        finally:
            try:
                if self.refusal is None:
                    await outlast(asyncio.create_task(self._end(work, watcher), name=f"seal {self.context.run_id}"))
            finally:
                if self.refusal is not None and self.state.phase is not AgentPhase.CREATED:
                    self.state.enter(AgentPhase.FAILED)
                for steering in self._steering:
                    _answer(steering, taken=False)
                self._on_idle(self)
                self.outbox.close()
                self._let_go(work)
        if cancelled is not None:
            raise cancelled

    def _let_go(self, work: asyncio.Task[None] | None) -> None:
        """Let go of what knows this run: with all its history it would stay until the garbage collector comes.

        A cancelled task keeps the error, which has the frames that it went through, and a task group among those knows
        the error and the task. The task gives it away to who asks for it.
        """
        self.context.emit = _nobody
        self.calls = self.latch.error = None
        if self.refusal is not None:  # whose reader still wants it
            clear_frames(self.refusal.__traceback__)
        if work is not None and work.cancelled():
            try:
                work.exception()
            except asyncio.CancelledError as error:
                clear_frames(error.__traceback__)

    async def _end(self, work: asyncio.Task[None] | None, watcher: asyncio.Task[Any]) -> None:
        watcher.cancel()
        await asyncio.wait({watcher})
        if work is None or not work.done():
            self.latch.abort("closed" if self._closed is not None and self._closed.done() else "user")
        elif work.cancelled() and not self.latch.stopping:
            self.latch.fail(UnknownError("CancelledError"))  # somebody else's cancellation ended the work
        if self.refusal is not None:
            return
        if self.latch.aborted or (self.latch.stopping and self.latch.error is None):
            self.latch.abort("user")
            await halt_abort(self, work)
            return
        self.latch.seal()
        if self.latch.error is not None:
            await halt_failure(self, self.latch.error)
        else:
            await complete(self)

    def _unsettle(self) -> None:
        self.settled = False

    def conclude(self, status: str, error: AssistantMessageError | None, *, settled: bool = True) -> None:
        """Release the session and emit the terminal event, in one breath: whoever reads it may start the next run."""
        self._on_idle(self)
        self.outbox.put(
            {
                "type": "run-finish",
                "status": status,
                "reason": self.latch.reason,
                "error": error.to_dict() if error else None,
                "settled": settled and self.settled,
            }
        )
        self.outbox.close()

    async def persist(self) -> None:
        """Store what the store has not seen: user messages, then the assistant's."""
        if self.store is None:
            return
        while self._unsaved:
            await self.store.save(self.context.session_id, self._unsaved[0])
            del self._unsaved[0]
        await self.store.save(self.context.session_id, self.draft.message)

    def _emit_custom(self, name: str, data: Any) -> None:
        event: EngineEvent = {"type": "custom", "name": name, "data": data}
        if self._draft is not None:
            event["message_id"] = self._draft.id
        self.outbox.put(event)

    # -- the work -----------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        try:
            await self._turn()
        except _Stopped:
            return
        except RunRefused as refusal:
            self.refusal = refusal
        except Exception as error:
            if not self.latch.fail(error):
                log.info("error after the abort, ignored: %r", error)

    async def _turn(self) -> None:
        self.state.enter(AgentPhase.LOADING_CONTEXT)
        history = await self._load()
        self.draft  # noqa: B018  # the message starts here
        self._turns = model_messages(history, resume=self.context.mode == "resume")
        self.boundary()
        await self.config.extensions.before_run(self.context)
        self.state.enter(AgentPhase.READY)
        for step in range(1, self.config.max_steps + 1):
            self.boundary()
            again = await self._step(step)
            # The reader first: one that leaves on what it has read so far stops the run before it is committed.
            await self.outbox.drained()
            self.boundary()
            if not self._steer() and not again:
                return
        self.finish_reason = "max-steps"

    def boundary(self) -> None:
        """Leave the work here if the run is stopping."""
        if self.latch.stopping:
            raise _Stopped

    async def _load(self) -> list[Message]:
        history = self._given
        if self.store is not None:
            stored = await self.store.load(self.context.session_id)
            known = {message["id"] for message in stored}
            self._unsaved = [message for message in self._given if message["id"] not in known]
            history = [*stored, *self._unsaved]
        if self.context.mode == "resume" and not resumable(history):
            raise NotResumable(self.context.session_id)
        if self.store is not None:
            while self._unsaved:
                await self.store.save(self.context.session_id, self._unsaved[0])
                del self._unsaved[0]
        return history

    async def _step(self, step: int) -> bool:
        """Ask the model once and run what it calls; True where it has to be asked again."""
        request = await self._request()
        self.boundary()
        self.draft.step_start(step)
        self.state.enter(AgentPhase.GENERATING)
        pulled = await generate(self, request)
        self.state.enter(AgentPhase.READY)
        response = pulled.response
        finish_reason = "tool-calls" if pulled.called else response.finish_reason if response else "stop"
        if finish_reason == "length":
            raise OutputLengthError("The model reached its output limit")
        if finish_reason == "content-filter":
            raise ContentFilterError("The provider withheld the answer")
        if pulled.calls:
            await self.outbox.drained()  # no side effect before the reader has seen the call and could have left
            self.boundary()
            self.state.enter(AgentPhase.RUNNING_TOOL)
            self.calls = ToolCalls(
                tools=self.config.tools,
                draft=self.draft,
                latch=self.latch,
                extensions=self.config.extensions,
                context=self.context,
                grace_s=self.grace_s,
                drained=self.outbox.drained,
                unsettled=self._unsettle,
            )
            await self.calls.run(pulled.calls)
            self.boundary()
            self.state.enter(AgentPhase.READY)
        self.draft.step_finish(finish_reason)
        self.finish_reason = finish_reason
        usage: Usage | None = response.usage if response else None
        await self.config.extensions.on_event(self.context, StepFinishedEvent(step, finish_reason, usage))
        return pulled.called

    async def _request(self) -> ModelRequest:
        turns: Sequence[ModelMessage] = [*self._turns, *steps_of(self.draft.message)]
        if self.config.compact is not None:
            self.state.enter(AgentPhase.COMPACTING)
            turns = await self.config.compact(turns)  # only what this request sends: the history stays as it is
            self.state.enter(AgentPhase.READY)
        specs = offered(self.config.tools.values())
        request = ModelRequest(turns, self.config.system_prompt, specs)
        return await self.config.extensions.before_model(self.context, request)

    # -- steering and approvals ---------------------------------------------------------------------------------------

    async def steer(self, messages: Sequence[Message]) -> bool:
        """Hand over messages at the next boundary between steps; False where the run ends before it."""
        if self.latch.stopping or self.latch.error is not None or self.state.phase is AgentPhase.CREATED:
            return False
        steering = _Steering([_complete(message) for message in messages])
        self._steering.append(steering)
        return await steering.taken

    def _steer(self) -> bool:
        """Take what was steered in: the message so far ends, and a new one answers."""
        if not self._steering:
            return False
        steered, self._steering = self._steering, []
        self.draft.finish("steered")
        self._turns.extend(steps_of(self.draft.message))
        self._unsaved.append(self.draft.message)
        for steering in steered:
            self._turns.extend(model_messages(steering.messages))
            for message in steering.messages:
                self.outbox.put({"type": "message-added", "message": message})
            self._unsaved.extend(steering.messages)
        self._draft = Draft(self.outbox.put, self.context.run_id)
        for steering in steered:
            _answer(steering, taken=True)
        return True


def _answer(steering: _Steering, *, taken: bool) -> None:
    if not steering.taken.done():
        steering.taken.set_result(taken)


def _complete(message: Message) -> Message:
    """Fill in what a message of a prompt may leave out."""
    given = cast("dict[str, Any]", message)
    if "id" in given and "created_at" in given:
        return message
    return cast("Message", {"id": new_id("msg"), "created_at": now_ms(), **given})
