"""How a turn is closed: the one order in which open things end, whatever stopped the run.

Contract, invariants 3 and 4: approvals withdrawn, tool results and errors, part ends, ``step-finish``,
``message-finish``, ``run-finish``. Used by a live run that ends, and by recovery, which finds the open things in the
fold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protocol.messages import ABORT_ERROR, LOST_ERROR, MessageError, Usage, add_usage

if TYPE_CHECKING:
    from protocol.events import RunStatus
    from protocol.transcript import Transcript

Event = dict[str, Any]


@dataclass(slots=True)
class OpenTurn:
    """What is open in a run. ``parts``: part id → kind, in order; ``tools``: call id → has it started."""

    message_id: str | None
    step: int | None = None
    usage: Usage | None = None
    """The sum of the message's measured steps."""
    parts: dict[str, str] = field(default_factory=dict)
    tools: dict[str, bool] = field(default_factory=dict)
    approvals: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ends, and what an engine still said of it while it closed."""

    status: RunStatus
    finish_reason: str
    reason: str | None = None
    error: MessageError | None = None
    settled: bool = True
    step_usage: Usage | None = None
    message_usage: Usage | None = None
    tool_endings: dict[str, Event] = field(default_factory=dict)
    """Call id → the engine's own ``tool-result`` or ``tool-error``."""


LOST = Ending("lost", "lost", error=LOST_ERROR)
"""The process that ran the turn is gone."""


def aborted(reason: str, *, settled: bool = True) -> Ending:
    """Give the ending of an aborted run."""
    return Ending("aborted", "aborted", reason=reason, error=ABORT_ERROR, settled=settled)


def closing_events(turn: OpenTurn, ending: Ending) -> list[Event]:
    """Give the events that close ``turn``, in the contract's order, the last one ``run-finish``."""
    events: list[Event] = [
        {"type": "approval-resolved", "request_id": request_id, "decision": "withdrawn"}
        for request_id in turn.approvals
    ]
    for call_id, started in turn.tools.items():
        own = ending.tool_endings.get(call_id)
        events.append(own if own is not None else _unfinished_tool(call_id, started, ending))
    message_id = turn.message_id
    events.extend(
        {"type": f"{kind}-end", "message_id": message_id, "part_id": part_id} for part_id, kind in turn.parts.items()
    )
    usage = turn.usage
    if turn.step is not None:
        usage = add_usage(usage, ending.step_usage)
        events.append(
            {
                "type": "step-finish",
                "message_id": message_id,
                "step": turn.step,
                "finish_reason": ending.finish_reason,
                "usage": ending.step_usage,
            }
        )
    if message_id is not None:
        events.append(
            {
                "type": "message-finish",
                "message_id": message_id,
                "finish_reason": ending.finish_reason,
                "usage": ending.message_usage or usage,
                "error": ending.error,
            }
        )
    events.append(
        {
            "type": "run-finish",
            "status": ending.status,
            "reason": ending.reason,
            "error": ending.error,
            "settled": ending.settled,
        }
    )
    return events


def _unfinished_tool(call_id: str, started: bool, ending: Ending) -> Event:
    interrupted = ending.status in ("aborted", "lost")
    if not started:
        outcome = "not_run"
    elif ending.status == "aborted" and ending.settled:
        outcome = "interrupted"
    else:
        outcome = "unknown"
    text = {
        "aborted": "Tool execution aborted",
        "lost": "The server stopped during this run",
        "failed": "The run failed before the tool finished",
        "completed": "The run ended without a result of the tool",
    }[ending.status]
    return {"type": "tool-error", "call_id": call_id, "error": text, "interrupted": interrupted, "outcome": outcome}


def open_turn(fold: Transcript) -> OpenTurn:
    """Find what is open in a folded transcript: the state that a dead process left behind."""
    turn = OpenTurn(None, step=fold.open_step[1] if fold.open_step else None, usage=fold.usage)
    for message in fold.messages:
        if message["role"] != "assistant" or message["completed_at"] is not None:
            continue
        turn.message_id = message["id"]
        for part in message["parts"]:
            if part["type"] == "tool":
                if part["state"] not in ("output-available", "output-error"):
                    turn.tools[part["call_id"]] = part["state"] == "running"
            elif part.get("state") == "streaming":
                turn.parts[part["part_id"]] = part["type"]
    turn.approvals = [entry["request_id"] for entry in fold.pending]
    return turn
