"""Agents of pydantic-ai as engines; needs the extra ``agent-gateway[pydantic-ai]``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_ai import Agent, messages
from pydantic_ai.capabilities import ReinjectSystemPrompt
from pydantic_core import to_jsonable_python

from gateway.adapters.relay import check_finish, relay, turns_of
from gateway.engine.models.pydantic_ai import FINISH, content_of, history_of, translate_error, usage_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence

    from pydantic_ai.agent import AbstractAgent
    from pydantic_ai.run import AgentRun

    from gateway.adapters.relay import Emit
    from gateway.engine.messages import ModelMessage, UserMessage
    from gateway.engine.port import EngineEvent, Mode
    from protocol.messages import Message


def engine(agent: AbstractAgent[Any, Any], *, deps: Callable[[], Any] | None = None, **options: Any) -> Engine:
    """Serve ``agent``. ``deps`` makes its dependencies, once per run; ``options`` go to each ``agent.iter``.

    ``deps`` and the agent's tools learn for whom they work from :func:`gateway.current_run`.
    """
    return Engine(agent, deps, options)


class Engine:
    """See :func:`engine`."""

    wants_history = True

    def __init__(self, agent: AbstractAgent[Any, Any], deps: Callable[[], Any] | None, options: dict[str, Any]) -> None:
        self._agent = agent
        self._deps = deps
        # They send an agent's system prompt with the first message only, and ours remembers none.
        self._options = {**options, "capabilities": [*options.get("capabilities", ()), ReinjectSystemPrompt()]}

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        """See :class:`gateway.engine.port.Engine`."""
        return relay(lambda emit: self._run(*turns_of(messages, mode), emit), abort, translate_error)

    async def _run(self, before: list[ModelMessage], last: UserMessage, emit: Emit) -> None:
        finish = "stop"
        async with self._agent.iter(
            content_of(last),
            message_history=history_of(before),
            deps=self._deps() if self._deps is not None else None,
            **self._options,
        ) as run:
            async for node in run:
                if Agent.is_model_request_node(node):
                    await emit("step-start")
                    finish, usage = await self._ask(node, run, emit)
                elif Agent.is_call_tools_node(node):
                    async with node.stream(run.ctx) as events:
                        async for event in events:
                            await _tool_event(event, emit)
                    await emit("step-finish", finish_reason=finish, usage=usage)
        check_finish(finish)

    async def _ask(self, node: Any, run: AgentRun[Any, Any], emit: Emit) -> tuple[str, Any]:
        parts = _Parts(emit)
        async with node.stream(run.ctx) as stream:
            async for event in stream:
                await parts.take(event)
            response = stream.response
        finish = FINISH.get(str(response.finish_reason), "stop" if response.finish_reason is None else "other")
        return "tool-calls" if response.tool_calls and finish == "stop" else finish, usage_of(response.usage)


class _Parts:
    """Hands out the parts of one response. A provider's own tools run elsewhere, but are calls and results too."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._calls: dict[int, str] = {}

    async def take(self, event: object) -> None:
        emit = self._emit
        match event:
            case (
                messages.PartStartEvent(part=messages.TextPart(content=text))
                | messages.PartDeltaEvent(delta=messages.TextPartDelta(content_delta=text))
            ):
                await emit("text-delta", text=text)
            case (
                messages.PartStartEvent(part=messages.ThinkingPart(content=text))
                | messages.PartDeltaEvent(delta=messages.ThinkingPartDelta(content_delta=text))
            ) if text:
                await emit("reasoning-delta", text=text)
            case messages.PartStartEvent(index=index, part=messages.BaseToolCallPart() as part):
                self._calls[index] = part.tool_call_id
                await emit("tool-input-start", call_id=part.tool_call_id, tool=part.tool_name)
                if isinstance(part.args, str):
                    await emit("tool-input-delta", call_id=part.tool_call_id, text=part.args)
            case messages.PartDeltaEvent(index=index, delta=messages.ToolCallPartDelta(args_delta=str() as text)):
                await emit("tool-input-delta", call_id=self._calls.get(index), text=text)
            case messages.PartEndEvent(index=index, part=messages.BaseToolCallPart() as part):
                call_id = self._calls.get(index, part.tool_call_id)
                await emit("tool-call", call_id=call_id, tool=part.tool_name, input=part.args_as_dict())
                if isinstance(part, messages.NativeToolCallPart):
                    await emit("tool-start", call_id=call_id)
            case messages.PartStartEvent(part=messages.NativeToolReturnPart() as result):
                await emit(
                    "tool-result", call_id=result.tool_call_id, output=to_jsonable_python(result.content, fallback=str)
                )
            case _:  # files and citations: nothing that a run shows yet
                pass


async def _tool_event(event: object, emit: Emit) -> None:
    match event:
        case messages.ToolCallEvent(args_valid=True, part=part):
            await emit("tool-start", call_id=part.tool_call_id)
        case messages.ToolResultEvent(part=part) if part.outcome == "success":
            await emit("tool-result", call_id=part.tool_call_id, output=to_jsonable_python(part.content, fallback=str))
        case messages.ToolResultEvent(part=part):
            outcome = {"denied": "not_run", "interrupted": "interrupted"}.get(part.outcome, "failed")
            await emit(
                "tool-error",
                call_id=part.tool_call_id,
                error=part.model_response_str(wrap_if_error=False),
                interrupted=outcome == "interrupted",
                outcome=outcome,
            )
        case _:
            pass
