"""History made valid for a model.

A stored conversation may end anywhere: mid text, mid call, after a crash. A provider refuses a call without an answer,
and text between the two. :func:`repair` settles what is open (idempotent: repairing twice changes nothing), and
:func:`model_messages` lays the messages out as the turns that a model expects.
"""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any, cast

from gateway.engine.approvals import EDITED
from gateway.engine.messages import AssistantMessage, ModelMessage, ToolCall, ToolMessage, UserMessage
from protocol.messages import LOST_ERROR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from protocol import messages as wire

CONTINUE_NOTE = (
    "[Your previous answer was interrupted at this point. Continue exactly where it stopped, without repeating what"
    " was said. A tool call that was interrupted may or may not have completed: do not assume either.]"
)
INTERRUPTED = "interrupted: may or may not have completed"
TRUNCATED = "\n[truncated: this is only the beginning]"

_ANSWERED = frozenset({"output-available", "output-error"})


def is_open(message: wire.Message) -> bool:
    """Say whether ``message`` is an assistant message that nobody has finished."""
    return message["role"] == "assistant" and message.get("completed_at") is None


def resumable(history: Sequence[wire.Message]) -> bool:
    """Say whether the last turn can be continued: it was stopped, it failed, or it was never answered.

    An empty open message at the end is the one that the gateway has just begun for this very run; it does not count.
    """
    for message in reversed(history):
        if message["role"] == "user":
            return True
        if is_open(message) and not message["parts"]:
            continue
        return message.get("error") is not None or is_open(message)
    return False


def repair(history: Iterable[wire.Message]) -> list[wire.Message]:
    """Give a copy of ``history`` with every open part, call and message settled, as start-up recovery would.

    Parts that no fold could have written (a result without a call) are left out. Idempotent and byte-stable.
    """
    return [_repair_message(message) for message in history]


def _repair_message(message: wire.Message) -> wire.Message:
    if message["role"] == "user":
        return message
    if not is_open(message) and all(_is_settled(part) for part in message["parts"]):
        return message
    repaired = copy.deepcopy(message)
    repaired["parts"] = [
        _repair_part(cast("Any", part)) for part in repaired["parts"] if part["type"] != "tool" or _is_call(part)
    ]
    if is_open(repaired):
        repaired["finish_reason"] = repaired["finish_reason"] or "error"
        repaired["error"] = repaired["error"] or LOST_ERROR.copy()
        repaired["completed_at"] = repaired["created_at"]
    return repaired


def _is_call(part: wire.ToolPart) -> bool:
    return bool(part.get("call_id")) and bool(part.get("tool"))


def _is_settled(part: wire.Part) -> bool:
    if part["type"] == "tool":
        return _is_call(part) and part.get("state") in _ANSWERED
    if part["type"] in ("text", "reasoning"):
        return part.get("state", "done") == "done"
    return True


def _repair_part(part: Any) -> wire.Part:
    if not _is_settled(part):
        if part["type"] == "tool":
            part["outcome"] = "unknown" if part.get("state") == "running" else "not_run"
            part["error"] = INTERRUPTED if part["outcome"] == "unknown" else "Tool was not started"
            part["interrupted"] = True
            part["state"] = "output-error"
        else:
            part["state"] = "done"
    return cast("wire.Part", part)


def model_messages(history: Sequence[wire.Message], *, resume: bool = False) -> list[ModelMessage]:
    """Lay out a history as turns: every call answered right after its step, no text in between.

    A turn that goes on after an interruption is preceded by a note that says so; reasoning of an interrupted turn,
    which has no signature, is left out. ``resume`` says that the last turn is to be continued.
    """
    turns: list[ModelMessage] = []
    for message in repair(history):
        if message["role"] == "user":
            turns.append(_user(message))
            continue
        steps = steps_of(message)
        if steps and turns and not isinstance(turns[-1], UserMessage):
            turns.append(UserMessage(CONTINUE_NOTE, note=True))
        turns.extend(steps)
    if resume and turns and not isinstance(turns[-1], UserMessage):
        turns.append(UserMessage(CONTINUE_NOTE, note=True))
    return turns


def _user(message: wire.UserMessage) -> UserMessage:
    return UserMessage(
        content="\n".join(part["text"] for part in message["parts"] if part["type"] == "text"),
        files=tuple(part for part in message["parts"] if part["type"] == "file"),
    )


def steps_of(message: wire.AssistantMessage) -> list[ModelMessage]:
    """Cut a message, every call of which is answered, into steps; what follows a call opens the next one."""
    turns: list[ModelMessage] = []
    text: list[str] = []
    reasoning: list[str] = []
    calls: list[wire.ToolPart] = []
    edits = {
        part["data"].get("request_id"): part["data"].get("input")
        for part in message["parts"]
        if part["type"] == "custom" and part["name"] == EDITED and isinstance(part["data"], dict)
    }

    def close() -> None:
        thoughts = "" if message["error"] is not None else "".join(reasoning)
        if text or calls or thoughts:
            turns.append(AssistantMessage("".join(text), thoughts, tuple(_call(part, edits) for part in calls)))
            turns.extend(_answer(part) for part in calls)
        text.clear()
        reasoning.clear()
        calls.clear()

    for part in message["parts"]:
        if part["type"] == "tool":
            calls.append(part)
        elif part["type"] == "text" or part["type"] == "reasoning":
            if calls:
                close()
            (text if part["type"] == "text" else reasoning).append(part["text"])
    close()
    return turns


def _call(part: wire.ToolPart, edits: Mapping[Any, Any]) -> ToolCall:
    arguments = part.get("input")
    if "approval" in part:  # what ran is what the person allowed
        arguments = edits.get(part["approval"]["request_id"], arguments)
    raw = part.get("raw_input", "")
    if not isinstance(arguments, dict):
        return ToolCall(part["call_id"], part["tool"], {}, raw)
    return ToolCall(part["call_id"], part["tool"], arguments, raw)


def _answer(part: wire.ToolPart) -> ToolMessage:
    if part["state"] == "output-available":
        output = part.get("output")
        content = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        return ToolMessage(part["call_id"], part["tool"], content + TRUNCATED if part.get("truncated") else content)
    error = part.get("error") or "failed"
    if part.get("outcome") in ("interrupted", "unknown") and not error.startswith("Timed out"):
        error = INTERRUPTED
    return ToolMessage(part["call_id"], part["tool"], error, is_error=True)
