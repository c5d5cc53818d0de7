"""A face for scripts and notebooks: ``client = await create_agent(model)``, ``await client.run("…")``.

The client owns a conversation and a fresh abort event per run: to stop one, leave its stream.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from gateway.engine.agent import Agent
from gateway.engine.errors import AbortError, APIError, EngineError
from gateway.engine.messages import AssistantMessage, new_id, user_message

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from gateway.engine.errors import AssistantMessageError
    from gateway.engine.extensions import AgentExtension
    from gateway.engine.model import Model
    from gateway.engine.port import Mode
    from gateway.engine.store import SessionStore
    from gateway.engine.tools import Tool
    from protocol.messages import Message


class AgentEventType(StrEnum):
    """The types of a run's events, as the protocol spells them."""

    MESSAGE_ADDED = "message-added"
    MESSAGE_START = "message-start"
    STEP_START = "step-start"
    TEXT_START = "text-start"
    TEXT_DELTA = "text-delta"
    TEXT_END = "text-end"
    REASONING_START = "reasoning-start"
    REASONING_DELTA = "reasoning-delta"
    REASONING_END = "reasoning-end"
    TOOL_INPUT_START = "tool-input-start"
    TOOL_INPUT_DELTA = "tool-input-delta"
    TOOL_CALL = "tool-call"
    APPROVAL_REQUEST = "approval-request"
    APPROVAL_RESOLVED = "approval-resolved"
    TOOL_START = "tool-start"
    TOOL_PROGRESS = "tool-progress"
    TOOL_RESULT = "tool-result"
    TOOL_ERROR = "tool-error"
    RETRY = "retry"
    STEP_FINISH = "step-finish"
    MESSAGE_FINISH = "message-finish"
    RUN_FINISH = "run-finish"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event; its fields are attributes (``event.text``) and, as they came, in ``data``."""

    type: AgentEventType
    data: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(f"a {self.type} event has no field {name}") from None


class AgentClient:
    """One conversation with an agent."""

    def __init__(self, agent: Agent, *, session_id: str | None = None) -> None:
        self.agent = agent
        self.session_id = session_id or new_id("ses")

    async def stream(self, text: str) -> AsyncGenerator[AgentEvent, None]:
        """Say ``text`` and yield what happens; leaving early (``aclosing``, ``break``) stops the run and seals it."""
        async with aclosing(self._events("prompt", [user_message(text)])) as events:
            async for event in events:
                yield event

    async def run(self, text: str) -> AssistantMessage:
        """Say ``text`` and give the answer. Raises the run's error where it failed."""
        return await self._answer("prompt", [user_message(text)])

    async def resume(self) -> AssistantMessage:
        """Continue the last turn after it was stopped or failed. Raises :exc:`NotResumable` where it is complete."""
        return await self._answer("resume", [])

    async def _events(self, mode: Mode, messages: Sequence[Message]) -> AsyncGenerator[AgentEvent, None]:
        run = self.agent.stream(abort=asyncio.Event(), mode=mode, session_id=self.session_id, messages=messages)
        async with aclosing(run) as events:
            async for event in events:
                yield AgentEvent(AgentEventType(event["type"]), event)

    async def _answer(self, mode: Mode, messages: Sequence[Message]) -> AssistantMessage:
        result = await self.agent.invoke(
            abort=asyncio.Event(), mode=mode, session_id=self.session_id, messages=messages
        )
        if result.error is not None:
            raise _exception(result.error)
        return result


async def create_agent(
    model: Model,
    *,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    extensions: Sequence[AgentExtension] = (),
    store: SessionStore | None = None,
    system_prompt: str | None = None,
    max_steps: int = 50,
    abort_grace_s: float = 5.0,
    session_id: str | None = None,
    **options: Any,
) -> AgentClient:
    """Make an agent and a conversation with it; the parameters are those of :class:`Agent`."""
    agent = Agent(
        model,
        tools=tools,
        extensions=extensions,
        store=store,
        system_prompt=system_prompt,
        max_steps=max_steps,
        abort_grace_s=abort_grace_s,
        **options,
    )
    return AgentClient(agent, session_id=session_id)


def _exception(error: AssistantMessageError) -> EngineError:
    if error.reason == "AbortError":
        return AbortError()
    kinds = {kind.reason: kind for kind in _subclasses(EngineError)}
    kind = cast("type[APIError]", kinds.get(error.reason, EngineError))
    return kind(error.message or "", code=error.code, status_code=error.status_code, retryable=error.retryable)


def _subclasses(kind: type[EngineError]) -> list[type[EngineError]]:
    return [sub for direct in kind.__subclasses__() for sub in (direct, *_subclasses(direct))]
