"""A loop whose time stands still until a test moves it: timers fire in order, nothing sleeps."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from gateway import ids, run

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

T = TypeVar("T")

START_S = 1_767_225_600.0
"""The wall clock of a fresh loop: 2026-01-01."""


class FakeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own; ``problems`` collects what nobody handled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.problems: list[dict[str, Any]] = []
        self.busy: Callable[[], bool] = lambda: False
        """True while a thread still owes an answer: then an empty loop is not at rest."""
        self.set_exception_handler(lambda _, context: self.problems.append(context))

    def time(self) -> float:
        return self.now

    def wall_ns(self) -> int:
        return int((START_S + self.now) * 1_000_000) * 1000

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(work)

    def settle(self) -> None:
        """Run until nothing is left to do at this moment."""
        self.run_until_complete(self._rest())

    async def _rest(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]  # there is no public way to see that a loop is at rest
        while True:
            await asyncio.sleep(0)
            if not ready and not self.busy():
                return

    def advance(self, seconds: float) -> None:
        """Let time pass, firing each timer at its own moment."""
        timers: Any = self._scheduled  # type: ignore[attr-defined]
        until = self.now + seconds
        self.settle()
        while True:
            due = [timer.when() for timer in timers if not timer.cancelled() and timer.when() <= until]
            if not due:
                break
            self.now = max(self.now, min(due))
            self.settle()
        self.now = until
        self.settle()

    def kill_tasks(self) -> None:
        """End every task, however often it has to be told."""
        for _ in range(50):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self.settle()
        raise AssertionError(f"tasks that cannot be ended: {asyncio.all_tasks(self)}")


class _Time:
    def __init__(self, loop: FakeLoop) -> None:
        self._loop = loop

    def time_ns(self) -> int:
        return self._loop.wall_ns()


@contextmanager
def fake_loop() -> Iterator[FakeLoop]:
    """Give a loop whose clock is also the wall clock that the gateway reads; nothing may be left unhandled in it."""
    loop = FakeLoop()
    with patch.object(ids, "time", _Time(loop)), patch.object(run, "clock", loop.time):
        try:
            yield loop
            assert loop.problems == []
        finally:
            with contextlib.suppress(AssertionError):
                loop.kill_tasks()
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
