"""An independent fold, written from the wire contract alone: frames of one session in, its state out.

It shares nothing with the product, so that an agreement between the two means something.
"""

from __future__ import annotations

import copy
from typing import Any

Frame = dict[str, Any]

NOT_EVENTS = frozenset(
    {
        "welcome",
        "ack",
        "error",
        "pong",
        "goaway",
        "session-changed",
        "attached",
        "snapshot",
        "history",
        "detached",
    }
)


def is_event(frame: Frame) -> bool:
    """Say whether the frame is a sequenced event of a session."""
    return frame["type"] not in NOT_EVENTS


def first_seq(frame: Frame) -> int:
    """The first seq that an event frame covers."""
    first: int = frame["from"] if frame.get("from") is not None else frame["seq"]
    return first


class Fold:
    """The state of one session: `attached`, `snapshot` and events go in, by the client rule."""

    def __init__(self) -> None:
        self.epoch: str | None = None
        self.seq = 0
        self.status = "idle"
        self.run_id: str | None = None
        self.messages: list[Frame] = []
        self.pending: list[Frame] = []
        self.queue: list[Frame] = []

    def state(self) -> Frame:
        return {
            "epoch": self.epoch,
            "seq": self.seq,
            "status": self.status,
            "run_id": self.run_id,
            "messages": copy.deepcopy(self.messages),
            "pending": copy.deepcopy(self.pending),
            "queue": copy.deepcopy(self.queue),
        }

    def feed(self, frame: Frame) -> str:
        """Apply a frame; the verdict is `applied`, `dropped` or `gap`."""
        kind = frame["type"]
        if kind == "attached":
            self.epoch = frame["epoch"]
            return "applied"
        if kind == "snapshot":
            self._snapshot(frame)
            return "applied"
        if not is_event(frame):
            return "dropped"
        if frame["seq"] <= self.seq:
            return "dropped"
        if first_seq(frame) != self.seq + 1:
            return "gap"
        self.seq = frame["seq"]
        self._event(copy.deepcopy(frame))
        return "applied"

    def _snapshot(self, frame: Frame) -> None:
        frame = copy.deepcopy(frame)
        self.epoch, self.seq = frame["epoch"], frame["seq"]
        self.status, self.run_id = frame["status"], frame["run_id"]
        self.messages, self.pending, self.queue = frame["messages"], frame["pending"], frame["queue"]

    def _message(self, message_id: str) -> Frame | None:
        return next((m for m in reversed(self.messages) if m["id"] == message_id), None)

    def _part(self, frame: Frame) -> Frame | None:
        message = self._message(frame["message_id"])
        if message is None:
            return None
        return next((p for p in reversed(message["parts"]) if p.get("part_id") == frame["part_id"]), None)

    def _tool(self, call_id: str) -> Frame | None:
        for message in reversed(self.messages):
            for part in reversed(message["parts"]):
                if part["type"] == "tool" and part["call_id"] == call_id:
                    return part  # type: ignore[no-any-return]
        return None

    def _add_part(self, message_id: str, part: Frame) -> None:
        message = self._message(message_id)
        if message is not None:
            message["parts"].append(part)

    def _event(self, f: Frame) -> None:
        match f["type"]:
            case "queued":
                self.queue.append({k: f[k] for k in ("run_id", "command_id", "message") if k in f})
            case "dequeued":
                self.queue = [q for q in self.queue if q["run_id"] != f["run_id"]]
            case "messages-removed":
                # A message older than all that is held: everything held came after it.
                ids = [m["id"] for m in self.messages]
                first = f["from_message_id"]
                del self.messages[ids.index(first) if first in ids else 0 :]
            case "message-added":
                self.messages.append(f["message"])
                self.queue = [q for q in self.queue if q["run_id"] != f["run_id"]]
            case "run-start":
                self.status, self.run_id = "running", f["run_id"]
                self.queue = [q for q in self.queue if q["run_id"] != f["run_id"]]
            case "message-start":
                self.messages.append(
                    {
                        "id": f["message_id"],
                        "role": f["role"],
                        "run_id": f["run_id"],
                        "parts": [],
                        "finish_reason": None,
                        "usage": None,
                        "error": None,
                        "created_at": f["time"],
                        "completed_at": None,
                    }
                )
            case "text-start" | "reasoning-start":
                kind = f["type"].removesuffix("-start")
                part = {"type": kind, "part_id": f["part_id"], "text": "", "state": "streaming"}
                self._add_part(f["message_id"], part)
            case "text-delta" | "reasoning-delta":
                if (open_part := self._part(f)) is not None:
                    open_part["text"] += f["text"]
                    if f.get("truncated"):
                        open_part["truncated"] = True
            case "text-end" | "reasoning-end":
                if (open_part := self._part(f)) is not None:
                    open_part["state"] = "done"
            case "message-finish":
                if (message := self._message(f["message_id"])) is not None:
                    message.update({k: f[k] for k in ("finish_reason", "usage", "error")}, completed_at=f["time"])
            case "abort-requested":
                self.status = "aborting"
            case "run-finish":
                self.status, self.run_id = "idle", None
            case "custom":
                if f.get("message_id"):
                    self._add_part(f["message_id"], {"type": "custom", "name": f["name"], "data": f["data"]})
            case _:
                self._tool_event(f)

    def _tool_event(self, f: Frame) -> None:
        kind = f["type"]
        if kind == "approval-resolved":
            self._resolved(f)
            return
        if "call_id" not in f:
            return
        tool = self._tool(f["call_id"])
        if tool is None:
            if kind not in ("tool-input-start", "tool-call"):
                return
            tool = {"type": "tool", **{k: f[k] for k in ("part_id", "call_id", "tool")}, "state": "input-streaming"}
            self._add_part(f["message_id"], tool)
        if f.get("truncated"):
            tool["truncated"] = True
        match kind:
            case "tool-input-delta":
                tool["raw_input"] = tool.get("raw_input", "") + f["text"]
            case "tool-call":
                tool.pop("raw_input", None)
                tool.update(state="input-available", input=f["input"])
            case "approval-request":
                tool.update(state="approval-requested", approval={"request_id": f["request_id"]})
                keys = ("request_id", "call_id", "tool", "input", "expires_at")
                self.pending.append({k: f[k] for k in keys if k in f})
                if self.status == "running":
                    self.status = "waiting"
            case "tool-start":
                tool.update(state="running", started_at=f["time"])
            case "tool-progress":
                tool["progress"] = f["data"]
            case "tool-result":
                tool.pop("progress", None)
                tool.update(state="output-available", output=f["output"], ended_at=f["time"])
            case "tool-error":
                tool.pop("progress", None)
                tool.update({k: f[k] for k in ("error", "interrupted", "outcome")})
                tool.update(state="output-error", ended_at=f["time"])

    def _resolved(self, f: Frame) -> None:
        asked = next((p for p in self.pending if p["request_id"] == f["request_id"]), None)
        if asked is None:
            return
        self.pending.remove(asked)
        tool = self._tool(asked["call_id"])
        if tool is not None:
            tool["approval"] = {"request_id": f["request_id"], "decision": f["decision"]}
            tool["state"] = "input-available"
        if not self.pending and self.status == "waiting":
            self.status = "running"


def comparable(messages: list[Frame]) -> list[Frame]:
    """Messages without what the contract leaves open in a finished tool part."""
    messages = copy.deepcopy(messages)
    for message in messages:
        for part in message["parts"]:
            part.pop("truncated", None)
            if part["type"] == "tool" and part["state"] in ("output-available", "output-error"):
                part.pop("progress", None)
                if not part.get("raw_input"):
                    part.pop("raw_input", None)
    return messages
