"""How long something took, told apart from how long the machine let it wait."""

from __future__ import annotations

import threading
import time
from typing import Self

TICK_S = 0.005


class Stopwatch:
    """``with Stopwatch() as watch``: then ``watch.seconds()``.

    A thread wakes every few milliseconds. By what it wakes late, and this process has not computed, others had the
    processors: that time does not count. What the process itself computes, sleeps or waits for does.
    """

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._kept_from = 0.0
        self._thread = threading.Thread(target=self._tick, name="stopwatch", daemon=True)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def seconds(self) -> float:
        """Give the time since the beginning that was this process's own."""
        return time.monotonic() - self._began - self._kept_from

    def _tick(self) -> None:
        before, computed = time.monotonic(), time.process_time()
        while not self._over.wait(TICK_S):
            now, spent = time.monotonic(), time.process_time()
            self._kept_from += max(0.0, now - before - TICK_S - (spent - computed))
            before, computed = now, spent
