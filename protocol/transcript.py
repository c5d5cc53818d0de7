"""The fold: events in, messages out; pure and total.

The server, the Python client and the TypeScript SDK run this same fold; ``tests/vectors`` holds them together. A
snapshot is the fold at a seq. Text is collected in lists and joined when somebody looks, so that a long answer costs
linear time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from protocol.messages import Usage, add_usage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from protocol.commands import Role
    from protocol.frames import Status

Verdict: TypeAlias = Literal["applied", "dropped", "gap"]
"""``gap``: something is missing, attach again. ``dropped``: seen before, or not for the fold."""

_MALFORMED = (AttributeError, KeyError, TypeError, ValueError)
"""What reading a frame raises that lacks its fields or has them in another shape."""


class Transcript:
    """One session as a client holds it.

    Feed it every ``attached``, ``snapshot`` and event frame of the session; read ``state()``. ``open_step`` and
    ``usage`` are what a server needs to close a run that was cut off; clients can ignore them.
    """

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.seq = 0
        self.status: Status = "idle"
        self.role: Role | None = None
        self.run_id: str | None = None
        self.resumable = False
        self.has_more = False
        self.pending: list[dict[str, Any]] = []
        self.queue: list[dict[str, Any]] = []
        self.open_step: tuple[str, int] | None = None
        self.usage: Usage | None = None
        self._messages: list[dict[str, Any]] = []
        self._open: dict[str, dict[str, Any]] = {}  # message_id -> unfinished assistant message
        self._parts: dict[str, dict[str, Any]] = {}  # part_id -> part of an unfinished message
        self._calls: dict[str, dict[str, Any]] = {}  # call_id -> tool part of an unfinished message
        self._texts: dict[str, list[str]] = {}  # part_id -> text not joined yet

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages, oldest first; owned by the transcript."""
        self._join_texts()
        return self._messages

    def state(self) -> dict[str, Any]:
        """Give epoch, seq, status, run_id, messages, pending and queue: what the vectors compare."""
        return {
            "epoch": self.epoch,
            "seq": self.seq,
            "status": self.status,
            "run_id": self.run_id,
            "messages": self.messages,
            "pending": self.pending,
            "queue": self.queue,
        }

    def dump(self) -> dict[str, Any]:
        """Give all that :meth:`load` needs to continue the fold at this seq."""
        return self.state() | {
            "resumable": self.resumable,
            "has_more": self.has_more,
            "open_step": self.open_step,
            "usage": self.usage,
        }

    def load(self, dump: Mapping[str, Any]) -> None:
        """Replace everything by a snapshot frame or a :meth:`dump`; a malformed one raises and replaces nothing."""
        messages = list(dump["messages"])
        unfinished = [item for item in messages if item["role"] == "assistant" and item["completed_at"] is None]
        parts = [(part["type"], part) for item in unfinished for part in item["parts"]]
        pending, queue = list(dump["pending"]), list(dump["queue"])
        status, run_id = dump["status"], dump["run_id"]
        self.epoch = dump["epoch"]
        self.seq = dump["seq"]
        self.status = status
        self.run_id = run_id
        self.resumable = bool(dump.get("resumable", False))
        self.has_more = bool(dump.get("has_more", False))
        self.pending = pending
        self.queue = queue
        step = dump.get("open_step")
        self.open_step = (step[0], step[1]) if step else None
        self.usage = dump.get("usage")
        self._messages = messages
        self._forget_open()
        for message in unfinished:
            self._open[message["id"]] = message
        for _, part in parts:
            self._index(part)

    def apply(self, frame: Mapping[str, Any]) -> Verdict:
        """Fold one frame, by the client rule: next seq applies, an old one is dropped, a later one is a gap."""
        seq = frame.get("seq")
        kind = frame.get("type")
        if type(seq) is not int or not isinstance(kind, str):
            return "dropped"
        if kind in ("attached", "snapshot"):
            try:
                return self._attached(frame) if kind == "attached" else self._snapshot(frame)
            except _MALFORMED:
                return "dropped"
        if seq <= self.seq:
            return "dropped"
        if frame.get("from", seq) != self.seq + 1:
            return "gap"
        self.seq = seq
        handler = _HANDLERS.get(kind)
        if handler is not None:
            try:
                handler(self, frame)
            except _MALFORMED:
                return "applied"  # total: an event without its fields takes its seq and changes nothing
        return "applied"

    def _attached(self, frame: Mapping[str, Any]) -> Verdict:
        epoch, recovery, status = frame["epoch"], frame["recovery"], frame["status"]
        self.role = frame.get("role")
        if recovery == "snapshot":
            return "applied"  # the snapshot that follows says everything
        self.epoch = epoch
        if recovery == "live":
            self.seq = frame["seq"]
            self.status = status
        return "applied"

    def _snapshot(self, frame: Mapping[str, Any]) -> Verdict:
        self.load(frame)
        return "applied"

    # -- the queue and user messages

    def _queued(self, event: Mapping[str, Any]) -> None:
        entry = {"run_id": event["run_id"], "message": event["message"]}
        if "command_id" in event:
            entry["command_id"] = event["command_id"]
        self.queue.append(entry)

    def _leave_queue(self, event: Mapping[str, Any]) -> None:
        if self.queue:
            self.queue = [entry for entry in self.queue if entry["run_id"] != event["run_id"]]

    def _messages_removed(self, event: Mapping[str, Any]) -> None:
        for index, message in enumerate(self._messages):
            if message["id"] == event["from_message_id"]:
                del self._messages[index:]
                return
        # It is older than all that is held: so everything held came after it.
        self._messages.clear()

    def _message_added(self, event: Mapping[str, Any]) -> None:
        message = event["message"]
        if message["role"] != "user" or not message["id"]:
            return
        self._leave_queue(event)
        self._messages.append(message)

    # -- runs and assistant messages

    def _run_start(self, event: Mapping[str, Any]) -> None:
        self._leave_queue(event)
        self.run_id = event["run_id"]
        self.status = "running"
        self.resumable = False

    def _abort_requested(self, event: Mapping[str, Any]) -> None:
        self.status = "aborting"

    def _run_finish(self, event: Mapping[str, Any]) -> None:
        resumable = event["status"] != "completed"
        self._join_texts()
        self._forget_open()
        self.run_id = None
        self.status = "idle"
        self.resumable = resumable
        self.pending = []
        self.open_step = None
        self.usage = None

    def _message_start(self, event: Mapping[str, Any]) -> None:
        message = {
            "id": event["message_id"],
            "role": "assistant",
            "run_id": event["run_id"],
            "parts": [],
            "finish_reason": None,
            "usage": None,
            "error": None,
            "created_at": event["time"],
            "completed_at": None,
        }
        self._open[message["id"]] = message
        self._messages.append(message)
        self.usage = None

    def _message_finish(self, event: Mapping[str, Any]) -> None:
        final = {name: event[name] for name in ("finish_reason", "usage", "error")} | {"completed_at": event["time"]}
        message = self._open.pop(event["message_id"], None)
        if message is not None:
            message.update(final)

    def _step_start(self, event: Mapping[str, Any]) -> None:
        self.open_step = (event["message_id"], event["step"])

    def _step_finish(self, event: Mapping[str, Any]) -> None:
        self.usage = add_usage(self.usage, event["usage"])
        self.open_step = None

    # -- parts

    def _add_part(self, event: Mapping[str, Any], part: dict[str, Any]) -> None:
        message = self._open.get(event["message_id"])
        if message is not None:
            message["parts"].append(part)
            self._index(part)

    def _index(self, part: dict[str, Any]) -> None:
        if "part_id" in part:
            self._parts[part["part_id"]] = part
        if part["type"] == "tool":
            self._calls[part["call_id"]] = part

    def _text_start(self, event: Mapping[str, Any]) -> None:
        kind = event["type"].removesuffix("-start")
        self._add_part(event, {"type": kind, "part_id": event["part_id"], "text": "", "state": "streaming"})

    def _delta(self, event: Mapping[str, Any]) -> None:
        part_id, text = event["part_id"], event["text"]
        part = self._parts.get(part_id)
        if part is None or not isinstance(text, str):
            return
        texts = self._texts.get(part_id)
        if texts is None:
            texts = self._texts[part_id] = []
        texts.append(text)
        _mark_truncated(part, event)

    def _text_end(self, event: Mapping[str, Any]) -> None:
        part = self._parts.get(event["part_id"])
        if part is not None:
            part["state"] = "done"

    def _custom(self, event: Mapping[str, Any]) -> None:
        if "message_id" in event:
            self._add_part(event, {"type": "custom", "name": event["name"], "data": event["data"]})

    # -- tools

    def _tool_input_start(self, event: Mapping[str, Any]) -> None:
        part = {
            "type": "tool",
            "part_id": event["part_id"],
            "call_id": event["call_id"],
            "tool": event["tool"],
            "state": "input-streaming",
        }
        self._add_part(event, part)

    def _tool_call(self, event: Mapping[str, Any]) -> None:
        value = event["input"]
        if event["call_id"] not in self._calls:
            self._tool_input_start(event)
        part = self._calls.get(event["call_id"])
        if part is not None:
            self._texts.pop(part["part_id"], None)
            part.pop("raw_input", None)
            part["state"] = "input-available"
            part["input"] = value
            _mark_truncated(part, event)

    def _approval_request(self, event: Mapping[str, Any]) -> None:
        entry = {name: event[name] for name in ("request_id", "call_id", "tool", "input")}
        if "expires_at" in event:
            entry["expires_at"] = event["expires_at"]
        self.pending.append(entry)
        part = self._calls.get(event["call_id"])
        if part is not None:
            part["state"] = "approval-requested"
            part["approval"] = {"request_id": event["request_id"]}
        if self.status == "running":
            self.status = "waiting"

    def _approval_resolved(self, event: Mapping[str, Any]) -> None:
        request_id, decision = event["request_id"], event["decision"]
        self.pending = [entry for entry in self.pending if entry["request_id"] != request_id]
        for part in self._calls.values():
            if part.get("approval", {}).get("request_id") == request_id:
                part["approval"]["decision"] = decision
                if part["state"] == "approval-requested":
                    part["state"] = "input-available"
        if self.status == "waiting" and not self.pending:
            self.status = "running"

    def _tool_start(self, event: Mapping[str, Any]) -> None:
        part = self._calls.get(event["call_id"])
        if part is not None:
            part["started_at"] = event["time"]
            part["state"] = "running"

    def _tool_progress(self, event: Mapping[str, Any]) -> None:
        part = self._calls.get(event["call_id"])
        if part is not None:
            part["progress"] = event["data"]
            _mark_truncated(part, event)

    def _tool_result(self, event: Mapping[str, Any]) -> None:
        part = self._calls.get(event["call_id"])
        if part is not None:
            part.update({"output": event["output"], "ended_at": event["time"], "state": "output-available"})
            part.pop("progress", None)
            _mark_truncated(part, event)

    def _tool_error(self, event: Mapping[str, Any]) -> None:
        part = self._calls.get(event["call_id"])
        if part is not None:
            ending = {name: event[name] for name in ("error", "interrupted", "outcome")}
            part.update(ending, ended_at=event["time"], state="output-error")
            part.pop("progress", None)
            _mark_truncated(part, event)

    # -- inside

    def _join_texts(self) -> None:
        for part_id, texts in self._texts.items():
            part = self._parts.get(part_id)
            if part is not None and texts:
                name = "raw_input" if part["type"] == "tool" else "text"
                part[name] = part.get(name, "") + "".join(texts)
        self._texts.clear()

    def _forget_open(self) -> None:
        self._open.clear()
        self._parts.clear()
        self._calls.clear()
        self._texts.clear()


def _mark_truncated(part: dict[str, Any], event: Mapping[str, Any]) -> None:
    if event.get("truncated"):
        part["truncated"] = True


_HANDLERS: dict[str, Callable[[Transcript, Mapping[str, Any]], None]] = {
    "queued": Transcript._queued,
    "dequeued": Transcript._leave_queue,
    "messages-removed": Transcript._messages_removed,
    "message-added": Transcript._message_added,
    "run-start": Transcript._run_start,
    "abort-requested": Transcript._abort_requested,
    "run-finish": Transcript._run_finish,
    "message-start": Transcript._message_start,
    "message-finish": Transcript._message_finish,
    "step-start": Transcript._step_start,
    "step-finish": Transcript._step_finish,
    "text-start": Transcript._text_start,
    "text-delta": Transcript._delta,
    "text-end": Transcript._text_end,
    "reasoning-start": Transcript._text_start,
    "reasoning-delta": Transcript._delta,
    "reasoning-end": Transcript._text_end,
    "tool-input-start": Transcript._tool_input_start,
    "tool-input-delta": Transcript._delta,
    "tool-call": Transcript._tool_call,
    "approval-request": Transcript._approval_request,
    "approval-resolved": Transcript._approval_resolved,
    "tool-start": Transcript._tool_start,
    "tool-progress": Transcript._tool_progress,
    "tool-result": Transcript._tool_result,
    "tool-error": Transcript._tool_error,
    "custom": Transcript._custom,
}
