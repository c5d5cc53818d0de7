"""The assistant message while it is being written.

Every change of the message is an event and every event is a change: one method does both in one breath, so a reader's
view and the stored message cannot drift apart.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, cast

from gateway.engine.approvals import EDITED
from gateway.engine.messages import ToolCall, new_id, now_ms
from protocol.messages import add_usage

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.engine.errors import AssistantMessageError
    from gateway.engine.port import EngineEvent
    from protocol import messages as wire
    from protocol.messages import Outcome, Usage


class Draft:
    """One assistant message from ``message-start`` to ``message-finish``."""

    def __init__(self, emit: Callable[[EngineEvent], None], run_id: str) -> None:
        self._emit = emit
        self.message: wire.AssistantMessage = {
            "id": new_id("msg"),
            "role": "assistant",
            "run_id": run_id,
            "parts": [],
            "finish_reason": None,
            "usage": None,
            "error": None,
            "created_at": now_ms(),
            "completed_at": None,
        }
        self._text: tuple[wire.TextPart, list[str]] | None = None
        self._tools: dict[str, wire.ToolPart] = {}
        self._raw: dict[str, list[str]] = {}
        self._renamed: dict[str, str] = {}
        self._step: int | None = None
        self._step_usage: Usage | None = None
        emit({"type": "message-start", "message_id": self.id, "role": "assistant"})

    @property
    def id(self) -> str:
        """The message's id."""
        return self.message["id"]

    # -- steps --------------------------------------------------------------------------------------------------------

    def step_start(self, step: int) -> None:
        """Open a step (1…)."""
        self._step = step
        self._step_usage = None
        self._renamed.clear()
        self._emit({"type": "step-start", "message_id": self.id, "step": step})

    def measured(self, usage: Usage | None) -> None:
        """Note what the open step has used so far."""
        self._step_usage = usage

    def step_finish(self, finish_reason: str) -> None:
        """Close the open step, if there is one."""
        self.close_text()
        if self._step is None:
            return
        self.message["usage"] = add_usage(self.message["usage"], self._step_usage)
        self._emit(
            {
                "type": "step-finish",
                "message_id": self.id,
                "step": self._step,
                "finish_reason": finish_reason,
                "usage": self._step_usage,
            }
        )
        self._step = None

    def finish(self, finish_reason: str, error: AssistantMessageError | None = None) -> None:
        """Close the message."""
        self.step_finish(finish_reason)
        self.message["finish_reason"] = finish_reason
        self.message["error"] = error.to_dict() if error else None
        self.message["completed_at"] = now_ms()
        self._emit(
            {
                "type": "message-finish",
                "message_id": self.id,
                "finish_reason": finish_reason,
                "usage": self.message["usage"],
                "error": self.message["error"],
            }
        )

    # -- text and reasoning -------------------------------------------------------------------------------------------

    def text(self, delta: str, kind: Literal["text", "reasoning"] = "text") -> None:
        """Append to the open part of ``kind``, or open one."""
        if not delta:
            return
        if self._text is None or self._text[0]["type"] != kind:
            self.close_text()
            part: wire.TextPart = {"type": kind, "part_id": new_id("prt"), "text": "", "state": "streaming"}
            self.message["parts"].append(part)
            self._text = (part, [])
            self._emit({"type": f"{kind}-start", "message_id": self.id, "part_id": part["part_id"]})
        part, chunks = self._text
        chunks.append(delta)
        self._emit({"type": f"{kind}-delta", "message_id": self.id, "part_id": part["part_id"], "text": delta})

    def close_text(self) -> None:
        """Close the open text or reasoning part, its text kept word for word."""
        if self._text is None:
            return
        part, chunks = self._text
        self._text = None
        part["text"] = "".join(chunks)
        part["state"] = "done"
        self._emit({"type": f"{part['type']}-end", "message_id": self.id, "part_id": part["part_id"]})

    # -- tools --------------------------------------------------------------------------------------------------------

    def tool_input_start(self, call_id: str, tool: str) -> None:
        """Open a call whose arguments stream in."""
        self._open_tool(call_id, tool, "input-streaming")
        part = self._tools[self._own(call_id)]
        self._emit(
            {
                "type": "tool-input-start",
                "message_id": self.id,
                "part_id": part["part_id"],
                "call_id": part["call_id"],
                "tool": tool,
            }
        )

    def tool_input_delta(self, call_id: str, delta: str) -> None:
        """Append to the raw arguments of an open call."""
        part = self._tools[self._own(call_id)]
        self._raw[part["call_id"]].append(delta)
        self._emit(
            {
                "type": "tool-input-delta",
                "message_id": self.id,
                "part_id": part["part_id"],
                "call_id": part["call_id"],
                "text": delta,
            }
        )

    def tool_call(self, call: ToolCall) -> ToolCall:
        """Complete a call; gives it back under the id that it has in this message."""
        if self._own(call.call_id) not in self._tools or self._state(call.call_id) != "input-streaming":
            self._open_tool(call.call_id, call.tool, "input-available")
        part = self._tools[self._own(call.call_id)]
        self._raw.pop(part["call_id"], None)  # the parsed input says it all
        part["state"] = "input-available"
        part["input"] = call.input
        self._emit(
            {
                "type": "tool-call",
                "message_id": self.id,
                "part_id": part["part_id"],
                "call_id": part["call_id"],
                "tool": call.tool,
                "input": call.input,
            }
        )
        return ToolCall(part["call_id"], call.tool, call.input, call.raw)

    def tool_malformed(self, call: ToolCall) -> None:
        """A call whose arguments are no JSON object: answered at once, so that the model can try again."""
        if self._own(call.call_id) not in self._tools or self._state(call.call_id) != "input-streaming":
            self.tool_input_start(call.call_id, call.tool)
            self.tool_input_delta(call.call_id, call.raw)
        self.tool_error(self._own(call.call_id), "The arguments are not a JSON object", "failed")

    def tool_start(self, call_id: str) -> None:
        """The tool runs now."""
        part = self._tools[call_id]
        part["state"] = "running"
        part["started_at"] = now_ms()
        self._emit({"type": "tool-start", "call_id": call_id})

    def tool_progress(self, call_id: str, data: Any) -> None:
        """The tool says how far it is."""
        self._tools[call_id]["progress"] = data
        self._emit({"type": "tool-progress", "call_id": call_id, "data": data})

    def tool_result(self, call_id: str, output: Any, truncated: bool = False) -> None:
        """The tool returned; ``truncated`` says that ``output`` is not all of it."""
        part = self._tools[call_id]
        part["state"] = "output-available"
        part["output"] = output
        part.pop("progress", None)
        part["ended_at"] = now_ms()
        event: EngineEvent = {"type": "tool-result", "call_id": call_id, "output": output}
        if truncated:
            event["truncated"] = part["truncated"] = True
        self._emit(event)

    def tool_error(self, call_id: str, error: str, outcome: Outcome, *, refused: bool = False) -> None:
        """The tool failed, was stopped, or was ``refused``; only ``failed`` is the tool's own doing."""
        part = self._tools[call_id]
        if raw := "".join(self._raw.pop(call_id, ())):
            part["raw_input"] = raw
        part["state"] = "output-error"
        part.pop("progress", None)
        part["error"] = error
        part["interrupted"] = outcome != "failed" and not refused
        part["outcome"] = outcome
        part["ended_at"] = now_ms()
        self._emit(
            {
                "type": "tool-error",
                "call_id": call_id,
                "error": error,
                "interrupted": part["interrupted"],
                "outcome": outcome,
            }
        )

    def approval_request(self, call_id: str, request_id: str, expires_at: int | None = None) -> None:
        """The tool waits for a person, until ``expires_at`` (ms since 1970)."""
        part = self._tools[call_id]
        part["state"] = "approval-requested"
        part["approval"] = {"request_id": request_id}
        event: EngineEvent = {"type": "approval-request", "request_id": request_id, "call_id": call_id}
        event |= {"tool": part["tool"], "input": part.get("input")}
        if expires_at is not None:
            event["expires_at"] = expires_at
        self._emit(event)

    def approval_resolved(self, call_id: str, decision: wire.Decision) -> None:
        """The wait is over."""
        part = self._tools[call_id]
        approval = part["approval"]
        approval["decision"] = decision
        part["state"] = "input-available"
        self._emit({"type": "approval-resolved", "request_id": approval["request_id"], "decision": decision})

    def input_edited(self, request_id: str, arguments: dict[str, Any]) -> None:
        """The person allowed a call with other arguments; the transcript keeps both."""
        self.close_text()
        data = {"request_id": request_id, "input": arguments}
        self.message["parts"].append({"type": "custom", "name": EDITED, "data": data})
        self._emit({"type": "custom", "message_id": self.id, "name": EDITED, "data": data})

    def open_approvals(self) -> list[str]:
        """Name the calls that wait for a person."""
        return [
            call_id
            for call_id, part in self._tools.items()
            if "approval" in part and "decision" not in part["approval"]
        ]

    def open_calls(self) -> list[str]:
        """Name the calls without an answer, in the order in which they were made."""
        return [
            call_id
            for call_id, part in self._tools.items()
            if part["state"] not in ("output-available", "output-error")
        ]

    def calls_streaming(self) -> list[ToolCall]:
        """Give the calls whose arguments came in full but were never declared complete."""
        return [
            ToolCall(call_id, part["tool"], parse_arguments("".join(self._raw[call_id])), "".join(self._raw[call_id]))
            for call_id, part in self._tools.items()
            if part["state"] == "input-streaming"
        ]

    def _own(self, call_id: str) -> str:
        return self._renamed.get(call_id, call_id)

    def _state(self, call_id: str) -> str:
        return self._tools[self._own(call_id)]["state"]

    def _open_tool(self, call_id: str, tool: str, state: Literal["input-streaming", "input-available"]) -> None:
        # Some providers count their calls anew in every step, some leave the id empty: ours are unique in the message.
        own = call_id if call_id and call_id not in self._tools else new_id("call")
        self._renamed[call_id] = own
        self.close_text()
        part: wire.ToolPart = {"type": "tool", "part_id": new_id("prt"), "call_id": own, "tool": tool, "state": state}
        self._tools[own] = part
        self._raw[own] = []
        self.message["parts"].append(part)


def parse_arguments(raw: str) -> dict[str, Any] | None:
    """Parse a call's raw arguments; empty is no argument, and anything but a JSON object is None."""
    if not raw.strip():
        return {}
    try:
        parsed = json.loads(raw)
    except ValueError:
        return None
    return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else None
