"""The sequenced events of a session: durable, replayed, folded into messages.

Every event has ``type``, ``session_id``, ``seq`` and ``run_id``; all but deltas and progress have ``time`` (integer,
milliseconds since 1970). An engine yields the same events without that envelope.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict  # pydantic reads these, and before Python 3.12 only from here

from protocol.messages import Decision, MessageError, Outcome, Usage, UserMessage

AbortReason: TypeAlias = Literal["user", "superseded", "disconnect", "deadline", "shutdown", "policy"]
RunStatus: TypeAlias = Literal["completed", "aborted", "failed", "lost"]
DequeueReason: TypeAlias = Literal["abort", "disconnect", "shutdown", "lost"]
Mode: TypeAlias = Literal["prompt", "resume"]

DELTAS: frozenset[str] = frozenset({"text-delta", "reasoning-delta", "tool-input-delta"})
"""Types whose neighbours of one part may be joined or merged."""

UNTIMED: frozenset[str] = DELTAS | {"tool-progress"}
"""Types without ``time``: they come too often to pay for it."""


class _Envelope(TypedDict):
    session_id: str
    seq: int
    run_id: str


class _Timed(_Envelope):
    time: int


class Queued(_Timed):
    """A prompt waits its turn."""

    type: Literal["queued"]
    message: UserMessage
    command_id: NotRequired[str]


class Dequeued(_Timed):
    """A waiting prompt will never run."""

    type: Literal["dequeued"]
    reason: DequeueReason


class MessagesRemoved(_Timed):
    """A message and all after it are gone (edit, regenerate)."""

    type: Literal["messages-removed"]
    from_message_id: str


class MessageAdded(_Timed):
    """A user message, complete."""

    type: Literal["message-added"]
    message: UserMessage
    command_id: NotRequired[str]


class RunStart(_Timed):
    """An engine execution begins."""

    type: Literal["run-start"]
    mode: Mode
    command_id: NotRequired[str]


class MessageStart(_Timed):
    """An assistant message opens."""

    type: Literal["message-start"]
    message_id: str
    role: Literal["assistant"]


class StepStart(_Timed):
    """A model call and its tools begin."""

    type: Literal["step-start"]
    message_id: str
    step: int


class PartBoundary(_Timed):
    """A text or reasoning part opens or closes."""

    type: Literal["text-start", "text-end", "reasoning-start", "reasoning-end"]
    message_id: str
    part_id: str


Delta = TypedDict(
    "Delta",
    {
        "type": Literal["text-delta", "reasoning-delta"],
        "session_id": str,
        "seq": int,
        "run_id": str,
        "message_id": str,
        "part_id": str,
        "text": str,
        "from": NotRequired[int],
        "truncated": NotRequired[bool],
    },
)
"""More text of an open part."""

ToolInputDelta = TypedDict(
    "ToolInputDelta",
    {
        "type": Literal["tool-input-delta"],
        "session_id": str,
        "seq": int,
        "run_id": str,
        "message_id": str,
        "part_id": str,
        "call_id": str,
        "tool": str,
        "text": str,
        "from": NotRequired[int],
        "truncated": NotRequired[bool],
    },
)
"""More raw JSON of a tool's arguments, for display."""


class ToolInputStart(_Timed):
    """A tool's arguments begin to stream."""

    type: Literal["tool-input-start"]
    message_id: str
    part_id: str
    call_id: str
    tool: str


class ToolCall(_Timed):
    """A tool call is complete and will run."""

    type: Literal["tool-call"]
    message_id: str
    part_id: str
    call_id: str
    tool: str
    input: Any
    truncated: NotRequired[bool]


class ApprovalRequest(_Timed):
    """A person has to decide."""

    type: Literal["approval-request"]
    request_id: str
    call_id: str
    tool: str
    input: Any
    expires_at: NotRequired[int]


class ApprovalResolved(_Timed):
    """The decision fell, or nobody needs it any more."""

    type: Literal["approval-resolved"]
    request_id: str
    decision: Decision


class ToolStart(_Timed):
    """The tool runs now."""

    type: Literal["tool-start"]
    call_id: str


class ToolProgress(_Envelope):
    """Replaces the last progress of the call."""

    type: Literal["tool-progress"]
    call_id: str
    data: Any
    truncated: NotRequired[bool]


class ToolResult(_Timed):
    """The tool returned."""

    type: Literal["tool-result"]
    call_id: str
    output: Any
    truncated: NotRequired[bool]


class ToolError(_Timed):
    """The tool failed, was interrupted, or never ran."""

    type: Literal["tool-error"]
    call_id: str
    error: str
    interrupted: bool
    outcome: Outcome
    truncated: NotRequired[bool]


class Retry(_Timed):
    """The model call failed and is tried again after ``delay_s``."""

    type: Literal["retry"]
    attempt: int
    delay_s: float
    error: Any


class StepFinish(_Timed):
    """The step and its tools are done; ``usage`` null means not measured."""

    type: Literal["step-finish"]
    message_id: str
    step: int
    finish_reason: str
    usage: Usage | None


class AbortRequested(_Timed):
    """Abort, phase one: asked for."""

    type: Literal["abort-requested"]
    reason: AbortReason
    detail: NotRequired[str]


class MessageFinish(_Timed):
    """The assistant message is final."""

    type: Literal["message-finish"]
    message_id: str
    finish_reason: str
    usage: Usage | None
    error: MessageError | None


class RunFinish(_Timed):
    """Abort, phase two, or the ordinary end: the last event that bears its ``run_id``."""

    type: Literal["run-finish"]
    status: RunStatus
    reason: str | None
    error: MessageError | None
    settled: bool


class Custom(_Timed):
    """Whatever an engine wants to tell the page."""

    type: Literal["custom"]
    name: str
    data: Any
    message_id: NotRequired[str]
    truncated: NotRequired[bool]


Event: TypeAlias = (
    Queued
    | Dequeued
    | MessagesRemoved
    | MessageAdded
    | RunStart
    | MessageStart
    | StepStart
    | PartBoundary
    | Delta
    | ToolInputDelta
    | ToolInputStart
    | ToolCall
    | ApprovalRequest
    | ApprovalResolved
    | ToolStart
    | ToolProgress
    | ToolResult
    | ToolError
    | Retry
    | StepFinish
    | AbortRequested
    | MessageFinish
    | RunFinish
    | Custom
)
