"""The offline model: deterministic, needs no key, streams word by word.

Without a script it reacts to the last thing the person said, so that a new user sees streaming, reasoning, a slow tool,
an error and Stop at once. With one it plays the given steps to the letter: the test double of the engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.engine.errors import APIError
from gateway.engine.messages import AssistantMessage, ToolCall, ToolMessage, UserMessage
from gateway.engine.model import ModelEvent, ModelResponse, RetryOptions
from gateway.engine.models.answers import answer_to

if TYPE_CHECKING:
    from gateway.engine.model import ModelRequest
    from protocol.messages import Usage

DEFAULT_PACE_S = 0.04
"""Seconds per word: 25 words a second, a brisk reader's pace."""


@dataclass(frozen=True, slots=True)
class Text:
    """Say ``text``, word by word."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Think ``text``, word by word."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """Call ``tool``; its arguments stream as raw JSON, cut after ``cut`` characters where that is given."""

    tool: str
    input: dict[str, Any] = field(default_factory=dict)
    call_id: str = ""
    raw: str | None = None
    cut: int | None = None


@dataclass(frozen=True, slots=True)
class Fail:
    """Raise ``error``."""

    error: Exception


@dataclass(slots=True)
class Hang:
    """Wait until cancelled; ``reached`` is set on arrival, ``left`` once the cancellation came through."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class Do:
    """Call ``function`` at this point of the stream, to set an event in the middle of it for one."""

    function: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Finish:
    """End the step with this reason and usage (None = not measured) instead of counted words."""

    reason: str = "stop"
    usage: Usage | None = None


Action: TypeAlias = Text | Reasoning | Call | Fail | Hang | Do | Finish | str
Step: TypeAlias = Action | Sequence[Action]


class ScriptedModel:
    """A model that follows a script.

    ``script`` holds one entry per request: an action or a list of them; a plain string is text. Requests beyond its end
    get an empty answer. Without a script the answers depend on the person's last message, see ``models.answers``: where
    it begins with the name of an offered tool (``weather Rome``, ``weather {"city": "Rome"}``), that is called.
    ``pace_s`` is the pause after each word in seconds, 0 for flat out; default the environment variable
    ``GATEWAY_SCRIPTED_PACE``, else 0.04 (0 where there is a script). ``requests`` keeps what was asked of a script.
    """

    def __init__(
        self,
        script: Iterable[Step] | None = None,
        *,
        pace_s: float | None = None,
        retry: RetryOptions | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._script = None if script is None else [_actions(step) for step in script]
        if pace_s is None:
            pace_s = float(os.environ.get("GATEWAY_SCRIPTED_PACE", DEFAULT_PACE_S)) if script is None else 0.0
        self.pace_s = pace_s
        self.retry = retry if retry is not None else RetryOptions(max_retries=0)
        self.requests: list[ModelRequest] = []
        self._sleep = sleep

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Play the next step."""
        if self._script is None:
            actions = _react(request)
        else:
            self.requests.append(request)
            index = len(self.requests) - 1
            actions = self._script[index] if index < len(self._script) else []
        said = _Said()
        for action in actions:
            if isinstance(action, Finish):
                yield ModelEvent.completed(ModelResponse(said.message(), action.reason, action.usage))
                return
            async for event in self._play(action, said):
                yield event
        reason = "tool-calls" if said.calls else "stop"
        yield ModelEvent.completed(ModelResponse(said.message(), reason, said.usage(request)))

    async def _play(self, action: Action, said: _Said) -> AsyncIterator[ModelEvent]:
        match action:
            case str(text) | Text(text):
                for word in words(text):
                    said.text.append(word)
                    yield ModelEvent.text(word)
                    await self._pause()
            case Reasoning(text):
                for word in words(text):
                    said.reasoning.append(word)
                    yield ModelEvent.reasoning(word)
                    await self._pause()
            case Call():
                async for event in self._call(action, said):
                    yield event
            case Fail(error):
                raise error
            case Hang(reached, left):
                reached.set()
                try:
                    await asyncio.get_running_loop().create_future()
                finally:
                    left.set()
            case Do(function):
                function()

    async def _call(self, action: Call, said: _Said) -> AsyncIterator[ModelEvent]:
        raw = action.raw if action.raw is not None else _json(action.input)
        call_id = action.call_id or f"call_{len(said.calls) + 1}"
        yield ModelEvent.tool_input_start(call_id, action.tool)
        for piece in words(raw if action.cut is None else raw[: action.cut]):
            yield ModelEvent.tool_input_delta(call_id, piece)
            await self._pause()
        if action.cut is None:
            call = ToolCall(call_id, action.tool, action.input if action.raw is None else None, raw)
            said.calls.append(call)
            yield ModelEvent.tool_call(call)

    async def _pause(self) -> None:
        if self.pace_s > 0:
            await self._sleep(self.pace_s)


@dataclass(slots=True)
class _Said:
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def message(self) -> AssistantMessage:
        return AssistantMessage("".join(self.text), "".join(self.reasoning), tuple(self.calls))

    def usage(self, request: ModelRequest) -> Usage:
        asked = sum(len(turn.content.split()) for turn in request.messages)
        usage: Usage = {"input_tokens": asked, "output_tokens": len(self.text) + len(self.reasoning)}
        if self.reasoning:
            usage["reasoning_tokens"] = len(self.reasoning)
        return usage


def words(text: str) -> list[str]:
    """Cut ``text`` into words, each with the white space after it; joined they are the text again."""
    return re.findall(r"\s*\S+\s*", text) if text.strip() else ([text] if text else [])


def _actions(step: Step) -> list[Action]:
    return list(step) if isinstance(step, Sequence) and not isinstance(step, str) else [step]


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _react(request: ModelRequest) -> list[Action]:
    """Choose the next step of the answer to the person's last message, going on where an earlier attempt stopped."""
    turns = list(request.messages)
    asked = max((i for i, turn in enumerate(turns) if isinstance(turn, UserMessage) and not turn.note), default=-1)
    question = turns[asked].content if asked >= 0 else ""
    since = turns[asked + 1 :]
    said = "".join(turn.content for turn in since if isinstance(turn, AssistantMessage))
    results = [turn for turn in since if isinstance(turn, ToolMessage)]
    resumed = any(isinstance(turn, UserMessage) for turn in since)
    answer = answer_to(question, {tool.name: tool.schema for tool in request.tools})

    actions: list[Action] = []
    if answer.reasoning and not said and not results:
        actions.append(Reasoning(answer.reasoning))
    if answer.breaks_after is not None and not resumed:
        return [
            *actions,
            Text(answer.breaks_after),
            Fail(APIError("The scripted model was asked to fail", status_code=503)),
        ]
    if answer.call is not None and not results:
        actions.append(Text(_rest(answer.text, said)))
        tool, arguments = answer.call
        return [*actions, Call(tool, arguments, call_id=f"call_{asked + 1}_{len(turns)}")]
    script = answer.text + answer.after(results[-1].content, results[-1].is_error) if results else answer.text
    return [*actions, Text(_rest(script, said))]


def _rest(script: str, said: str) -> str:
    return script[len(said) :] if script.startswith(said) else script
