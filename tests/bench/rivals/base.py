"""What a rival is to the scenarios: how it is started, and what it can be asked to do."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.bench.process import Server


class Rival(Protocol):
    """One way to bring an agent's tokens to a client."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        ...

    def missing(self) -> str | None:
        """Say what this machine lacks to run it; None: nothing."""
        ...

    def serve(self) -> AbstractContextManager[Server]:
        """Start it."""
        ...

    async def flood(self, port: int, events: int, sessions: int = 1) -> float:
        """Have so many events sent over one connection, from so many sessions at once; give the seconds it took."""
        ...


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    @property
    def seconds(self) -> float:
        """How long so far."""
        return time.perf_counter() - self._start
