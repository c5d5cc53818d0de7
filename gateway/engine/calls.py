"""The tool calls of one step: one task each, stopped together, none of them ever lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.engine.errors import ToolError
from gateway.engine.messages import new_id
from gateway.engine.tools import Tool, ToolContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.engine.abort import Latch
    from gateway.engine.draft import Draft
    from gateway.engine.extensions import AgentRunContext, Extensions
    from gateway.engine.messages import ToolCall
    from protocol.messages import Decision

log = logging.getLogger("gateway.engine")

_abandoned: set[asyncio.Task[Any]] = set()
"""Work that ignored its cancellation. Held strongly: the loop itself keeps only weak references to its tasks."""

SECOND_CANCEL = 0.8
"""After this share of the grace a task that is still at it is cancelled again: it may have swallowed the first."""


def abandon(task: asyncio.Task[Any], what: str) -> None:
    """Let go of a task that does not end; what becomes of it later is logged and touches nothing."""
    log.warning("%s did not end within the grace and was abandoned", what)
    _abandoned.add(task)

    def ended(task: asyncio.Task[Any]) -> None:
        _abandoned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s, abandoned before, failed", what, exc_info=error)

    task.add_done_callback(ended)


async def cancel_and_wait(tasks: set[asyncio.Task[Any]], grace_s: float) -> set[asyncio.Task[Any]]:
    """Cancel ``tasks``, wait for their clean-up, cancel once more near the end of the grace; gives those still alive.

    Never ``wait_for`` or ``timeout()``, which wait for a child that ignores cancellation.
    """
    pending = {task for task in tasks if not task.done()}
    for share in (SECOND_CANCEL, 1 - SECOND_CANCEL):
        if not pending:
            break
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=grace_s * share)
    return pending


@dataclass(slots=True)
class _Slot:
    call: ToolCall
    tool: Tool | None
    context: ToolContext
    task: asyncio.Task[None] | None = None
    running: bool = False
    returned: bool = False
    output: Any = None
    failure: str | None = None
    ended_by: BaseException | None = None
    abandoned: bool = False
    approval: asyncio.Future[Decision] | None = None
    request_id: str = ""


class ToolCalls:
    """Runs a step's calls in parallel and writes their ends into the draft."""

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool],
        draft: Draft,
        latch: Latch,
        extensions: Extensions,
        context: AgentRunContext,
    ) -> None:
        self._tools = tools
        self._draft = draft
        self._latch = latch
        self._extensions = extensions
        self._context = context
        self._slots: dict[str, _Slot] = {}

    @property
    def running(self) -> bool:
        """True while a call's task is alive."""
        return any(slot.task is not None and not slot.task.done() for slot in self._slots.values())

    async def run(self, calls: Sequence[ToolCall]) -> None:
        """Run ``calls`` and return once each has an answer in the draft."""
        for call in calls:
            self._slots[call.call_id] = slot = _Slot(call, self._tools.get(call.tool), self._tool_context(call.call_id))
            slot.task = asyncio.create_task(self._run_one(slot), name=f"tool {call.tool} {call.call_id}")
        await asyncio.wait({slot.task for slot in self._slots.values() if slot.task is not None})
        if self._latch.stopping:
            return  # the seal publishes what is left
        for call_id in self._draft.open_calls():
            self._publish(self._slots[call_id])
        self._slots.clear()

    def respond(self, request_id: str, decision: Decision) -> bool:
        """Pass a person's decision to the call that waits for it; False where none does."""
        for slot in self._slots.values():
            if slot.request_id == request_id and slot.approval is not None and not slot.approval.done():
                slot.approval.set_result(decision)
                return True
        return False

    async def stop(self, grace_s: float) -> bool:
        """Cancel what runs and wait for its clean-up; False where something had to be abandoned.

        A sync tool in a thread cannot be cancelled: it is told through its context and given the grace.
        """
        asynchronous: set[asyncio.Task[Any]] = set()
        threaded: set[asyncio.Task[Any]] = set()
        for slot in self._slots.values():
            slot.context._abort()
            if slot.task is None or slot.task.done():
                continue
            in_thread = slot.running and slot.tool is not None and not slot.tool.is_async
            (threaded if in_thread else asynchronous).add(slot.task)
        waiting = asyncio.create_task(asyncio.wait(threaded, timeout=grace_s)) if threaded else None
        pending = await cancel_and_wait(asynchronous, grace_s)
        if waiting is not None:
            _, still = await waiting
            pending |= still
        for slot in self._slots.values():
            if slot.task in pending:
                slot.abandoned = True
                abandon(slot.task, f"tool {slot.call.tool} ({slot.call.call_id})")
        return not pending

    def seal(self, call_id: str) -> bool:
        """Publish how a call that had started has ended; False where it never started."""
        slot = self._slots.pop(call_id, None)
        if slot is None or not (slot.running or slot.returned or slot.failure):
            return False
        self._publish(slot)
        return True

    def _publish(self, slot: _Slot) -> None:
        call_id, aborted = slot.call.call_id, self._latch.aborted
        if slot.returned:
            self._draft.tool_result(call_id, slot.output)
        elif slot.ended_by is not None and aborted:
            if not isinstance(slot.ended_by, asyncio.CancelledError):
                log.warning("tool %s turned its cancellation into an error", slot.call.tool, exc_info=slot.ended_by)
            self._draft.tool_error(call_id, "Tool execution aborted", "interrupted")
        elif slot.failure is not None:
            self._draft.tool_error(call_id, slot.failure, "failed")
        elif slot.tool is not None and slot.tool.reads:
            self._draft.tool_error(call_id, "Tool execution aborted", "interrupted")
        else:
            self._draft.tool_error(call_id, "Tool did not stop: it may or may not have completed", "unknown")

    async def _run_one(self, slot: _Slot) -> None:
        call, tool = slot.call, slot.tool
        try:
            if tool is None:
                raise ToolError(f"There is no tool named {call.tool}")
            checked = tool.check(call.input or {})
            if tool.approval and await self._ask(slot) != "allow":
                raise ToolError("The person did not allow this call")
        except ToolError as error:
            slot.failure = error.message
            self._draft.tool_error(call.call_id, error.message, "failed")
            return
        await self._extensions.before_tool(self._context, call)
        if self._latch.stopping:
            return
        slot.running = True
        self._draft.tool_start(call.call_id)
        try:
            slot.output = await tool.run(checked, slot.context)
            slot.returned = True  # kept from here on, even if an abort comes before it is published
        except asyncio.CancelledError as error:
            slot.ended_by = error
            slot.failure = "Tool was cancelled"
            raise
        except Exception as error:
            slot.ended_by = error
            slot.failure = error.message if isinstance(error, ToolError) else type(error).__name__
            if slot.abandoned:
                log.error("tool %s, abandoned before, failed", call.tool, exc_info=error)
            elif not isinstance(error, ToolError) and not self._latch.stopping:
                log.error("tool %s failed", call.tool, exc_info=error)
        if slot.returned:
            await self._extensions.after_tool(self._context, call, slot.output)
        if not self._latch.stopping:
            self._publish(slot)

    async def _ask(self, slot: _Slot) -> Decision:
        slot.request_id = new_id("req")
        slot.approval = asyncio.get_running_loop().create_future()
        self._draft.approval_request(slot.call.call_id, slot.request_id)
        decision = await slot.approval
        self._draft.approval_resolved(slot.call.call_id, decision)
        return decision

    def _tool_context(self, call_id: str) -> ToolContext:
        def report(data: Any) -> None:
            if not self._latch.stopping:
                self._draft.tool_progress(call_id, data)

        return ToolContext(
            session_id=self._context.session_id, run_id=self._context.run_id, call_id=call_id, report=report
        )
