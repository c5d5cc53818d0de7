"""Messages as an AI SDK page keeps them (``UIMessage``), from a transcript and back into a prompt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.ai_sdk.requests import UIMessage

_DATA_URL = re.compile(r"data:[^,]*;base64,(.*)", re.DOTALL)


def prompt_message(message: UIMessage) -> dict[str, Any]:
    """Give a user message as a prompt takes it: texts and files; a page's other parts are its own."""
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        if part.get("type") == "text":
            parts.append({"type": "text", "text": part.get("text")})
        elif part.get("type") == "file":
            url = str(part.get("url", ""))
            data = _DATA_URL.fullmatch(url)
            source = {"data": data.group(1)} if data else {"url": url}
            name = {"name": part["filename"]} if part.get("filename") is not None else {}
            parts.append({"type": "file", "media_type": part.get("mediaType"), **name, **source})
    made: dict[str, Any] = {"role": "user", "parts": parts}
    if message.id:
        made["id"] = message.id
    if isinstance(message.metadata, dict):
        made["metadata"] = message.metadata
    return made


def replaced(snapshot: Mapping[str, Any], page: Sequence[UIMessage], *, regenerate: bool) -> str | None:
    """Find the message that the page's last one takes the place of; None: the session has nothing there.

    The page may know it under another id (the server renames one that was used before). Then its place tells: it is
    the first user message after the newest one that both have.
    """
    messages = snapshot["messages"]
    last = page[-1].id
    places = {message["id"]: place for place, message in enumerate(messages)}
    if last in places:
        return last
    anchor = max((places[message.id] for message in page[:-1] if message.id in places), default=-1)
    users = [message["id"] for message in messages[anchor + 1 :] if message["role"] == "user"]
    if anchor >= 0:
        return users[0] if users else None
    if not users and not snapshot["has_more"]:
        return None
    if users and (regenerate or (len(users) == 1 and not snapshot["has_more"])):
        return str(users[-1])
    return last  # older than the snapshot, or unknown: the session says which


def ui_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Give a transcript as ``useChat`` takes it to start with; a steered run is one answer."""
    made: list[dict[str, Any]] = []
    run_id = None
    for message in messages:
        if message["role"] == "user":
            made.append(_user(message))
            continue
        parts = [_part(part) for part in message["parts"]]
        answer = next((m for m in reversed(made) if m["role"] == "assistant"), None)
        if answer is not None and run_id == message["run_id"]:
            answer["parts"] += parts
            continue
        run_id = message["run_id"]
        metadata = {"run_id": run_id, "usage": message["usage"]}
        parts.insert(0, {"type": "step-start"})
        made.append({"id": message["id"], "role": "assistant", "metadata": metadata, "parts": parts})
    return made


def _user(message: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"metadata": message["metadata"]} if "metadata" in message else {}
    return {"id": message["id"], "role": "user", "parts": [_part(part) for part in message["parts"]], **metadata}


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "tool":
            return _tool(part)
        case "custom":
            return {"type": f"data-{part['name']}", "data": part["data"]}
        case "file":
            url = part.get("url") or f"data:{part['media_type']};base64,{part.get('data', '')}"
            name = {"filename": part["name"]} if part.get("name") is not None else {}
            return {"type": "file", "mediaType": part["media_type"], "url": url, **name}
        case kind:
            state = {"state": part["state"]} if "state" in part else {}
            return {"type": kind, "text": part["text"], **state}


def _tool(part: Mapping[str, Any]) -> dict[str, Any]:
    state, approval = part["state"], part.get("approval") or {}
    made = {"type": f"tool-{part['tool']}", "toolCallId": part["call_id"]}
    if "input" in part or state != "input-streaming":
        made["input"] = part.get("input")
    asked = {"id": approval["request_id"]} if approval else {}
    decision = approval.get("decision")
    if state == "approval-requested":
        return {**made, "state": state, "approval": asked}
    if state == "output-available":
        answered = {"approval": {**asked, "approved": True}} if decision == "allow" else {}
        return {**made, "state": state, "output": part["output"], **answered}
    if state == "output-error" and decision == "deny":
        return {**made, "state": "output-denied", "approval": {**asked, "approved": False}}
    if state == "output-error":
        return {**made, "state": state, "errorText": part["error"]}
    return {**made, "state": state if state == "input-streaming" else "input-available"}
