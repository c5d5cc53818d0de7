"""Agents of zett-agent as engines; needs the extra ``agent-gateway[zett]``."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from zett_agent import messages as theirs
from zett_agent.agent import Agent, AgentRunConfig, AgentRunContext
from zett_agent.client import AgentClient
from zett_agent.events import AgentEventType
from zett_agent.extensions.base import AgentExtension
from zett_agent.extensions.memory import InMemoryMessageAccumulator
from zett_agent.stop import StopReason

from gateway.adapters.errors import provider_error
from gateway.adapters.relay import check_finish, relay, scoped, turns_of
from gateway.engine.errors import APIError, AuthError
from gateway.engine.messages import AssistantMessage, ToolMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from zett_agent.events import AgentEvent
    from zett_agent.model import ModelResponse, ModelUsage

    from gateway.adapters.relay import Emit
    from gateway.engine.messages import ModelMessage
    from gateway.engine.port import EngineEvent, Mode
    from protocol.messages import FilePart, Message, Usage

_FINISH = {
    StopReason.END_TURN: "stop",
    StopReason.TOOL_USE: "tool-calls",
    StopReason.MAX_OUTPUT: "length",
    StopReason.CONTEXT_FULL: "length",
    StopReason.REFUSAL: "content-filter",
}


def engine(agent: AgentClient | Agent | Callable[[], Awaitable[AgentClient]], **options: Any) -> Engine:
    """Serve a client, an initialized agent, or what an async function such as ``create_agent`` will make of one.

    The function is called once, by the first run. ``options`` (``model``, ``reasoning_effort``, …) go to each
    ``client.stream``. The gateway's sessions are the agent's: it may keep its own log of them, but answers from ours.
    """
    return Engine(agent, options)


class Engine:
    """See :func:`engine`."""

    wants_history = True

    def __init__(
        self, agent: AgentClient | Agent | Callable[[], Awaitable[AgentClient]], options: dict[str, Any]
    ) -> None:
        self._agent = agent
        self._options = options
        self._history = _History()
        self._client: AgentClient | None = None
        self._creating = asyncio.Lock()

    def stream(
        self, *, abort: asyncio.Event, mode: Mode, session_id: str, messages: Sequence[Message]
    ) -> AsyncIterator[EngineEvent]:
        """See :class:`gateway.engine.port.Engine`."""
        before, last = turns_of(messages, mode)
        return relay(lambda emit: self._run(before, last, scoped(session_id), emit), abort, _translate_error)

    async def _run(self, before: list[ModelMessage], last: UserMessage, session_id: str, emit: Emit) -> None:
        client = await self._created()
        said = _Said(emit)
        stream = client.stream(_user(last), config=AgentRunConfig(session_id=session_id), **self._options)
        self._history.turns[session_id] = before
        try:
            async with aclosing(cast("AsyncGenerator[AgentEvent, None]", stream)) as events:
                async for event in events:
                    await said.take(event)
        finally:
            self._history.forget(client.agent, session_id)
        await said.close()
        check_finish(said.finish)

    async def _created(self) -> AgentClient:
        async with self._creating:
            if self._client is None:
                agent = self._agent
                if isinstance(agent, Agent):
                    agent = AgentClient(agent)
                self._client = agent if isinstance(agent, AgentClient) else await agent()
                # Last, so that it has the last word about the state that the others restore.
                self._client.agent.extensions = (*self._client.agent.extensions, self._history)
            return self._client


class _History(AgentExtension):
    """Puts the gateway's history in the place of what the agent remembers itself, which has no partial text."""

    def __init__(self) -> None:
        self.turns: dict[str, list[ModelMessage]] = {}

    async def on_state(self, context: AgentRunContext) -> None:
        """See ``AgentExtension``."""
        turns = self.turns.get(context.session_id)
        if turns is not None:
            system = [message for message in context.state.messages if isinstance(message, theirs.SystemMessage)]
            context.replace_messages([*system, *map(_message, turns)], emit_new=False)

    def forget(self, agent: Agent, session_id: str) -> None:
        """Keep no second copy of the conversation in memory."""
        self.turns.pop(session_id, None)
        for extension in agent.extensions:
            if isinstance(extension, InMemoryMessageAccumulator):
                extension.clear(session_id)


class _Said:
    """Hands out what the model and its tools say."""

    def __init__(self, emit: Emit) -> None:
        self.finish = "stop"
        self._emit = emit
        self._in_step = False
        self._spoke = False
        self._usage: Usage | None = None
        self._names: dict[int, tuple[str, str]] = {}  # place of a call → its id and tool, which come in pieces too
        self._begun: set[int] = set()

    async def take(self, event: AgentEvent) -> None:
        """Hand out one of their events."""
        emit = self._emit
        match event.type:
            case AgentEventType.MODEL_STARTED:
                await self._step()
            case AgentEventType.TEXT_DELTA:
                self._spoke = True
                await emit("text-delta", text=event.delta)
            case AgentEventType.REASONING_DELTA:
                await emit("reasoning-delta", text=event.delta)
            case AgentEventType.TOOL_CALL_DELTA:
                await self._input(event.tool_call_delta)
            case AgentEventType.MODEL_COMPLETED if event.response is not None:
                await self._response(event.response)
            case AgentEventType.TOOL_STARTED:
                for call in event.tool_calls:
                    await emit("tool-start", call_id=call.id)
            case AgentEventType.TOOL_COMPLETED | AgentEventType.TOOL_FAILED | AgentEventType.TOOL_SKIPPED:
                await self._answer(event)
            case AgentEventType.SERVER_TOOL_STARTED if event.server_tool_call is not None:
                hosted = event.server_tool_call
                await emit("tool-call", call_id=hosted.id, tool=hosted.name, input=dict(hosted.input or {}))
                await emit("tool-start", call_id=hosted.id)
            case AgentEventType.SERVER_TOOL_COMPLETED if event.server_tool_result is not None:
                result = event.server_tool_result
                await emit("tool-result", call_id=result.call_id, output=result.output)
            case AgentEventType.SERVER_TOOL_FAILED if event.server_tool_result is not None:
                result = event.server_tool_result
                await self._failed(result.call_id, result.error_code or "failed", "failed")
            case AgentEventType.CUSTOM:
                await emit("custom", name=event.name, data=event.payload)

    async def _step(self) -> None:
        await self.close()
        self._in_step = True
        self._spoke = False
        self._names.clear()
        self._begun.clear()
        await self._emit("step-start")

    async def _input(self, delta: Any) -> None:
        call_id, tool = self._names.get(delta.index, ("", ""))
        call_id, tool = call_id + delta.id_delta, tool + delta.name_delta
        self._names[delta.index] = (call_id, tool)
        if not delta.arguments_delta or not call_id:
            return
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            await self._emit("tool-input-start", call_id=call_id, tool=tool)
        await self._emit("tool-input-delta", call_id=call_id, text=delta.arguments_delta)

    async def _response(self, response: ModelResponse) -> None:
        message, stop = response.message, response.stop
        if message.content and not self._spoke:
            await self._emit("text-delta", text=message.content)
        for call in message.tool_calls:
            await self._emit("tool-call", call_id=call.id, tool=call.name, input=call.arguments)
        self._usage = _usage(response.usage)
        self.finish = "stop" if stop is None else _FINISH.get(stop.reason, "other")

    async def _answer(self, event: AgentEvent) -> None:
        for call in event.tool_calls:
            text = event.message.text if isinstance(event.message, theirs.ToolMessage) else ""
            match event.type:
                case AgentEventType.TOOL_COMPLETED:
                    await self._emit("tool-result", call_id=call.id, output=_output(text))
                case AgentEventType.TOOL_FAILED:
                    await self._failed(call.id, text or type(event.error).__name__, "failed")
                case _:
                    await self._failed(call.id, text or "Tool was not started", "not_run")

    async def _failed(self, call_id: str, error: str, outcome: str) -> None:
        await self._emit("tool-error", call_id=call_id, error=error, interrupted=False, outcome=outcome)

    async def close(self) -> None:
        """End the step, if one is open."""
        if self._in_step:
            self._in_step = False
            await self._emit("step-finish", finish_reason=self.finish, usage=self._usage)
            self._usage = None


def _usage(measured: ModelUsage) -> Usage | None:
    if not (measured.input_tokens or measured.output_tokens):
        return None
    usage: Usage = {"input_tokens": measured.input_tokens, "output_tokens": measured.output_tokens}
    if measured.reasoning_tokens:
        usage["reasoning_tokens"] = measured.reasoning_tokens
    if measured.cache_read_tokens:
        usage["cached_tokens"] = measured.cache_read_tokens
    return usage


def _output(text: str) -> Any:
    """Give a tool's answer as data where it is JSON: zett-agent writes every return value down as text."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text)
        except ValueError:
            pass
    return text


def _message(turn: ModelMessage) -> Any:
    match turn:
        case UserMessage():
            return _user(turn)
        case ToolMessage(call_id, tool, content, is_error):
            return theirs.ToolMessage(tool_call_id=call_id, name=tool, content=content, success=not is_error)
        case AssistantMessage():
            calls = tuple(theirs.ToolCall(call.call_id, call.tool, call.input or {}) for call in turn.tool_calls)
            return theirs.AssistantMessage(content=turn.content, tool_calls=calls)


def _user(turn: UserMessage) -> Any:
    images = [_image(file) for file in turn.files if file["media_type"].startswith("image/")]
    if not images:
        return theirs.UserMessage(content=turn.content)
    return theirs.UserMessage(content=[theirs.TextContent(turn.content), *images])


def _image(file: FilePart) -> Any:
    if "data" in file:
        source: Any = theirs.ImageBytesSource(base64.b64decode(file["data"]), file["media_type"])
    else:
        source = theirs.ImageUrlSource(file.get("url", ""))
    return theirs.ImageContent(source)


def _translate_error(error: Exception) -> Exception:
    # By name: importing their providers would import every provider's library.
    names = {base.__name__ for base in type(error).__mro__}
    ours = provider_error(error)
    if ours is not error:
        return ours
    if "ProviderAuthError" in names:
        return AuthError("The provider refused the credentials")
    if "ProviderTimeoutError" in names:
        return APIError("The provider could not be reached")
    if "ProviderError" in names:
        return APIError("The provider's answer could not be read")
    return error
