"""The conversation as a model sees it, and the way there from the protocol's messages.

The protocol keeps one assistant message per run with everything in it. A model wants turns: what the assistant said and
called, then one answer per call, then the next step. ``wire`` names are the protocol's.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.engine.errors import AssistantMessageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from protocol import messages as wire


def new_id(prefix: str) -> str:
    """Make an id that sorts by time and never repeats: ``prefix_`` + 12 hex digits of milliseconds + 14 random."""
    return f"{prefix}_{time.time_ns() // 1_000_000:012x}{secrets.token_hex(7)}"


def now_ms() -> int:
    """Give the time as the protocol writes it: milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def user_message(
    text: str,
    *,
    files: Sequence[wire.FilePart] = (),
    message_id: str | None = None,
    metadata: dict[str, Any] | None = None,
) -> wire.UserMessage:
    """Write a user message, ready for ``agent.stream(messages=[…])``."""
    message: wire.UserMessage = {
        "id": message_id or new_id("msg"),
        "role": "user",
        "parts": [{"type": "text", "text": text}, *files],
        "created_at": now_ms(),
    }
    if metadata is not None:
        message["metadata"] = metadata
    return message


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call: ``input`` is parsed, or None where ``raw`` is no JSON object."""

    call_id: str
    tool: str
    input: dict[str, Any] | None
    raw: str = ""


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person said, or a ``note`` with which the engine explains the history to the model."""

    content: str
    files: tuple[wire.FilePart, ...] = ()
    note: bool = False


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The answer to one call."""

    call_id: str
    tool: str
    content: str
    is_error: bool = False


@dataclass(slots=True)
class AssistantMessage:
    """What an agent said. In a request it is one step; as a run's result it is the whole turn.

    ``parts``, ``finish_reason``, ``usage`` and ``error`` are filled in on a result.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    id: str = ""
    parts: list[wire.Part] = field(default_factory=list)
    finish_reason: str | None = None
    usage: wire.Usage | None = None
    error: AssistantMessageError | None = None

    @classmethod
    def from_wire(cls, message: wire.AssistantMessage) -> AssistantMessage:
        """Read a finished protocol message."""
        parts = message["parts"]
        error = message["error"]
        return cls(
            content="".join(part["text"] for part in parts if part["type"] == "text"),
            reasoning="".join(part["text"] for part in parts if part["type"] == "reasoning"),
            tool_calls=tuple(
                ToolCall(part["call_id"], part["tool"], part.get("input"), part.get("raw_input", ""))
                for part in parts
                if part["type"] == "tool"
            ),
            id=message["id"],
            parts=parts,
            finish_reason=message["finish_reason"],
            usage=message["usage"],
            error=AssistantMessageError(**error) if error else None,
        )


ModelMessage: TypeAlias = UserMessage | AssistantMessage | ToolMessage
