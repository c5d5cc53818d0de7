"""How many of something each principal or address may hold at once, and all of them together."""

from __future__ import annotations

from collections import Counter

from protocol.errors import CommandError

RETRY_AFTER_S = 1.0
"""When somebody who was refused may ask again."""


class Quota:
    """Counts holders of ``what`` (a plural). ``each`` and ``total`` bound them; 0 bounds nothing."""

    def __init__(self, what: str, *, each: int = 0, total: int = 0) -> None:
        self._what = what
        self._each = each
        self._total = total
        self._held: Counter[str] = Counter()
        self._sum = 0

    def check(self, holder: str) -> None:
        """Raise :exc:`CommandError` ``rate_limited`` if one more would be too many."""
        if self._each and self._held[holder] >= self._each:
            raise CommandError(
                "rate_limited", f"{self._each} {self._what} at once are the most", retry_after_s=RETRY_AFTER_S
            )
        if self._total and self._sum >= self._total:
            raise CommandError(
                "rate_limited", f"the server has as many {self._what} as it takes", retry_after_s=RETRY_AFTER_S
            )

    def take(self, holder: str) -> None:
        """Count one more, whatever the bounds: what must go on is not refused."""
        self._held[holder] += 1
        self._sum += 1

    def release(self, holder: str) -> None:
        """Count one less."""
        self._sum -= 1
        if self._held[holder] <= 1:
            del self._held[holder]
        else:
            self._held[holder] -= 1
