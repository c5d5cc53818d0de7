"""Steering: a prompt that is given to the live run instead of starting one.

The engine takes it at its next safe point: the message so far ends ``steered``, the prompt's messages follow, and a new
assistant message answers. Only then is the prompt acknowledged, for only then has it had an effect. If the run ends
first, or the engine declines, the prompt runs like a queued one.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.run import Run, RunSpec

logger = logging.getLogger(__name__)


class Steering:
    """One prompt on its way into a live run. ``done`` resolves once its effect is committed, whichever it is."""

    def __init__(self, spec: RunSpec, place: Callable[[Run], None], decline: Callable[[], None]) -> None:
        self.spec = spec
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.decided = False
        self._place = place
        self._decline = decline

    def place(self, run: Run) -> None:
        """The run takes it now: append its messages to the log."""
        self.decided = True
        self._place(run)

    def decline(self) -> None:
        """The run ended without it, or the engine would not have it."""
        if self.decided:
            return
        self.decided = True
        try:
            self._decline()
        except CommandError as exc:
            self.fail(exc)

    def drop(self) -> None:
        """The run was stopped before it took the prompt, and what waited for it goes too: nothing has happened."""
        if not self.decided:
            self.decided = True
            self.fail(CommandError("session_busy", "the run was stopped before it took this prompt"))

    def fail(self, error: CommandError) -> None:
        """Let the command end with an error."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # a caller that has gone away need not look

    def follow(self, effect: asyncio.Future[None]) -> None:
        """End as ``effect`` ends."""
        effect.add_done_callback(self._settle)

    def _settle(self, effect: asyncio.Future[None]) -> None:
        error = effect.exception() if not effect.cancelled() else None
        if error is None:
            if not self.done.done():
                self.done.set_result(None)
        elif isinstance(error, CommandError):
            self.fail(error)

    async def offer(self, engine: Any, run: Run, session_id: str) -> None:
        """Ask the engine, and act on its answer unless the run has shown or ended it already."""
        try:
            taken = await engine.steer(session_id=session_id, run_id=run.run_id, messages=self.spec.messages)
        except Exception:
            logger.exception("run %s: the engine failed to take a steering prompt", run.run_id)
            taken = False
        if self.decided:
            return
        if not taken or run.finished or run.reason is not None:
            self.decline()
        elif not getattr(engine, "announces_steering", False):
            run.place(self)
        # Else the engine yields ``message-added`` exactly where it took the messages, and the run places them there.
