"""The agent: a model, its tools and its rules, ready to run turns of any number of sessions at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from gateway.engine.abort import AbortEventManager, AbortEventRunnerObserver, RunnerObserver
from gateway.engine.approvals import Answer
from gateway.engine.errors import AbortError, NotResumable, SessionBusy
from gateway.engine.extensions import AgentExtension, Extensions
from gateway.engine.history import model_messages, resumable
from gateway.engine.loop import AgentConfig, Compact, Run
from gateway.engine.messages import AssistantMessage
from gateway.engine.model import Model, ModelRequest
from gateway.engine.phases import AgentState
from gateway.engine.port import Mode, current_run
from gateway.engine.store import MemoryStore, SessionStore
from gateway.engine.stream import EventStream
from gateway.engine.tools import Tool, as_tool, offered

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from protocol.messages import Decision, Message


class Agent:
    """Runs turns. Stand-alone it keeps conversations in its ``store``; inside the gateway it keeps nothing.

    Args:
        model: any object with ``retry`` and ``stream(request)``, see :class:`gateway.engine.model.Model`.
        tools: tools or plain functions.
        extensions: hooks around every run.
        store: conversations for stand-alone use; default a :class:`MemoryStore` of the newest 1,000 sessions.
        system_prompt: sent with every request.
        max_steps: model requests in one run; a run that needs more ends ``completed`` with ``max-steps``.
        abort_grace_s: seconds that tools have to clean up after an abort before they are abandoned.
        seal_deadline_s: seconds that a store or an extension may take at the end of a run.
        queue_limit: events that may wait for a slow reader before the model has to wait.
        compact: gives a shorter conversation for a request; the history itself stays as it is.
        observers: told when a session's run starts and when it is idle again.
        sleep: waits before a retry.

    """

    wants_history = True
    """For the gateway: give the whole history with every run, the log is the only truth there."""
    announces_steering = True
    """For the gateway: ``message-added`` in our stream says where steered messages were taken."""

    def __init__(
        self,
        model: Model,
        *,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        extensions: Sequence[AgentExtension] = (),
        store: SessionStore | None = None,
        system_prompt: str | None = None,
        max_steps: int = 50,
        abort_grace_s: float = 5.0,
        seal_deadline_s: float = 5.0,
        queue_limit: int = 256,
        compact: Compact | None = None,
        observers: Sequence[RunnerObserver] = (),
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        by_name = {tool.name: tool for tool in map(as_tool, tools)}
        if len(by_name) != len(tools):
            raise ValueError("two tools have the same name")
        self._config = AgentConfig(
            model=model,
            tools=by_name,
            extensions=Extensions(extensions),
            store=store if store is not None else MemoryStore(),
            system_prompt=system_prompt,
            max_steps=max_steps,
            abort_grace_s=abort_grace_s,
            seal_deadline_s=seal_deadline_s,
            queue_limit=queue_limit,
            compact=compact,
            sleep=sleep,
        )
        self.abort_events = AbortEventManager()
        """The abort events of this agent's live runs: ``agent.abort_events.get(session_id)``."""
        self.state = AgentState()
        """The state of the run started last."""
        self._observers = (AbortEventRunnerObserver(self.abort_events), *observers)
        self._live: dict[str, Run] = {}

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message] = ()
    ) -> EventStream:
        """Run one turn and yield its events (dicts, ``event["type"]``), the last of them ``run-finish``.

        Mode ``prompt`` adds ``messages`` to the session and answers; ``resume`` continues its last turn. ``abort`` is
        one-shot: setting it stops this run, and a run given a set event ends aborted at once. Closing the stream early
        (``aclosing`` and ``break``) is the same as aborting and returns once the turn is sealed.

        Raises, at the first event: :exc:`SessionBusy`, :exc:`NotResumable`, and RuntimeError for an event of another
        loop. Failures of the run itself are events, not exceptions.
        """
        return EventStream(self._new_run(abort, mode, session_id, messages))

    async def invoke(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message] = ()
    ) -> AssistantMessage:
        """Run one turn to its end and give the assistant message; look at its ``error`` before its ``content``."""
        run = self._new_run(abort, mode, session_id, messages)
        async for _ in EventStream(run):
            pass
        return AssistantMessage.from_wire(run.draft.message)

    async def build_request(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message] = ()
    ) -> ModelRequest:
        """Give the model request that the next step would send; nothing runs and nothing is stored.

        Raises :exc:`AbortError` where ``abort`` is set, :exc:`NotResumable` as ``stream`` does.
        """
        if abort.is_set():
            raise AbortError
        history = list(messages)
        host = current_run()
        store = self._config.store
        if store is not None and (host is None or host.session_id != session_id):
            history = [*await store.load(session_id), *messages]
        if mode == "resume" and not resumable(history):
            raise NotResumable(session_id)
        if abort.is_set():
            raise AbortError
        specs = offered(self._config.tools.values())
        return ModelRequest(model_messages(history, resume=mode == "resume"), self._config.system_prompt, specs)

    async def respond(
        self, *, session_id: str, run_id: str, request_id: str, decision: Decision, value: Any = None
    ) -> bool:
        """Answer an ``approval-request``; False where nobody waits for it any more.

        ``value`` may bring other arguments, something for the tool, or a reason: see :mod:`gateway.engine.approvals`.
        """
        run = self._find(session_id, run_id)
        if run is None or run.calls is None or run.latch.stopping:
            return False
        return run.calls.respond(request_id, Answer(decision, value))

    async def steer(self, *, session_id: str, run_id: str, messages: Sequence[Message]) -> bool:
        """Give the live run new messages; returns once it has taken them, or False once it has ended without."""
        run = self._find(session_id, run_id)
        return run is not None and await run.steer(messages)

    def _find(self, session_id: str, run_id: str) -> Run | None:
        run = self._live.get(run_id) or self._live.get(session_id)
        return run if run is not None and run.context.run_id == run_id else None

    def _new_run(self, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]) -> Run:
        if mode not in ("prompt", "resume"):
            raise ValueError(f"mode must be 'prompt' or 'resume', not {mode!r}")
        return Run(
            self._config,
            abort=abort,
            mode=mode,
            session_id=session_id,
            messages=messages,
            on_started=self._started,
            on_idle=self._idle,
        )

    def _started(self, run: Run) -> None:
        session_id = run.context.session_id
        if run.key in self._live:
            raise SessionBusy(session_id)
        self._live[run.key] = run
        self.state = run.state
        for observer in self._observers:
            observer.started(session_id, run.abort)

    def _idle(self, run: Run) -> None:
        session_id = run.context.session_id
        if self._live.get(run.key) is run:
            del self._live[run.key]
            for observer in self._observers:
                observer.idle(session_id, run.abort)
