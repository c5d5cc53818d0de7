"""LangGraph graphs as engines; needs the extra ``agent-gateway[langgraph]``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from langchain_core import messages as theirs
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.runnables.config import merge_configs
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from gateway.adapters.errors import provider_error
from gateway.adapters.relay import check_finish, relay, scoped, turns_of
from gateway.engine.messages import AssistantMessage, ToolMessage, UserMessage
from protocol.messages import add_usage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable, Sequence
    from uuid import UUID

    from langchain_core.runnables import RunnableConfig
    from langgraph.pregel import Pregel

    from gateway.adapters.relay import Emit
    from gateway.engine.messages import ModelMessage
    from gateway.engine.port import EngineEvent, Mode
    from protocol.messages import FilePart, Message, Usage

_FINISH = {
    "stop": "stop",
    "end_turn": "stop",
    "tool_calls": "tool-calls",
    "tool_use": "tool-calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content-filter",
    "safety": "content-filter",
    "refusal": "content-filter",
}


def engine(
    graph: Pregel[Any, Any, Any, Any],
    *,
    state: Callable[[list[theirs.BaseMessage]], Any] | None = None,
    config: RunnableConfig | None = None,
    **options: Any,
) -> Engine:
    """Serve a compiled ``graph`` whose state has ``messages``; for another shape, ``state`` makes it of the history.

    ``config`` is merged into each run's; ``options`` (``context``, …) go to each ``graph.astream``. With a checkpointer
    the thread is the session, its messages are replaced by the gateway's, and the rest of its state stays.
    """
    return Engine(graph, state, config, options)


class Engine:
    """See :func:`engine`."""

    wants_history = True

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        state: Callable[[list[theirs.BaseMessage]], Any] | None,
        config: RunnableConfig | None,
        options: dict[str, Any],
    ) -> None:
        self._graph = graph
        self._state = state if state is not None else self._messages_state
        self._config = config
        self._options = options

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        """See :class:`gateway.engine.port.Engine`."""
        before, last = turns_of(messages, mode)
        return relay(lambda emit: self._run([*before, last], session_id, emit), abort, provider_error)

    async def _run(self, turns: list[ModelMessage], session_id: str, emit: Emit) -> None:
        said = _Said(emit)
        config = merge_configs({"callbacks": [said], "configurable": {"thread_id": scoped(session_id)}}, self._config)
        try:
            async for _, kind, data in self._graph.astream(
                self._state([_message(turn) for turn in turns]),
                config,
                stream_mode=["messages", "custom"],
                subgraphs=True,
                **self._options,
            ):
                if kind == "custom":
                    await emit("custom", name="langgraph", data=data)
                else:
                    await said.take(data[0])
        except Exception:
            await said.failed()
            raise
        await said.close()
        check_finish(said.finish)

    def _messages_state(self, messages: list[theirs.BaseMessage]) -> Any:
        if self._graph.checkpointer:
            return {"messages": [theirs.RemoveMessage(id=REMOVE_ALL_MESSAGES), *messages]}
        return {"messages": messages}


class _Said(AsyncCallbackHandler):
    """Hands out what models and tools say. A step is a model's message, or several that stream at the same time."""

    run_inline = True

    def __init__(self, emit: Emit) -> None:
        self.finish = "stop"
        self._emit = emit
        self._in_step = False
        self._usage: Usage | None = None
        self._open: dict[str, theirs.AIMessageChunk] = {}  # message id → what has come of it
        self._calls: dict[tuple[str, Any], str] = {}  # message id, index of the call → call id
        self._started: set[str] = set()
        self._errors: dict[str, BaseException] = {}  # of tools whose answer has not come
        self._runs: dict[UUID, str] = {}

    # -- messages, as the graph streams them

    async def take(self, message: theirs.BaseMessage) -> None:
        if isinstance(message, theirs.AIMessageChunk):
            await self._chunk(message)
        elif isinstance(message, theirs.AIMessage):  # from a node that streams nothing
            await self._chunk(theirs.AIMessageChunk(**message.model_dump(exclude={"type"}), chunk_position="last"))
        elif isinstance(message, theirs.ToolMessage):
            await self._answer(message)

    async def _chunk(self, chunk: theirs.AIMessageChunk) -> None:
        name = chunk.id or ""
        if name not in self._open:
            if not self._open:
                await self.close()
                self._in_step = True
                await self._emit("step-start")
            self._open[name] = chunk
        else:
            self._open[name] += chunk
        for block in chunk.content_blocks:
            await self._block(name, block)
        if chunk.chunk_position == "last":
            await self._complete(self._open.pop(name))

    async def _block(self, name: str, block: Any) -> None:
        match block:
            case {"type": "text", "text": str() as text} if text:
                await self._emit("text-delta", text=text)
            case {"type": "reasoning", "reasoning": str() as text} if text:
                await self._emit("reasoning-delta", text=text)
            case {"type": "tool_call_chunk"}:
                key = (name, block.get("index"))
                if block.get("id"):
                    self._calls[key] = block["id"]
                    await self._emit("tool-input-start", call_id=block["id"], tool=block.get("name"))
                if block.get("args") and key in self._calls:
                    await self._emit("tool-input-delta", call_id=self._calls[key], text=block["args"])

    async def _complete(self, message: theirs.AIMessageChunk) -> None:
        for call in message.tool_calls:
            await self._emit("tool-call", call_id=call["id"], tool=call["name"], input=call["args"])
        for bad in message.invalid_tool_calls:
            await self._emit("tool-call", call_id=bad["id"], tool=bad["name"], input={"raw": bad["args"]})
        said = message.response_metadata.get("finish_reason") or message.response_metadata.get("stop_reason")
        self.finish = _FINISH.get(str(said).lower(), "stop" if said is None else "other")
        if self.finish == "stop" and message.tool_calls:
            self.finish = "tool-calls"
        self._usage = add_usage(self._usage, _usage(message))

    async def _answer(self, message: theirs.ToolMessage) -> None:
        call_id = message.tool_call_id
        self._errors.pop(call_id, None)
        await self._start(call_id)
        if message.status == "error":
            text = _text(message)
            await self._emit("tool-error", call_id=call_id, error=text, interrupted=False, outcome="failed")
        else:
            await self._emit("tool-result", call_id=call_id, output=_output(message))

    async def close(self) -> None:
        """End the step, if one is open."""
        if self._in_step:
            self._in_step = False
            await self._emit("step-finish", finish_reason=self.finish, usage=self._usage)
            self._usage = None

    async def failed(self) -> None:
        """The graph has failed: say which tools did; what they raised may hold anything and stays in the log."""
        for call_id, error in self._errors.items():
            name = type(error).__name__
            await self._emit("tool-error", call_id=call_id, error=name, interrupted=False, outcome="failed")

    # -- tools, as LangChain calls back

    async def on_tool_start(
        self, serialized: dict[str, Any], input_str: str, *, run_id: UUID, tool_call_id: str | None = None, **_: Any
    ) -> None:
        """See ``AsyncCallbackHandler``."""
        if tool_call_id is not None:
            self._runs[run_id] = tool_call_id
            await self._start(tool_call_id)

    async def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """See ``AsyncCallbackHandler``."""
        if run_id in self._runs:
            self._errors[self._runs[run_id]] = error

    async def _start(self, call_id: str) -> None:
        if call_id not in self._started:
            self._started.add(call_id)
            await self._emit("tool-start", call_id=call_id)


def _usage(message: theirs.AIMessageChunk) -> Usage | None:
    measured = message.usage_metadata
    if measured is None or not (measured["input_tokens"] or measured["output_tokens"]):
        return None
    usage: Usage = {"input_tokens": measured["input_tokens"], "output_tokens": measured["output_tokens"]}
    if reasoning := measured.get("output_token_details", {}).get("reasoning"):
        usage["reasoning_tokens"] = reasoning
    if cached := measured.get("input_token_details", {}).get("cache_read"):
        usage["cached_tokens"] = cached
    return usage


def _text(message: theirs.BaseMessage) -> str:
    return message.content if isinstance(message.content, str) else json.dumps(message.content, ensure_ascii=False)


def _output(message: theirs.ToolMessage) -> Any:
    """Give a tool's answer as data where it is JSON: LangChain writes every return value down as text."""
    if isinstance(message.content, str) and message.content[:1] in ("{", "["):
        try:
            return json.loads(message.content)
        except ValueError:
            pass
    return message.content


def _message(turn: ModelMessage) -> theirs.BaseMessage:
    match turn:
        case UserMessage(content=text, files=()):
            return theirs.HumanMessage(text)
        case UserMessage(content=text, files=files):
            return theirs.HumanMessage([{"type": "text", "text": text}, *map(_file, files)])
        case ToolMessage(call_id, tool, content, is_error):
            status: Any = "error" if is_error else "success"
            return theirs.ToolMessage(content, tool_call_id=call_id, name=tool, status=status)
        case AssistantMessage():
            calls = [
                theirs.ToolCall(name=call.tool, args=call.input or {}, id=call.call_id, type="tool_call")
                for call in turn.tool_calls
            ]
            return theirs.AIMessage(turn.content, tool_calls=calls)


def _file(file: FilePart) -> dict[str, Any]:
    kind = file["media_type"].split("/")[0]
    block: dict[str, Any] = {"type": kind if kind in ("image", "audio", "video") else "file"}
    block["mime_type"] = file["media_type"]
    if "data" in file:
        return block | {"base64": file["data"]}
    return block | {"url": file.get("url", "")}
