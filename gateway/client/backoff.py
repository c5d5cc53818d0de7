"""When to come back: exponential, with full jitter, so that a thousand clients do not come back together."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Backoff:
    """Delays in seconds: uniform in 0 … ``base`` · 2ⁿ, at most ``cap``, never sooner than the server asked."""

    def __init__(self, base: float = 0.5, cap: float = 30.0, rand: Callable[[], float] = random.random) -> None:
        self._base = base
        self._cap = cap
        self._rand = rand
        self._attempt = 0

    def next(self, retry_after_s: float = 0.0) -> float:
        """Give the next delay; ``retry_after_s`` is added where the server named one."""
        self._attempt += 1
        return self.delay(self._attempt, retry_after_s)

    def delay(self, attempt: int, retry_after_s: float = 0.0) -> float:
        """Give a delay before the next attempt where somebody else counts them: ``attempt`` have failed."""
        ceiling: float = min(self._cap, self._base * 2 ** min(attempt - 1, 30))
        return retry_after_s + self._rand() * ceiling

    def reset(self) -> None:
        """Start over: a connection stood."""
        self._attempt = 0
