"""A session's messages: the newest folded in memory, the older ones in the store, each stored once and whole.

Positions count messages from 0, the oldest. Those below ``stored`` are rows of the store; those from ``window`` on are
in the fold; ``window <= stored`` always, so nothing is nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from gateway.stores.base import Compaction, MessageRow
from protocol.codec import MAX_MESSAGE_BYTES, encode
from protocol.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gateway.stores.base import StoredSession

SNAPSHOT_MESSAGES = 50
SNAPSHOT_BYTES = MAX_MESSAGE_BYTES - 4096
"""What the messages of a snapshot may take; the rest is for the frame around them."""

WAITING_BYTES = 256 * 1024
"""What queued prompts and open approvals may take of a snapshot."""


class Archive:
    """The committed fold of one session and where its older messages are."""

    __slots__ = ("fold", "seen", "stored", "window")

    def __init__(self) -> None:
        self.fold = Transcript()
        self.seen: set[str] = set()
        """Ids that engines and clients gave; the session renames repeats, also across restarts."""
        self.window = 0
        self.stored = 0

    def restore(self, found: StoredSession) -> None:
        """Take over a stored session's checkpoint.

        Call :meth:`finish_restore` after the chunks past the checkpoint have been applied: a removal among them has
        already been carried out on the stored rows and must not reach the tail a second time.
        """
        self.window = self.stored = found.stored_messages
        if found.checkpoint is not None:
            checkpoint = orjson.loads(found.checkpoint)
            self.fold.load(checkpoint)
            self.seen.update(checkpoint["seen"])
        self.fold.epoch = found.row.epoch

    def finish_restore(self, tail: Sequence[bytes]) -> None:
        """Put the newest stored messages in front of the fold."""
        messages = [orjson.loads(data) for data in tail]
        self.fold.messages[:0] = messages
        self.window = self.stored - len(messages)

    @property
    def count(self) -> int:
        """How many messages the session has in all."""
        return self.window + len(self.fold.messages)

    def note_ids(self, event: Mapping[str, Any]) -> None:
        """Remember the ids of an event read back from the store."""
        self.seen.update(event[name] for name in ("message_id", "part_id", "call_id", "request_id") if name in event)
        if "message" in event:
            self.seen.add(event["message"]["id"])

    def apply(self, event: Mapping[str, Any], removed_at: int | None = None) -> None:
        """Fold one committed event; ``removed_at`` is the position of a removed message that is only in the store."""
        if event["type"] == "messages-removed":
            at = self.position(event["from_message_id"])
            if at is None:
                at = self.window if removed_at is None else removed_at
                self.window = min(self.window, at)  # the fold will drop all it holds
            self.stored = min(self.stored, at)
        self.fold.apply(event)

    def position(self, message_id: str) -> int | None:
        """Find a message among those in memory."""
        for index, message in enumerate(self.fold.messages):
            if message["id"] == message_id:
                return self.window + index
        return None

    def slice(self, start: int, stop: int) -> list[dict[str, Any]]:
        """Give the messages in memory at positions ``start`` to before ``stop``."""
        messages = self.fold.messages
        return messages[max(0, start - self.window) : max(0, stop - self.window)]

    def snapshot(self, session_id: str) -> bytes:
        """Encode the snapshot frame: newest messages, at most 50 and 1 MiB, and every open part."""
        fold = self.fold
        messages = fold.messages
        head = encode(
            {
                "type": "snapshot",
                "session_id": session_id,
                "epoch": fold.epoch,
                "seq": fold.seq,
                "status": fold.status,
                "run_id": fold.run_id,
                "resumable": fold.resumable,
                **_waiting(fold),
            }
        )
        room = min(SNAPSHOT_BYTES, MAX_MESSAGE_BYTES - len(head) - 64)
        chosen: list[bytes] = []
        size = 0
        for message in reversed(messages[-SNAPSHOT_MESSAGES:]):
            data = encode(message)
            if size + len(data) + 1 > room:
                if not chosen:
                    chosen.append(encode(fit(message, room)))
                break
            chosen.append(data)
            size += len(data) + 1
        chosen.reverse()
        more = b"true" if self.window + len(messages) > len(chosen) else b"false"
        return head[:-1] + b',"has_more":' + more + b',"messages":[' + b",".join(chosen) + b"]}"

    def compaction(self, drop_to: int) -> Compaction:
        """Plan what to store so that events up to the fold's seq are no longer needed to rebuild it."""
        messages = self.fold.messages
        rows = []
        index = self.stored - self.window
        while index < len(messages) and _finished(messages[index]):
            message = messages[index]
            rows.append(MessageRow(self.window + index, message["id"], encode(message)))
            index += 1
        rest = self.fold.dump() | {"messages": messages[index:], "seen": list(self.seen)}
        return Compaction(self.fold.seq, encode(rest), rows, min(drop_to, self.fold.seq))

    def compacted(self, compaction: Compaction) -> None:
        """Note that a compaction is committed; let go of what the store now has."""
        self.stored_to(compaction.messages[-1].position + 1 if compaction.messages else self.stored)

    def stored_to(self, count: int) -> None:
        """The store has the oldest ``count`` messages: let go of those that no snapshot needs."""
        self.stored = min(count, self.count)
        surplus = min(len(self.fold.messages) - SNAPSHOT_MESSAGES, self.stored - self.window)
        if surplus > 0:
            del self.fold.messages[:surplus]
            self.window += surplus


def _finished(message: Mapping[str, Any]) -> bool:
    return message["role"] == "user" or message["completed_at"] is not None


def _waiting(fold: Transcript) -> dict[str, Any]:
    """Give a snapshot's queue and open approvals, cut where together they would leave no room for messages."""
    waiting: dict[str, Any] = {"pending": fold.pending, "queue": fold.queue}
    if len(encode(waiting)) <= WAITING_BYTES:
        return waiting
    share = WAITING_BYTES // (len(fold.pending) + len(fold.queue))
    pending = [dict(entry) for entry in fold.pending]
    for entry in pending:
        _shorten(entry, "input", share, share)
    return {"pending": pending, "queue": [entry | {"message": fit(entry["message"], share)} for entry in fold.queue]}


def fit(message: dict[str, Any], limit: int) -> dict[str, Any]:
    """Cut the longest strings of a message's parts, marked ``truncated``, until it fits ``limit`` bytes.

    Open parts are cut last: their text is still growing at the client. A message that consists of too many parts loses
    the oldest of them.
    """
    total = len(encode(message))
    message = message | {"parts": [dict(part) for part in message["parts"]]}
    parts = sorted(message["parts"], key=_is_open)
    for allowance in (limit // 2, limit // 8, limit // 64, limit // 1024, 64, 0):
        for part in parts:
            for name in ("text", "output", "raw_input", "input", "progress", "error", "data"):
                if total <= limit:
                    return message
                if name in part:
                    total -= _shorten(part, name, allowance, total - limit)
    if total > limit and "metadata" in message:
        total -= len(encode(message.pop("metadata")))
    gone: set[int] = set()
    for part in parts:
        if total <= limit:
            break
        total -= len(encode(part)) + 1
        gone.add(id(part))
    message["parts"] = [part for part in message["parts"] if id(part) not in gone]
    return message


def _is_open(part: Mapping[str, Any]) -> bool:
    return part.get("state") in ("streaming", "input-streaming", "running")


def _shorten(item: dict[str, Any], name: str, allowance: int, excess: int) -> int:
    """Cut a value by ``excess`` bytes, at most down to ``allowance``; gives the bytes saved."""
    value = item[name]
    before = len(encode(value))
    if before <= allowance:
        return 0
    text = value if isinstance(value, str) else encode(value).decode()
    item[name] = cut_text(text, max(allowance, before - excess - 64))
    saved = before - len(encode(item[name]))
    if "truncated" not in item:
        item["truncated"] = True
        saved -= len(b',"truncated":true')
    return saved


def cut_text(text: str, limit: int) -> str:
    """Cut text so that it takes at most ``limit`` bytes as JSON (escapes counted, quotes not)."""
    if len(text) * 6 <= limit:
        return text
    text = text[:limit]
    while True:
        size = len(encode(text)) - 2
        if size <= limit:
            return text
        text = text[: min(len(text) - 1, len(text) * limit // size)]
