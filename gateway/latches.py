"""Aborts of commands that have not come yet: Stop may be pressed, and heard, before the prompt is."""

from __future__ import annotations

import asyncio

LATCH_S = 60.0
"""How long an abort waits for its command (contract, ``abort``)."""

MAX_LATCHES = 10_000
"""So many wait at most; past it the principal that has most loses its oldest: a flood drives out nobody else's."""


class Latches:
    """Principal → command id → the abort's detail, for a minute."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, tuple[float, str]]] = {}
        self._count = 0

    def set(self, principal: str, command_id: str, detail: str | None) -> None:
        """Remember an abort."""
        self.drop(principal, command_id)
        if self._count >= MAX_LATCHES:
            crowd = max(self._held, key=lambda one: len(self._held[one]))
            self.drop(crowd, next(iter(self._held[crowd])))
        self._held.setdefault(principal, {})[command_id] = (asyncio.get_running_loop().time() + LATCH_S, detail or "")
        self._count += 1

    def peek(self, principal: str, command_id: str | None) -> str | None:
        """The command is here: give the detail of the abort that came first, None if none did.

        It stays until the command has been accepted: one that is refused may come again.
        """
        if command_id is None:
            return None
        expires, detail = self._held.get(principal, {}).get(command_id, (0.0, ""))
        return detail if asyncio.get_running_loop().time() < expires else None

    def drop(self, principal: str, command_id: str | None) -> None:
        """The command has been accepted, or had been before."""
        held = self._held.get(principal, {})
        if command_id is not None and held.pop(command_id, None) is not None:
            self._count -= 1
            if not held:
                del self._held[principal]

    def expire(self, now: float) -> None:
        """Forget those whose command never came."""
        for principal, held in list(self._held.items()):
            for command_id in [key for key, (expires, _) in held.items() if expires < now]:
                self.drop(principal, command_id)
