"""Who owns a session: the connections that are there, and those that broke and still count for their grace.

The contract's disconnect rule: the session is left once nobody owns it any more. A connection that broke counts until
its grace is over; one that comes back as owner takes the place of the one lost longest ago.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gateway.services import Caller


class _Lost:
    """A broken connection; it counts until its timer has run."""

    timer: asyncio.TimerHandle


class Owners:
    """The owners of one session; ``left`` is called when an owner's end leaves nobody."""

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left
        self._present: set[Caller] = set()
        self._lost: list[_Lost] = []

    def __contains__(self, caller: Caller) -> bool:
        return caller in self._present

    def __iter__(self) -> Iterator[Caller]:
        return iter(self._present)

    def __len__(self) -> int:
        return len(self._present)

    @property
    def held(self) -> bool:
        """Somebody owns the session, or may come back in time."""
        return bool(self._present or self._lost)

    @property
    def awaited(self) -> bool:
        """Somebody whose connection broke may come back in time."""
        return bool(self._lost)

    def add(self, caller: Caller) -> None:
        """A connection owns the session from now on; it takes the place of the longest lost one, if any."""
        if caller in self._present:
            return
        if self._lost:
            self._lost.pop(0).timer.cancel()
        self._present.add(caller)

    def discard(self, caller: Caller) -> None:
        """A connection owns it no longer; nothing follows from that."""
        self._present.discard(caller)

    def lose(self, caller: Caller, grace_s: float) -> None:
        """A connection has ended; it still counts for ``grace_s`` seconds."""
        self._present.discard(caller)
        if grace_s <= 0:
            self._check()
            return
        lost = _Lost()
        lost.timer = asyncio.get_running_loop().call_later(grace_s, self._grace_over, lost)
        self._lost.append(lost)

    def _grace_over(self, lost: _Lost) -> None:
        self._lost.remove(lost)
        self._check()

    def _check(self) -> None:
        if not self.held:
            self._left()
