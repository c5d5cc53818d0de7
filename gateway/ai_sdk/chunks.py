"""A run told as UI message chunks: events one by one, a snapshot as what it has beyond what was told.

What was told is kept as lengths and states, never as text, so a long answer costs linear time and next to no memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Chunk: TypeAlias = dict[str, Any]

FINISH_REASONS = frozenset({"stop", "length", "content-filter", "tool-calls", "error"})
"""Those that the AI SDK has too; all others are ``other`` there."""

LOST = "The connection was lost"
"""The error of a tool whose end will never be told."""


@dataclass(slots=True)
class _Text:
    kind: Literal["text", "reasoning"]
    length: int = 0
    open: bool = True


@dataclass(slots=True)
class _Tool:
    name: str
    raw: int = 0
    has_input: bool = False
    request_id: str | None = None
    decided: bool = False
    denied: bool = False
    running: bool = False
    over: bool = False


class Teller:
    """Tells one run. Feed it every snapshot and event of the session; ``over`` says that nothing more will come.

    ``fresh``: the run was asked for just now, so a first snapshot that lacks it is older than it. ``held``: the parts
    of the answer that the page has already (it sends them back with its decisions on approvals).
    """

    def __init__(self, run_id: str, *, fresh: bool = False, held: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.run_id = run_id
        self.over = False
        self._fresh = fresh
        self._held = held
        self._started = False
        self._texts: dict[str, _Text] = {}
        self._tools: dict[str, _Tool] = {}
        self._customs: dict[str, int] = {}  # message id -> custom parts told
        self._last: Mapping[str, Any] | None = None  # the newest message-finish

    # -- in

    def snapshot(self, frame: Mapping[str, Any]) -> Iterator[Chunk]:
        """Tell what a snapshot has of the run beyond what was told."""
        messages = [message for message in frame["messages"] if message.get("run_id") == self.run_id]
        coming = frame["run_id"] == self.run_id or any(entry["run_id"] == self.run_id for entry in frame["queue"])
        if not messages:
            first, self._fresh = self._fresh, False
            if not coming and not first:
                yield from self._end([{"type": "abort", "reason": "The run is not held any more"}])
            return
        self._fresh = False
        yield from self._start(messages[0]["id"])
        if self._held is not None:
            self._remember(messages, self._held)
            self._held = None
        for message in messages:
            customs = 0
            for part in message["parts"]:
                if part["type"] == "custom":
                    customs += 1
                    if customs > self._customs.get(message["id"], 0):
                        yield self._custom(message["id"], part)
                elif part["type"] == "tool":
                    yield from self._tool_part(part)
                elif "part_id" in part:
                    yield from self._text_part(part)
        self._last = messages[-1]
        if frame["run_id"] != self.run_id:
            yield from self._finish()

    def event(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """Tell one event; those of other runs, and those from before the answer, say nothing."""
        if event["run_id"] != self.run_id or self.over:
            return
        self._fresh = False
        kind = event["type"]
        if kind == "message-start":
            yield from self._start(event["message_id"])
        elif kind == "dequeued":
            yield from self._end([{"type": "abort", "reason": event["reason"]}])
        elif kind == "message-finish":
            self._last = event
        elif kind == "run-finish":
            yield from self._finish()
        elif self._started and (tell := _EVENTS.get(kind)) is not None:
            yield from tell(self, event)

    def pause(self) -> Iterator[Chunk]:
        """End the stream where the run waits for a person and nothing else: it is asked between two streams."""
        tools = self._tools.values()
        waits = any(tool.request_id is not None and not tool.decided and not tool.over for tool in tools)
        busy = any(tool.running or not (tool.has_input or tool.over) for tool in tools)
        if not self.over and waits and not busy and not any(text.open for text in self._texts.values()):
            yield from self._end([{"type": "finish-step"}, {"type": "finish", "finishReason": "tool-calls"}])

    def fail(self, text: str) -> Iterator[Chunk]:
        """End with an error, what is open closed."""
        yield from self._end([*self._close(), {"type": "error", "errorText": text}])

    # -- the answer

    def _start(self, message_id: str) -> Iterator[Chunk]:
        if self._started:
            return  # a steered run is one answer
        self._started = True
        yield {"type": "start", "messageId": message_id, "messageMetadata": {"run_id": self.run_id}}
        if self._held is None:
            yield {"type": "start-step"}

    def _finish(self) -> Iterator[Chunk]:
        last = self._last or {"error": None, "finish_reason": None, "usage": None}
        problem = last["error"]
        closing: list[Chunk] = [*self._close(), {"type": "finish-step"}]
        if problem is None:
            reason = last["finish_reason"] if last["finish_reason"] in FINISH_REASONS else "other"
            metadata = {"run_id": self.run_id, "usage": last["usage"]}
            closing.append({"type": "finish", "finishReason": reason, "messageMetadata": metadata})
        elif problem["reason"] == "AbortError":
            closing.append({"type": "abort", "reason": problem["message"] or "Aborted"})
        else:
            closing.append({"type": "error", "errorText": problem["message"] or problem["reason"]})
        yield from self._end(closing)

    def _end(self, chunks: list[Chunk]) -> Iterator[Chunk]:
        self.over = True
        yield from chunks

    def _close(self) -> Iterator[Chunk]:
        """End what is open, where no event will."""
        for part_id, text in self._texts.items():
            if text.open:
                text.open = False
                yield {"type": f"{text.kind}-end", "id": part_id}
        for call_id, tool in self._tools.items():
            if not tool.over:
                tool.over = True
                yield from self._tool_failed(call_id, tool, LOST)

    def _remember(self, messages: Sequence[Mapping[str, Any]], held: Sequence[Mapping[str, Any]]) -> None:
        """Note what the page has: its texts are the run's, in order; its tools go by their ids."""
        for kind in ("text", "reasoning"):
            theirs = [part for part in held if part.get("type") == kind]
            ours = [part for message in messages for part in message["parts"] if part["type"] == kind]
            for part, has in zip(ours, theirs, strict=False):
                # Open in no stream: if there is more of it, it starts again.
                self._texts[part["part_id"]] = _Text(kind, len(str(has.get("text", ""))), open=False)
        data = sum(str(part.get("type", "")).startswith("data-") for part in held)
        for message in messages:
            customs = min(data, sum(part["type"] == "custom" for part in message["parts"]))
            self._customs[message["id"]] = customs
            data -= customs
        for part in held:
            name, call_id = str(part.get("type", "")), part.get("toolCallId")
            if not isinstance(call_id, str):
                continue
            approval = part.get("approval")
            asked = approval if isinstance(approval, dict) else {}
            tool = self._tools[call_id] = _Tool(name.removeprefix("tool-"))
            tool.has_input = part.get("state") != "input-streaming"
            tool.request_id = asked.get("id")
            tool.decided = "approved" in asked
            tool.denied = asked.get("approved") is False
            tool.over = part.get("state") in ("output-available", "output-error", "output-denied")

    # -- text and reasoning

    def _text_start(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        kind: Literal["text", "reasoning"] = "text" if event["type"] == "text-start" else "reasoning"
        self._texts[event["part_id"]] = _Text(kind)
        yield {"type": event["type"], "id": event["part_id"]}

    def _text_delta(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        text = self._texts.get(event["part_id"])
        if text is not None:
            yield from self._more(event["part_id"], text, event["text"])

    def _text_end(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        text = self._texts.get(event["part_id"])
        if text is not None and text.open:
            text.open = False
            yield {"type": event["type"], "id": event["part_id"]}

    def _text_part(self, part: Mapping[str, Any]) -> Iterator[Chunk]:
        part_id, kind = part["part_id"], part["type"]
        text = self._texts.get(part_id)
        if text is None:
            text = self._texts[part_id] = _Text(kind)
            yield {"type": f"{kind}-start", "id": part_id}
        yield from self._more(part_id, text, part["text"][text.length :])
        if text.open and part["state"] == "done":
            text.open = False
            yield {"type": f"{kind}-end", "id": part_id}

    def _more(self, part_id: str, text: _Text, delta: str) -> Iterator[Chunk]:
        if not delta:
            return
        if not text.open:
            text.open = True
            yield {"type": f"{text.kind}-start", "id": part_id}
        text.length += len(delta)
        yield {"type": f"{text.kind}-delta", "id": part_id, "delta": delta}

    # -- tools

    def _tool(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        """A tool's events, as what they change in its part."""
        kind, call_id = event["type"], event.get("call_id")
        if kind == "approval-resolved":
            call_id = next((key for key, tool in self._tools.items() if tool.request_id == event["request_id"]), None)
        tool = self._tools.get(call_id or "")
        if tool is None and kind in ("tool-input-start", "tool-call"):
            tool = self._tools[event["call_id"]] = _Tool(event["tool"])
            yield {"type": "tool-input-start", "toolCallId": call_id, "toolName": tool.name}
        if tool is None:
            return
        assert call_id is not None
        if kind == "tool-call":
            yield from self._tool_input(call_id, tool, event["input"])
        elif kind == "approval-request":
            yield from self._tool_approval(call_id, tool, event["request_id"], None)
        elif kind == "approval-resolved":
            yield from self._tool_approval(call_id, tool, event["request_id"], event["decision"])
        elif kind == "tool-start":
            tool.running = True
        elif kind == "tool-progress":
            yield _progress(call_id, event["data"])
        elif kind in ("tool-result", "tool-error"):
            yield from self._tool_over(call_id, tool, event)

    def _tool_delta(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        tool = self._tools.get(event["call_id"])
        if tool is not None and event["text"]:
            tool.raw += len(event["text"])
            yield {"type": "tool-input-delta", "toolCallId": event["call_id"], "inputTextDelta": event["text"]}

    def _tool_part(self, part: Mapping[str, Any]) -> Iterator[Chunk]:
        call_id = part["call_id"]
        tool = self._tools.get(call_id)
        if tool is None:
            tool = self._tools[call_id] = _Tool(part["tool"])
            yield {"type": "tool-input-start", "toolCallId": call_id, "toolName": tool.name}
        raw = part.get("raw_input", "")[tool.raw :]
        if raw and not tool.has_input:
            tool.raw += len(raw)
            yield {"type": "tool-input-delta", "toolCallId": call_id, "inputTextDelta": raw}
        if "input" in part:
            yield from self._tool_input(call_id, tool, part["input"])
        approval = part.get("approval")
        if approval is not None:
            yield from self._tool_approval(call_id, tool, approval["request_id"], approval.get("decision"))
        if "progress" in part:
            yield _progress(call_id, part["progress"])
        if part["state"] in ("output-available", "output-error"):
            yield from self._tool_over(call_id, tool, part)
        else:
            tool.running = part["state"] == "running"

    def _tool_input(self, call_id: str, tool: _Tool, value: Any) -> Iterator[Chunk]:
        if not tool.has_input:
            tool.has_input = True
            yield {"type": "tool-input-available", "toolCallId": call_id, "toolName": tool.name, "input": value}

    def _tool_approval(self, call_id: str, tool: _Tool, request_id: str, decision: str | None) -> Iterator[Chunk]:
        if tool.request_id != request_id:
            tool.request_id, tool.decided = request_id, False
            yield {"type": "tool-approval-request", "approvalId": request_id, "toolCallId": call_id}
        if decision is None or tool.decided:
            return
        tool.decided = True
        if decision in ("allow", "deny"):
            tool.denied = decision == "deny"
            yield {"type": "tool-approval-response", "approvalId": request_id, "approved": decision == "allow"}

    def _tool_over(self, call_id: str, tool: _Tool, ending: Mapping[str, Any]) -> Iterator[Chunk]:
        if tool.over:
            return
        tool.over, tool.running = True, False
        if "output" in ending:
            yield {"type": "tool-output-available", "toolCallId": call_id, "output": ending["output"]}
        else:
            yield from self._tool_failed(call_id, tool, ending["error"])

    def _tool_failed(self, call_id: str, tool: _Tool, error: str) -> Iterator[Chunk]:
        about = {"toolCallId": call_id, "errorText": error}
        if not tool.has_input:
            yield {"type": "tool-input-error", "toolName": tool.name, "input": None, **about}
        elif tool.denied:
            yield {"type": "tool-output-denied", "toolCallId": call_id}
        else:
            yield {"type": "tool-output-error", **about}

    # -- application data

    def _custom_event(self, event: Mapping[str, Any]) -> Iterator[Chunk]:
        if "message_id" in event:
            yield self._custom(event["message_id"], event)

    def _custom(self, message_id: str, part: Mapping[str, Any]) -> Chunk:
        n = self._customs[message_id] = self._customs.get(message_id, 0) + 1
        return {"type": f"data-{part['name']}", "id": f"{message_id}:{n}", "data": part["data"]}


def _progress(call_id: str, data: Any) -> Chunk:
    return {"type": "data-tool-progress", "data": {"toolCallId": call_id, "progress": data}, "transient": True}


_EVENTS: dict[str, Callable[[Teller, Mapping[str, Any]], Iterator[Chunk]]] = {
    "text-start": Teller._text_start,
    "text-delta": Teller._text_delta,
    "text-end": Teller._text_end,
    "reasoning-start": Teller._text_start,
    "reasoning-delta": Teller._text_delta,
    "reasoning-end": Teller._text_end,
    "tool-input-start": Teller._tool,
    "tool-input-delta": Teller._tool_delta,
    "tool-call": Teller._tool,
    "approval-request": Teller._tool,
    "approval-resolved": Teller._tool,
    "tool-start": Teller._tool,
    "tool-progress": Teller._tool,
    "tool-result": Teller._tool,
    "tool-error": Teller._tool,
    "custom": Teller._custom_event,
}
