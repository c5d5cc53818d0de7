"""Agents of the OpenAI Agents SDK as engines; needs the extra ``agent-gateway[openai-agents]``."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, cast

from agents import (
    InputGuardrailTripwireTriggered,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    RunHooks,
    Runner,
    get_current_span,
)
from agents.tool_context import ToolContext

from gateway.adapters.errors import provider_error
from gateway.adapters.relay import check_finish, relay, turns_of
from gateway.engine.errors import APIError, ContentFilterError
from gateway.engine.messages import AssistantMessage, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
    from contextvars import Context

    from agents import Agent, RunContextWrapper, RunResultStreaming, Tool

    from gateway.adapters.relay import Emit
    from gateway.engine.messages import ModelMessage
    from gateway.engine.port import EngineEvent, Mode
    from protocol.messages import FilePart, Message, Usage


def engine(agent: Agent[Any], *, context: Callable[[], Any] | None = None, **options: Any) -> Engine:
    """Serve ``agent``. ``context`` makes the run's context, once per run; ``options`` go to ``Runner.run_streamed``.

    ``context`` and the agent's tools learn for whom they work from :func:`gateway.current_run`. Leave ``session`` out:
    the history comes from the gateway.
    """
    return Engine(agent, context, options)


class Engine:
    """See :func:`engine`."""

    wants_history = True

    def __init__(self, agent: Agent[Any], context: Callable[[], Any] | None, options: dict[str, Any]) -> None:
        self._agent = agent
        self._context = context
        self._options = options

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        """See :class:`gateway.engine.port.Engine`."""
        before, last = turns_of(messages, mode)
        return relay(lambda emit: self._run([*before, last], emit), abort, _translate_error)

    async def _run(self, turns: list[ModelMessage], emit: Emit) -> None:
        said = _Said(emit)
        mine = _run.set(said)  # its tools' tasks inherit it
        result = Runner.run_streamed(
            self._agent,
            [item for turn in turns for item in _items(turn)],
            context=self._context() if self._context is not None else None,
            hooks=said,
            **self._options,
        )
        _run.reset(mine)
        reading = asyncio.create_task(_read(result, said))
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            # Its reader, cancelled, would cancel the run again and again, in the middle of the model's clean-up, and
            # not wait for it. Told to cancel, it does so once, and the stream ends when the run has.
            result.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await _cleaned_up(said)
            raise
        await said.close()
        check_finish(said.finish)


async def _read(result: RunResultStreaming, said: _Said) -> None:
    async with aclosing(cast("AsyncGenerator[Any, None]", result.stream_events())) as events:
        async for event in events:
            if event.type == "raw_response_event":
                await said.take(event.data)
            elif event.type == "run_item_stream_event":
                await said.item(event.item)


_run: ContextVar[_Said] = ContextVar("gateway_openai_agents_run")


async def _cleaned_up(run: _Said) -> None:
    """Wait for the tools that the SDK has cancelled and left to themselves, not for what a tool started on purpose.

    Nothing public leads to their tasks but the context that they inherited, which a task shows since Python 3.12.
    """
    context_of: Callable[[asyncio.Task[Any]], Context] | None = getattr(asyncio.Task, "get_context", None)
    while context_of is not None and (
        left := [task for task in asyncio.all_tasks() if task.cancelling() and context_of(task).get(_run) is run]
    ):
        await asyncio.wait(left)


class _Said(RunHooks[Any]):
    """Hands out what models and tools say. A step is one response of a model with the tools that follow it."""

    def __init__(self, emit: Emit) -> None:
        self.finish = "stop"
        self._emit = emit
        self._in_step = False
        self._usage: Usage | None = None
        self._spoke = False  # in this response, piece by piece
        self._calls: dict[int, str] = {}  # place in the response → call id
        self._announced: set[str] = set()
        self._early: set[str] = set()  # started in the SDK's own task before its stream has told of the call
        self._failed: set[str] = set()

    async def take(self, event: Any) -> None:
        """Hand out one of the provider's events."""
        if not self._in_step or event.type == "response.created":
            await self.close()
            self._in_step = True
            self._spoke = False
            self._calls.clear()
            await self._emit("step-start")
        match event.type:
            case "response.output_text.delta" | "response.refusal.delta":
                self._spoke = True
                await self._emit("text-delta", text=event.delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                await self._emit("reasoning-delta", text=event.delta)
            case "response.output_item.added":
                await self._begin(event.output_index, event.item)
            case "response.function_call_arguments.delta" if event.output_index in self._calls:
                await self._emit("tool-input-delta", call_id=self._calls[event.output_index], text=event.delta)
            case "response.output_item.done":
                await self._complete(event.item)
            case "response.completed" | "response.incomplete":
                await self._end(event.response)

    async def _begin(self, place: int, item: Any) -> None:
        if item.type == "function_call" and item.call_id:
            self._calls[place] = item.call_id
            await self._emit("tool-input-start", call_id=item.call_id, tool=item.name)
            if item.arguments:
                await self._emit("tool-input-delta", call_id=item.call_id, text=item.arguments)

    async def _complete(self, item: Any) -> None:
        """A whole item: a call of the agent's tools, or one that ran at the provider, with what came of it."""
        if not item.type.endswith("_call"):
            return
        call_id = getattr(item, "call_id", None)
        if call_id is None:
            call = {"call_id": item.id, "tool": item.type.removesuffix("_call"), "input": {}}
            await self._emit("tool-call", **call)
            await self._emit("tool-start", call_id=item.id)
            await self._emit(
                "tool-result", call_id=item.id, output=item.model_dump(mode="json", exclude={"id", "type"})
            )
        elif call_id not in self._announced:
            self._announced.add(call_id)
            tool = getattr(item, "name", None) or item.type.removesuffix("_call")
            await self._emit("tool-call", call_id=call_id, tool=tool, input=_input(item))
            if call_id in self._early:
                await self._emit("tool-start", call_id=call_id)

    async def _end(self, response: Any) -> None:
        for item in response.output:  # what a model that does not stream brings all at once
            if item.type == "message" and not self._spoke:
                text = "".join(getattr(part, "text", "") or getattr(part, "refusal", "") for part in item.content)
                await self._emit("text-delta", text=text)
            await self._complete(item)
        why = getattr(response.incomplete_details, "reason", None)
        self.finish = {"max_output_tokens": "length", "content_filter": "content-filter"}.get(why or "", "stop")
        if self.finish == "stop" and any(getattr(item, "call_id", None) for item in response.output):
            self.finish = "tool-calls"
        self._usage = _usage(response.usage)

    async def item(self, item: Any) -> None:
        """Hand out what came of a call: a tool's output, or another agent that has taken over."""
        if item.type == "tool_call_output_item":
            if item.call_id in self._failed:
                error = str(item.output)
                await self._emit("tool-error", call_id=item.call_id, error=error, interrupted=False, outcome="failed")
            elif item.call_id is not None:
                await self._emit("tool-result", call_id=item.call_id, output=item.output)
        elif item.type == "handoff_output_item":
            raw = item.raw_item
            await self._emit("tool-result", call_id=raw.get("call_id"), output=raw.get("output"))

    async def close(self) -> None:
        """End the step, if one is open."""
        if self._in_step:
            self._in_step = False
            await self._emit("step-finish", finish_reason=self.finish, usage=self._usage)
            self._usage = None

    # -- in the SDK's own task

    async def on_tool_start(self, context: RunContextWrapper[Any], agent: Any, tool: Tool) -> None:
        """See ``RunHooks``."""
        if not isinstance(context, ToolContext):
            return
        if context.tool_call_id in self._announced:
            self._emit.now("tool-start", call_id=context.tool_call_id)
        else:
            self._early.add(context.tool_call_id)

    async def on_tool_end(self, context: RunContextWrapper[Any], agent: Any, tool: Tool, result: object) -> None:
        """See ``RunHooks``. A failed tool answers with text like any other; only the trace knows."""
        span = get_current_span()
        if isinstance(context, ToolContext) and span is not None and span.error is not None:
            self._failed.add(context.tool_call_id)


def _input(item: Any) -> Any:
    raw = getattr(item, "arguments", None)
    if raw is None:
        return item.model_dump(mode="json", exclude={"id", "type", "call_id", "status"})
    try:
        return json.loads(raw or "{}")
    except ValueError:
        return {"raw": raw}


def _usage(measured: Any) -> Usage | None:
    if measured is None or not (measured.input_tokens or measured.output_tokens):
        return None
    usage: Usage = {"input_tokens": measured.input_tokens, "output_tokens": measured.output_tokens}
    if reasoning := getattr(measured.output_tokens_details, "reasoning_tokens", 0):
        usage["reasoning_tokens"] = reasoning
    if cached := getattr(measured.input_tokens_details, "cached_tokens", 0):
        usage["cached_tokens"] = cached
    return usage


def _items(turn: ModelMessage) -> list[Any]:
    match turn:
        case UserMessage(content=text, files=()):
            return [{"role": "user", "content": text}]
        case UserMessage(content=text, files=files):
            return [{"role": "user", "content": [{"type": "input_text", "text": text}, *map(_file, files)]}]
        case ToolMessage(call_id, _, content):
            return [{"type": "function_call_output", "call_id": call_id, "output": content}]
        case AssistantMessage():
            said = [{"role": "assistant", "content": turn.content}] if turn.content else []
            calls = [
                {
                    "type": "function_call",
                    "call_id": call.call_id,
                    "name": call.tool,
                    "arguments": json.dumps(call.input or {}, ensure_ascii=False),
                }
                for call in turn.tool_calls
            ]
            return [*said, *calls]


def _file(file: FilePart) -> dict[str, Any]:
    url = f"data:{file['media_type']};base64,{file['data']}" if "data" in file else file.get("url", "")
    if file["media_type"].startswith("image/"):
        return {"type": "input_image", "image_url": url, "detail": "auto"}
    if "data" in file:
        return {"type": "input_file", "file_data": url, "filename": file.get("name", "file")}
    return {"type": "input_file", "file_url": url}


def _translate_error(error: Exception) -> Exception:
    if isinstance(error, InputGuardrailTripwireTriggered | OutputGuardrailTripwireTriggered):
        return ContentFilterError("A guardrail stopped the run")
    if isinstance(error, ModelRefusalError):
        return ContentFilterError("The model declined to answer")
    if isinstance(error, ModelBehaviorError):
        return APIError("The provider's answer could not be read")
    return provider_error(error)
