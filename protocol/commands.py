"""Commands: what a client may send, as one discriminated union of pydantic models.

Validation is strict (no ``"5"`` for ``5``); fields that v1 does not know are ignored, so that a newer client can talk
to an older server. Unknown types and wrong fields become :exc:`~protocol.errors.CommandError` in ``protocol.codec``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

MAX_SEQ = 2**53 - 1
"""The largest ``seq``: beyond it a JavaScript number is no longer exact."""

SessionId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:\-]{1,128}$")]
CommandId = Annotated[str, StringConstraints(min_length=1, max_length=128)]
ItemId = Annotated[str, StringConstraints(min_length=1, max_length=256)]
Seconds = Annotated[float, Field(ge=0, le=86_400, allow_inf_nan=False)]
Role: TypeAlias = Literal["owner", "observer"]
OnBusy: TypeAlias = Literal["reject", "queue", "interrupt", "steer"]
OnDisconnect: TypeAlias = Literal["abort", "continue"]
OnLost: TypeAlias = Literal["seal", "resume"]


class _Frame(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")


class _Command(_Frame):
    id: CommandId | None = None


class InputText(_Frame):
    """Text of a user message."""

    type: Literal["text"]
    text: str


class InputFile(_Frame):
    """A file in a user message: exactly one of ``url`` and ``data`` (base64)."""

    type: Literal["file"]
    media_type: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    name: str | None = None
    url: str | None = None
    data: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> InputFile:
        if (self.url is None) == (self.data is None):
            raise ValueError("a file part has exactly one of url and data")
        return self


class InputCustom(_Frame):
    """Application data in a user message."""

    type: Literal["custom"]
    name: str
    data: Any = None


InputPart = Annotated[InputText | InputFile | InputCustom, Field(discriminator="type")]


class InputMessage(_Frame):
    """A user message in a prompt: ``{role: "user", parts}`` suffices."""

    role: Literal["user"]
    parts: Annotated[list[InputPart], Field(min_length=1, max_length=1000)]
    id: ItemId | None = None
    metadata: dict[str, Any] | None = None


class AttachTarget(_Frame):
    """Where a cursor starts: after ``seq`` of the log ``epoch``; without ``seq``, at a snapshot."""

    session_id: SessionId
    epoch: str | None = None
    seq: Annotated[int, Field(ge=0, le=MAX_SEQ)] | None = None
    role: Role = "owner"


class Hello(_Command):
    """Opens the connection."""

    type: Literal["hello"] = "hello"
    token: str | None = None
    client: Any = None
    batch: bool = False
    attach: Annotated[list[AttachTarget], Field(max_length=10_000)] = []


class _RunOptions(_Command):
    on_disconnect: OnDisconnect = "abort"
    grace_s: Seconds | None = None
    deadline_s: Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)] | None = None


class Prompt(_RunOptions):
    """Starts a run, or queues it."""

    type: Literal["prompt"] = "prompt"
    session_id: SessionId | None = None
    text: Annotated[str, StringConstraints(min_length=1)] | None = None
    messages: Annotated[list[InputMessage], Field(min_length=1, max_length=100)] | None = None
    on_busy: OnBusy = "reject"
    on_lost: OnLost = "seal"
    replaces: ItemId | None = None
    metadata: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _one_content(self) -> Prompt:
        if (self.text is None) == (self.messages is None):
            raise ValueError("a prompt has exactly one of text and messages")
        return self


class Resume(_RunOptions):
    """Continues the last turn without a new user message."""

    type: Literal["resume"] = "resume"
    session_id: SessionId


class Abort(_Command):
    """Sets the abort event of one run, of a session's run, or of every run this connection owns."""

    type: Literal["abort"] = "abort"
    session_id: SessionId | None = None
    run_id: ItemId | None = None
    command_id: CommandId | None = None
    reason: Annotated[str, StringConstraints(max_length=1000)] | None = None


class Attach(_Command, AttachTarget):
    """Subscribes to a session's events."""

    type: Literal["attach"] = "attach"


class Detach(_Command):
    """Stops a session's events."""

    type: Literal["detach"] = "detach"
    session_id: SessionId
    run: Literal["continue", "abort"] = "continue"


class Respond(_Command):
    """Answers an ``approval-request``."""

    type: Literal["respond"] = "respond"
    session_id: SessionId
    request_id: ItemId
    decision: Literal["allow", "deny"]
    value: Any = None


class History(_Command):
    """Asks for messages older than ``before``."""

    type: Literal["history"] = "history"
    session_id: SessionId
    before: ItemId | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


class Watch(_Command):
    """Turns the live session list on or off."""

    type: Literal["watch"] = "watch"
    on: bool


class Ping(_Command):
    """Answered by ``pong``."""

    type: Literal["ping"] = "ping"


Command: TypeAlias = Hello | Prompt | Resume | Abort | Attach | Detach | Respond | History | Watch | Ping
DiscriminatedCommand = Annotated[Command, Field(discriminator="type")]
COMMAND_TYPES: tuple[str, ...] = (
    "hello",
    "prompt",
    "resume",
    "abort",
    "attach",
    "detach",
    "respond",
    "history",
    "watch",
    "ping",
)
