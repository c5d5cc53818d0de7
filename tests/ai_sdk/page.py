"""What an AI SDK page makes of chunks, as strict as the AI SDK's own: a piece without its beginning is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


class Page:
    """One answer, put together from its chunks; ``parts`` to begin with are those of the stream before."""

    def __init__(self, parts: list[dict[str, Any]] | None = None) -> None:
        self.id: str | None = None
        self.parts = parts or []
        self.ending: dict[str, Any] | None = None
        self._open: dict[str, dict[str, Any]] = {}

    def take(self, chunks: Iterable[dict[str, Any]]) -> Page:
        for chunk in chunks:
            assert self.ending is None, f"{chunk} after {self.ending}"
            self._take(chunk)
        return self

    def _take(self, chunk: dict[str, Any]) -> None:
        match chunk["type"]:
            case "start":
                assert self.id is None
                self.id = chunk["messageId"]
            case "start-step" | "finish-step":
                pass
            case "text-start" | "reasoning-start" as kind:
                assert chunk["id"] not in self._open
                part = {"type": kind.removesuffix("-start"), "text": "", "state": "streaming"}
                self._open[chunk["id"]] = part
                self.parts.append(part)
            case "text-delta" | "reasoning-delta":
                assert chunk["delta"]
                self._open[chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                self._open.pop(chunk["id"])["state"] = "done"
            case "finish" | "abort" | "error":
                self.ending = chunk
            case kind if kind.startswith("data-"):
                if not chunk.get("transient"):
                    self.parts.append({"type": kind, "data": chunk["data"]})
            case _:
                self._tool(chunk)

    def _tool(self, chunk: dict[str, Any]) -> None:
        call_id = chunk.get("toolCallId")
        found = next((p for p in self.parts if p.get("toolCallId") == call_id), None)
        match chunk["type"]:
            case "tool-input-start":
                assert found is None
                name = f"tool-{chunk['toolName']}"
                self.parts.append({"type": name, "toolCallId": call_id, "state": "input-streaming", "input": None})
                return
            case "tool-approval-response":
                found = next(p for p in self.parts if p.get("approval", {}).get("id") == chunk["approvalId"])
                found["approval"]["approved"] = chunk["approved"]
                found["state"] = "approval-responded"
                return
        assert found is not None, chunk
        match chunk["type"]:
            case "tool-input-delta":
                assert found["state"] == "input-streaming"
            case "tool-input-available":
                found.update(state="input-available", input=chunk["input"])
            case "tool-approval-request":
                found.update(state="approval-requested", approval={"id": chunk["approvalId"]})
            case "tool-output-available":
                found.update(state="output-available", output=chunk["output"])
            case "tool-output-error" | "tool-input-error":
                found.update(state="output-error", errorText=chunk["errorText"])
            case "tool-output-denied":
                found["state"] = "output-denied"
            case other:
                raise AssertionError(other)


def plain(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parts without what the page keeps for itself: an answered question that nothing came of, ids, steps."""
    found = []
    for part in parts:
        if part["type"] == "step-start":
            continue
        kept = {name: value for name, value in part.items() if name not in ("approval", "id") and value is not None}
        if kept.get("state") in ("approval-responded", "approval-requested"):
            kept["state"] = "input-available"
        found.append(kept)
    return found
