"""From a prompt to the user messages that it adds, and to a session's title."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from gateway.archive import fit
from gateway.ids import new_id, now_ms
from protocol.codec import MAX_MESSAGE_BYTES, clean_text, encode, jsonable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protocol.commands import Prompt
    from protocol.messages import UserMessage

TITLE_CHARS = 80
MAX_USER_BYTES = MAX_MESSAGE_BYTES - 4096
"""What a user message may take, encoded: the event around it stays within 1 MiB."""

_OWN_ID = re.compile(r"msg_[0-9a-f]{23}\Z")
"""What our own message ids look like: a client that gives one repeats one it was given."""


def user_messages(command: Prompt, is_taken: Callable[[str], bool]) -> list[UserMessage]:
    """Give the messages of a prompt, complete. A message keeps its client's id unless the session has had it."""
    contents: list[tuple[str | None, list[Any], dict[str, Any] | None]]
    if command.text is not None:
        contents = [(None, [{"type": "text", "text": clean_text(command.text)}], None)]
    else:
        contents = [
            (given.id, [jsonable(part.model_dump(exclude_none=True)) for part in given.parts], given.metadata)
            for given in command.messages or ()
        ]
    messages: list[UserMessage] = []
    for id_, parts, metadata in contents:
        if id_ is None or _OWN_ID.match(id_) or is_taken(id_):
            id_ = new_id("msg")
        message: UserMessage = {"id": id_, "role": "user", "parts": parts, "created_at": now_ms()}
        metadata = metadata if metadata is not None else command.metadata
        if metadata is not None:
            message["metadata"] = jsonable(metadata)
        if len(encode(message)) > MAX_USER_BYTES:
            message = cast("UserMessage", fit(cast("dict[str, Any]", message), MAX_USER_BYTES))
        messages.append(message)
    return messages


def size_of(command: Prompt) -> int:
    """Give the bytes of what a prompt says, as JSON."""
    if command.text is not None:
        return len(encode(command.text)) - 2
    return sum(len(given.model_dump_json(exclude_none=True).encode()) for given in command.messages or ())


def title_of(messages: Sequence[UserMessage]) -> str | None:
    """Give the first line of text, short enough for a list; None where there is no text."""
    for message in messages:
        for part in message["parts"]:
            if part["type"] == "text":
                line = " ".join(part["text"].split())
                if line:
                    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…"
    return None
