"""The tool calls of one step: one task each, stopped together, none of them ever lost."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gateway.engine.approvals import Answer, NotAllowed
from gateway.engine.bounds import MAX_ERROR_BYTES, bounded_text
from gateway.engine.errors import ToolError
from gateway.engine.messages import new_id, now_ms
from gateway.engine.tools import Tool, ToolContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from gateway.engine.abort import Latch
    from gateway.engine.draft import Draft
    from gateway.engine.extensions import AgentRunContext, Extensions
    from gateway.engine.messages import ToolCall

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


def _promise() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class _Slot:
    call: ToolCall
    tool: Tool | None
    context: ToolContext | None = None
    task: asyncio.Task[None] | None = None
    started: asyncio.Future[None] = field(default_factory=_promise)
    answer: asyncio.Future[Answer] = field(default_factory=_promise)
    request_id: str = ""
    running: bool = False
    returned: bool = False
    output: Any = None
    truncated: bool = False
    failure: str | None = None
    ended_by: BaseException | None = None
    overdue: bool = False
    abandoned: bool = False

    def let_go(self) -> None:
        """It has been told how the call ended: what knows it is not kept, or only the collector would end them both."""
        self.context = self.task = self.ended_by = None


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
        grace_s: float,
        drained: Callable[[], Awaitable[None]],
        unsettled: Callable[[], None],
    ) -> None:
        self._tools = tools
        self._draft = draft
        self._latch = latch
        self._extensions = extensions
        self._context = context
        self._grace_s = grace_s
        self._drained = drained
        self._unsettled = unsettled
        self._slots: dict[str, _Slot] = {}

    @property
    def running(self) -> bool:
        """True while a call's task is alive."""
        return any(True for _ in self._alive())

    async def run(self, calls: Sequence[ToolCall]) -> None:
        """Run ``calls`` and return once each has an answer in the draft."""
        for call in calls:
            self._slots[call.call_id] = slot = _Slot(call, self._tools.get(call.tool))
            slot.context = self._tool_context(slot)
            slot.task = asyncio.create_task(self._run_one(slot), name=f"tool {call.tool} {call.call_id}")
        async with asyncio.TaskGroup() as group:
            for slot, task in list(self._alive()):
                group.create_task(self._see_through(slot, task))
        if self._latch.stopping:
            return  # the seal publishes what is left
        for call_id in self._draft.open_calls():
            self._publish(self._slots[call_id])
        self._slots.clear()

    def respond(self, request_id: str, answer: Answer) -> bool:
        """Pass a person's answer to the call that waits for it; False where none does."""
        for slot in self._slots.values():
            if request_id and slot.request_id == request_id and not slot.answer.done():
                slot.answer.set_result(answer)
                return True
        return False

    async def stop(self, grace_s: float) -> bool:
        """Cancel what runs and wait for its clean-up; False where something had to be abandoned.

        A sync tool in a thread cannot be cancelled: it is told through its context and given the grace.
        """
        asynchronous: set[asyncio.Task[Any]] = set()
        threaded: set[asyncio.Task[Any]] = set()
        alive = list(self._alive())
        for slot, task in alive:
            if slot.context is not None:
                slot.context._abort()
            in_thread = slot.running and slot.tool is not None and not slot.tool.is_async
            (threaded if in_thread else asynchronous).add(task)
        waiting = asyncio.create_task(asyncio.wait(threaded, timeout=grace_s)) if threaded else None
        pending = await cancel_and_wait(asynchronous, grace_s)
        if waiting is not None:
            _, still = await waiting
            pending |= still
        for slot, task in alive:
            if task in pending:
                self._leave(slot, task)
        return not pending

    def seal(self, call_id: str) -> bool:
        """Publish how a call that had started has ended; False where it never started."""
        slot = self._slots.pop(call_id, None)
        if slot is None:
            return False
        if not (slot.running or slot.returned or slot.failure):
            slot.let_go()
            return False
        self._publish(slot)
        return True

    # -- one call -----------------------------------------------------------------------------------------------------

    def _alive(self) -> Iterator[tuple[_Slot, asyncio.Task[None]]]:
        for slot in self._slots.values():
            if slot.task is not None and not slot.task.done() and not slot.abandoned:
                yield slot, slot.task

    async def _see_through(self, slot: _Slot, task: asyncio.Task[None]) -> None:
        """Wait for a call's end; one that runs past its time is stopped, and left behind if it will not stop."""
        tool = slot.tool
        if tool is not None and tool.timeout_s is not None:
            await asyncio.wait({task, slot.started}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({task}, timeout=tool.timeout_s)
            if not task.done() and not self._latch.stopping:
                slot.overdue = True
                if slot.context is not None:
                    slot.context._abort()
                if tool.is_async:
                    pending = await cancel_and_wait({task}, self._grace_s)
                else:
                    _, pending = await asyncio.wait({task}, timeout=self._grace_s if tool.stops else 0)
                if pending and not self._latch.stopping:
                    self._leave(slot, task)
                    self._publish(slot)
                    return
        await asyncio.wait({task})

    def _leave(self, slot: _Slot, task: asyncio.Task[None]) -> None:
        slot.abandoned = True
        self._unsettled()
        abandon(task, f"tool {slot.call.tool} ({slot.call.call_id})")

    async def _run_one(self, slot: _Slot) -> None:
        call = slot.call
        try:
            tool, checked = await self._admit(slot)
        except ToolError as error:
            refused = isinstance(error, NotAllowed)
            slot.failure = error.message
            self._draft.tool_error(call.call_id, error.message, "not_run" if refused else "failed", refused=refused)
            slot.let_go()
            return
        await self._extensions.before_tool(self._context, slot.call)
        if self._latch.stopping or slot.context is None:
            return
        slot.running = True
        slot.started.set_result(None)
        self._draft.tool_start(call.call_id)
        try:
            slot.output, slot.truncated = await tool.run(checked, slot.context)
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
        if slot.abandoned:
            return  # its call has been answered long ago
        if slot.returned:
            await self._extensions.after_tool(self._context, slot.call, slot.output)
        if not (self._latch.stopping or slot.abandoned):
            self._publish(slot)

    async def _admit(self, slot: _Slot) -> tuple[Tool, dict[str, Any]]:
        """Check a call and ask for it where that is the rule. Raises :exc:`ToolError`."""
        tool, call = slot.tool, slot.call
        if tool is None:
            raise ToolError(f"There is no tool named {call.tool}")
        if tool.policy == "deny":
            raise NotAllowed(f"The tool {call.tool} is switched off")
        checked = tool.check(call.input or {})
        if tool.policy == "ask" and slot.context is not None:
            answer = await self._ask(slot, tool)
            answer.check()
            slot.context.answer = answer.value
            if answer.edited is not None:
                checked = tool.check(answer.edited)
                slot.call = replace(call, input=answer.edited, raw="")
                self._draft.input_edited(slot.request_id, answer.edited)
        return tool, checked

    async def _ask(self, slot: _Slot, tool: Tool) -> Answer:
        call_id, limit_s = slot.call.call_id, tool.approval_timeout_s
        slot.request_id = new_id("req")
        expires_at = None if limit_s is None else now_ms() + round(limit_s * 1000)
        self._draft.approval_request(call_id, slot.request_id, expires_at)
        # A loop's timer is precise to a millisecond or two, and nobody is told before the time that was said.
        await asyncio.wait({slot.answer}, timeout=None if limit_s is None else limit_s + 0.002)
        if not slot.answer.done():
            self._draft.approval_resolved(call_id, "expired")
            # An answer may be taken while this is on its way to the reader. Whoever gave it was told that it counts.
            await self._drained()
            if not slot.answer.done():
                slot.answer.set_result(Answer("expired"))
                return slot.answer.result()
        answer = slot.answer.result()
        self._draft.approval_resolved(call_id, answer.decision)
        return answer

    def _publish(self, slot: _Slot) -> None:
        call_id, draft = slot.call.call_id, self._draft
        reads = slot.tool is not None and slot.tool.reads
        if slot.returned:
            draft.tool_result(call_id, slot.output, slot.truncated)
        elif slot.ended_by is not None and self._latch.aborted:
            if not isinstance(slot.ended_by, asyncio.CancelledError):
                log.warning("tool %s turned its cancellation into an error", slot.call.tool, exc_info=slot.ended_by)
            draft.tool_error(call_id, "Tool execution aborted", "interrupted")
        elif slot.overdue and slot.tool is not None:
            late = f"Timed out after {slot.tool.timeout_s:g} s"
            if slot.ended_by is not None or reads:
                draft.tool_error(call_id, late, "failed")
            else:
                draft.tool_error(call_id, f"{late} and did not stop: it may or may not have completed", "unknown")
        elif slot.failure is not None:
            draft.tool_error(call_id, bounded_text(slot.failure, MAX_ERROR_BYTES), "failed")
        elif reads:
            draft.tool_error(call_id, "Tool execution aborted", "interrupted")
        else:
            draft.tool_error(call_id, "Tool did not stop: it may or may not have completed", "unknown")
        slot.let_go()

    def _tool_context(self, slot: _Slot) -> ToolContext:
        def report(data: Any) -> None:
            if slot.running and not (slot.returned or slot.abandoned or slot.overdue or self._latch.stopping):
                self._draft.tool_progress(slot.call.call_id, data)

        return ToolContext(
            session_id=self._context.session_id, run_id=self._context.run_id, call_id=slot.call.call_id, report=report
        )
