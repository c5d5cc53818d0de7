"""Messages, parts, usage and errors: what the fold gives and what snapshots, history and prompts carry.

Server-side values are plain dicts typed here as TypedDicts: they are built once, encoded by orjson and folded without
a model in between. What a *client* sends is validated by the pydantic models of ``protocol.commands``.

Shapes are those of the contract (section "Messages"); times are integers, milliseconds since 1970.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict  # pydantic reads these, and before Python 3.12 only from here

PartState: TypeAlias = Literal["streaming", "done"]
ToolState: TypeAlias = Literal[
    "input-streaming", "input-available", "approval-requested", "running", "output-available", "output-error"
]
Outcome: TypeAlias = Literal["not_run", "interrupted", "unknown", "failed"]
Decision: TypeAlias = Literal["allow", "deny", "withdrawn", "expired"]
ErrorReason: TypeAlias = Literal[
    "AbortError",
    "APIError",
    "AuthError",
    "RateLimitError",
    "ContextOverflowError",
    "OutputLengthError",
    "ContentFilterError",
    "ToolError",
    "InterruptedError",
    "UnknownError",
]


class MessageError(TypedDict):
    """The error on an assistant message and on ``run-finish``."""

    reason: ErrorReason
    message: str | None
    code: str | None
    status_code: int | None
    retryable: bool | None


ABORT_ERROR: MessageError = {
    "reason": "AbortError",
    "message": "Aborted",
    "code": None,
    "status_code": None,
    "retryable": None,
}
"""An aborted run's error, exactly this: no provider detail is ever looked at once a run is aborted."""

LOST_ERROR: MessageError = {
    "reason": "InterruptedError",
    "message": "The server stopped during this run",
    "code": None,
    "status_code": None,
    "retryable": True,
}
"""The error of a run whose process died; start-up recovery writes it."""


class Usage(TypedDict):
    """Tokens of a step or a message; a missing or null usage means *not measured*, never zero."""

    input_tokens: int
    output_tokens: int
    reasoning_tokens: NotRequired[int]
    cached_tokens: NotRequired[int]
    cost: NotRequired[float]


class TextPart(TypedDict):
    """Text or reasoning. ``part_id`` and ``state`` are absent in user messages."""

    type: Literal["text", "reasoning"]
    text: str
    part_id: NotRequired[str]
    state: NotRequired[PartState]
    truncated: NotRequired[bool]


class Approval(TypedDict):
    """A person's part in a tool call."""

    request_id: str
    decision: NotRequired[Decision]


class ToolPart(TypedDict):
    """One tool call from its first streamed argument to its result."""

    type: Literal["tool"]
    part_id: str
    call_id: str
    tool: str
    state: ToolState
    raw_input: NotRequired[str]
    input: NotRequired[Any]
    progress: NotRequired[Any]
    output: NotRequired[Any]
    error: NotRequired[str]
    interrupted: NotRequired[bool]
    outcome: NotRequired[Outcome]
    approval: NotRequired[Approval]
    started_at: NotRequired[int]
    ended_at: NotRequired[int]
    truncated: NotRequired[bool]


class FilePart(TypedDict):
    """A file, by address or as base64 data."""

    type: Literal["file"]
    media_type: str
    name: NotRequired[str]
    url: NotRequired[str]
    data: NotRequired[str]


class CustomPart(TypedDict):
    """Whatever an engine wants to show in the middle of a message."""

    type: Literal["custom"]
    name: str
    data: Any
    truncated: NotRequired[bool]


Part: TypeAlias = TextPart | ToolPart | FilePart | CustomPart


class UserMessage(TypedDict):
    """What a person said."""

    id: str
    role: Literal["user"]
    parts: list[Part]
    created_at: int
    metadata: NotRequired[dict[str, Any]]


class AssistantMessage(TypedDict):
    """What an agent said and did in one run; the last four are null until known."""

    id: str
    role: Literal["assistant"]
    run_id: str
    parts: list[Part]
    finish_reason: str | None
    usage: Usage | None
    error: MessageError | None
    created_at: int
    completed_at: int | None


Message: TypeAlias = UserMessage | AssistantMessage


def add_usage(total: Usage | None, step: Usage | None) -> Usage | None:
    """Sum two usages, where null is "not measured": a sum of nothing measured stays null."""
    if step is None:
        return total
    if total is None:
        return step.copy()
    summed: dict[str, Any] = dict(total)
    for name, amount in step.items():
        summed[name] = summed.get(name, 0) + amount
    return summed  # type: ignore[return-value]  # the keys are Usage's: both inputs are
