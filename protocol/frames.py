"""Connection frames and the session frames that are not in the log: server → client.

Shapes are TypedDicts; the functions build them without optional fields that have nothing to say.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias

from typing_extensions import TypedDict  # pydantic reads these, and before Python 3.12 only from here

from protocol.commands import Role
from protocol.errors import CommandError, ErrorCode
from protocol.messages import Message, UserMessage

PROTOCOL_VERSION = 1
SUBPROTOCOL = "agent-gateway.v1"

Status: TypeAlias = Literal["idle", "running", "waiting", "aborting"]
Recovery: TypeAlias = Literal["live", "replay", "snapshot"]
AbortState: TypeAlias = Literal["requested", "already_requested", "dequeued", "too_late", "latched"]


class LimitsInfo(TypedDict):
    """What this server takes: bytes, counts, commands per second."""

    max_frame_bytes: int
    max_sessions: int
    commands_per_s: float
    max_queue: int
    max_message_bytes: int
    batch_bytes: int


class Welcome(TypedDict):
    """The reply to ``hello``."""

    type: Literal["welcome"]
    id: NotRequired[str]
    protocol: int
    connection_id: str
    server: str
    heartbeat_s: float
    limits: LimitsInfo
    auth_expires_at: NotRequired[int]


class AbortedRun(TypedDict):
    """What an abort did to one run; a latched one has no ids yet."""

    session_id: str | None
    run_id: str | None
    state: AbortState


class Ack(TypedDict):
    """A command took effect."""

    type: Literal["ack"]
    id: NotRequired[str]
    command: str
    session_id: NotRequired[str]
    run_id: NotRequired[str]
    duplicate: NotRequired[bool]
    queued: NotRequired[int]
    runs: NotRequired[list[AbortedRun]]
    auth_expires_at: NotRequired[int]


class ErrorFrame(TypedDict):
    """A command failed, or the gateway has something to say about a session."""

    type: Literal["error"]
    id: NotRequired[str]
    session_id: NotRequired[str]
    code: ErrorCode
    message: str
    retryable: bool
    retry_after_s: NotRequired[float]


class Pong(TypedDict):
    """The reply to ``ping``; without ``id`` the server's heartbeat."""

    type: Literal["pong"]
    id: NotRequired[str]


class GoAway(TypedDict):
    """The server is about to leave: open a new socket, then leave this one."""

    type: Literal["goaway"]
    reason: str
    retry_after_s: float


class SessionChanged(TypedDict):
    """A line of the live session list."""

    type: Literal["session-changed"]
    session_id: str
    title: str | None
    status: Status
    updated_at: int
    deleted: NotRequired[bool]


class Attached(TypedDict):
    """A cursor stands; what follows depends on ``recovery``."""

    type: Literal["attached"]
    id: NotRequired[str]
    session_id: str
    epoch: str
    seq: int
    recovery: Recovery
    status: Status
    role: Role


class Pending(TypedDict):
    """An open approval."""

    request_id: str
    call_id: str
    tool: str
    input: Any
    expires_at: NotRequired[int]


class QueueEntry(TypedDict):
    """A prompt that waits."""

    run_id: str
    message: UserMessage
    command_id: NotRequired[str]


class Snapshot(TypedDict):
    """Replaces what the client holds of the session."""

    type: Literal["snapshot"]
    session_id: str
    epoch: str
    seq: int
    status: Status
    run_id: str | None
    resumable: bool
    messages: list[Message]
    has_more: bool
    pending: list[Pending]
    queue: list[QueueEntry]


class HistoryPage(TypedDict):
    """Older messages, oldest first."""

    type: Literal["history"]
    id: NotRequired[str]
    session_id: str
    messages: list[Message]
    has_more: bool


class Detached(TypedDict):
    """The subscription has ended."""

    type: Literal["detached"]
    session_id: str
    reason: Literal["deleted", "forbidden", "evicted"]


Frame: TypeAlias = dict[str, Any]
ServerFrame: TypeAlias = (
    Welcome | Ack | ErrorFrame | Pong | GoAway | SessionChanged | Attached | Snapshot | HistoryPage | Detached
)


def build(type_: str, id_: str | None = None, /, **fields: Any) -> Frame:
    """Build a frame; fields that are None and ``id`` without value stay out (use a literal for a real null)."""
    frame: Frame = {"type": type_}
    if id_ is not None:
        frame["id"] = id_
    for name, value in fields.items():
        if value is not None:
            frame[name] = value
    return frame


def ack(command: str, id_: str | None = None, **fields: Any) -> Frame:
    """Build an ``ack`` of ``command``."""
    return build("ack", id_, command=command, **fields)


def error(exc: CommandError, id_: str | None = None, session_id: str | None = None) -> Frame:
    """Build the ``error`` frame of a command error."""
    return build(
        "error",
        id_,
        session_id=session_id,
        code=exc.code,
        message=exc.message,
        retryable=exc.retryable,
        retry_after_s=exc.retry_after_s,
    )


def pong(id_: str | None = None) -> Frame:
    """Build a ``pong``."""
    return build("pong", id_)
