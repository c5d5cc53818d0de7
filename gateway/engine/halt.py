"""How a run ends: the one place that closes an aborted attempt, and its two plain siblings."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from gateway.engine.calls import abandon, cancel_and_wait
from gateway.engine.errors import EngineError, MessageErrorBuilder, UnknownError
from gateway.engine.extensions import RunCancelledEvent
from gateway.engine.messages import AssistantMessage
from gateway.engine.phases import AgentPhase

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gateway.engine.errors import AssistantMessageError
    from gateway.engine.loop import Run

log = logging.getLogger("gateway.engine")

TOOLS_SHARE = 0.9
"""The tools' share of the grace; the rest is for the task that waits for them."""


async def halt_abort(run: Run, work: asyncio.Task[None] | None) -> None:
    """Close an aborted attempt.

    Tools first, so that no call is left half open; then the task that pulls the model, which closes the provider's
    connection; then everything that is still open in the message, text kept word for word; then the store, the
    extensions and the one terminal event. Runs in a task of its own (see ``outlast``) and every wait has a deadline.
    """
    grace_s = run.grace_s
    settled = True
    if run.calls is not None and run.calls.running:
        settled = await run.calls.stop(grace_s * TOOLS_SHARE)
        grace_s *= 1 - TOOLS_SHARE
    if work is not None and await cancel_and_wait({work}, grace_s):
        abandon(work, f"run {run.context.run_id}")
        settled = False
    run.latch.seal()
    error = MessageErrorBuilder.build(None, aborted=True)
    _close_message(run, "aborted", error)
    run.state.enter(AgentPhase.CANCELLED)
    await _within(run, run.persist(), "storing the aborted turn")
    cancelled = RunCancelledEvent(run.latch.reason or "user")
    await _within(run, run.config.extensions.on_event(run.context, cancelled), "the extensions' clean-up")
    run.conclude("aborted", error, settled=settled)


async def halt_failure(run: Run, failure: Exception) -> None:
    """Close a failed attempt. Its work is over; tools still run where somebody else cancelled that."""
    settled = run.calls is None or not run.calls.running or await run.calls.stop(run.grace_s)
    error = MessageErrorBuilder.build(failure)
    _close_message(run, "error", error)
    run.state.enter(AgentPhase.FAILED)
    await _within(run, run.persist(), "storing the failed turn")
    await _within(run, run.config.extensions.on_error(run.context, failure), "the extensions' on_error")
    run.conclude("failed", error, settled=settled)


async def complete(run: Run) -> None:
    """Commit a completed turn; a turn that cannot be stored has failed."""
    run.draft.finish(run.finish_reason)
    if not await _within(run, run.persist(), "storing the turn"):
        failure: EngineError = UnknownError("The turn could not be stored")
        run.state.enter(AgentPhase.FAILED)
        await _within(run, run.config.extensions.on_error(run.context, failure), "the extensions' on_error")
        run.conclude("failed", MessageErrorBuilder.build(failure))
        return
    run.state.enter(AgentPhase.COMPLETED)
    result = AssistantMessage.from_wire(run.draft.message)
    await _within(run, run.config.extensions.on_success(run.context, result), "the extensions' on_success")
    run.conclude("completed", None)


def _close_message(run: Run, finish_reason: str, error: AssistantMessageError) -> None:
    for call_id in run.draft.open_approvals():
        run.draft.approval_resolved(call_id, "withdrawn")
    for call_id in run.draft.open_calls():
        if run.calls is None or not run.calls.seal(call_id):
            run.draft.tool_error(call_id, "Tool was not started", "not_run")
    run.draft.finish(finish_reason, error)


async def _within(run: Run, job: Coroutine[Any, Any, None], what: str) -> bool:
    """Run ``job`` up to the seal's deadline; a failure is logged, since the session has to be released all the same."""
    task = asyncio.create_task(job, name=what)
    done, _ = await asyncio.wait({task}, timeout=run.config.seal_deadline_s)
    if not done:
        task.cancel()
        abandon(task, what)
        return False
    if task.cancelled():
        log.error("%s was cancelled (session %s)", what, run.context.session_id)
        return False
    if (error := task.exception()) is not None:
        log.error("%s failed (session %s)", what, run.context.session_id, exc_info=error)
        return False
    return True
