"""Where a stand-alone agent keeps its conversations. Inside the gateway the log's fold is the only truth instead."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from protocol.messages import Message


class SessionStore(Protocol):
    """Conversations by session id."""

    async def load(self, session_id: str) -> list[Message]:
        """Give the session's messages, oldest first; an unknown session is empty."""
        ...

    async def save(self, session_id: str, message: Message) -> None:
        """Append ``message``, or replace the one with its id."""
        ...


class MemoryStore:
    """Conversations in this process; past ``max_sessions`` the one unused for longest is forgotten."""

    def __init__(self, max_sessions: int = 1000) -> None:
        self._max_sessions = max_sessions
        self._sessions: OrderedDict[str, dict[str, Message]] = OrderedDict()

    async def load(self, session_id: str) -> list[Message]:
        """Give copies, so that no caller changes what is stored."""
        return copy.deepcopy(list(self._sessions.get(session_id, {}).values()))

    async def save(self, session_id: str, message: Message) -> None:
        """Keep a copy."""
        self._sessions.setdefault(session_id, {})[message["id"]] = copy.deepcopy(message)
        self._sessions.move_to_end(session_id)
        while len(self._sessions) > self._max_sessions:
            self._sessions.popitem(last=False)

    def __len__(self) -> int:
        return len(self._sessions)
