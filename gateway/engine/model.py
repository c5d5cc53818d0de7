"""The model port: what the loop asks of a language model.

A model is any object with a ``retry`` and an async generator ``stream(request)``. It yields what arrives, as it
arrives, and one ``completed`` at the end. Cancelling the task that pulls the stream must close the provider's
connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from gateway.engine.messages import AssistantMessage, ModelMessage, ToolCall
    from protocol.messages import Usage


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How often a request is sent again while nothing of its answer has been seen.

    The n-th pause is ``base_delay_s · 2ⁿ``, at most ``max_delay_s``; a provider's retry-after wins where it is longer.
    """

    max_retries: int = 3
    base_delay_s: float = 2.0
    max_delay_s: float = 30.0

    def delay(self, attempt: int, retry_after: float | None = None) -> float:
        """Give the seconds to wait before retry number ``attempt`` (1…)."""
        backoff = min(self.base_delay_s * 2.0 ** (attempt - 1), self.max_delay_s)
        return max(backoff, retry_after or 0.0)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it; ``schema`` is the JSON Schema of its arguments."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request: the history (valid: every call answered), the system prompt and the tools."""

    messages: Sequence[ModelMessage]
    system_prompt: str | None = None
    tools: Sequence[ToolSpec] = ()


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """The end of a model's step. ``usage`` None means not measured.

    ``finish_reason`` is one of ``stop``, ``tool-calls``, ``length``, ``content-filter``, ``other``.
    """

    message: AssistantMessage
    finish_reason: str = "stop"
    usage: Usage | None = None


class ModelEvent:
    """One thing that a model streams; the constructors below are the closed list."""

    __slots__ = ()

    @staticmethod
    def text(delta: str) -> TextDelta:
        """More of the answer."""
        return TextDelta(delta)

    @staticmethod
    def reasoning(delta: str) -> ReasoningDelta:
        """More of the reasoning before an answer."""
        return ReasoningDelta(delta)

    @staticmethod
    def tool_input_start(call_id: str, tool: str) -> ToolInputStart:
        """A call begins; its arguments follow."""
        return ToolInputStart(call_id, tool)

    @staticmethod
    def tool_input_delta(call_id: str, delta: str) -> ToolInputDelta:
        """More of a call's arguments, raw JSON."""
        return ToolInputDelta(call_id, delta)

    @staticmethod
    def tool_call(call: ToolCall) -> ToolCallReady:
        """A call is complete."""
        return ToolCallReady(call)

    @staticmethod
    def completed(response: ModelResponse) -> Completed:
        """The step is over."""
        return Completed(response)


@dataclass(frozen=True, slots=True)
class TextDelta(ModelEvent):
    """See :meth:`ModelEvent.text`."""

    delta: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta(ModelEvent):
    """See :meth:`ModelEvent.reasoning`."""

    delta: str


@dataclass(frozen=True, slots=True)
class ToolInputStart(ModelEvent):
    """See :meth:`ModelEvent.tool_input_start`."""

    call_id: str
    tool: str


@dataclass(frozen=True, slots=True)
class ToolInputDelta(ModelEvent):
    """See :meth:`ModelEvent.tool_input_delta`."""

    call_id: str
    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallReady(ModelEvent):
    """See :meth:`ModelEvent.tool_call`."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Completed(ModelEvent):
    """See :meth:`ModelEvent.completed`."""

    response: ModelResponse = field()


class Model(Protocol):
    """A language model behind the loop. Errors are those of ``gateway.engine.errors``."""

    @property
    def retry(self) -> RetryOptions:
        """How failed requests are repeated."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Send ``request`` and yield its answer as it arrives, closed by one ``completed``."""
        ...
