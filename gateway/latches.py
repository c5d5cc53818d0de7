"""Aborts of commands that have not come yet: Stop may be pressed, and heard, before the prompt is."""

from __future__ import annotations

import asyncio

LATCH_S = 60.0
"""How long an abort waits for its command (contract, ``abort``)."""

MAX_LATCHES = 10_000
"""So many wait at most; past it the oldest is forgotten."""


class Latches:
    """(principal, command id) → the abort's detail, for a minute."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], tuple[float, str]] = {}

    def set(self, principal: str, command_id: str, detail: str | None) -> None:
        """Remember an abort."""
        while len(self._held) >= MAX_LATCHES:
            del self._held[next(iter(self._held))]
        self._held[principal, command_id] = (asyncio.get_running_loop().time() + LATCH_S, detail or "")

    def peek(self, principal: str, command_id: str | None) -> str | None:
        """The command is here: give the detail of the abort that came first, None if none did.

        It stays until the command has been accepted: one that is refused may come again.
        """
        if command_id is None:
            return None
        expires, detail = self._held.get((principal, command_id), (0.0, ""))
        return detail if asyncio.get_running_loop().time() < expires else None

    def drop(self, principal: str, command_id: str | None) -> None:
        """The command has been accepted, or had been before."""
        if command_id is not None:
            self._held.pop((principal, command_id), None)

    def expire(self, now: float) -> None:
        """Forget those whose command never came."""
        for key in [key for key, (expires, _) in self._held.items() if expires < now]:
            del self._held[key]
