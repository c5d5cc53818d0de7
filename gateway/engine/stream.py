"""The reader's end of a run: a thin generator over the run's own task."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, cast

from gateway.engine.abort import outlast
from gateway.engine.port import EngineEvent

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import AsyncGeneratorType

    from gateway.engine.loop import Run


async def _read(run: Run) -> AsyncGenerator[EngineEvent, None]:
    """Yield the run's events; whichever way the reader leaves, the run is sealed before this generator is closed.

    Nothing is held across a ``yield`` but the run's task: no cancel scope, no task group, no provider's connection.
    """
    task = run.start()
    try:
        while (event := await run.outbox.get()) is not None:
            yield event
        if run.refusal is not None:
            raise run.refused()
    finally:
        run.close("closed")
        await outlast(task)


class EventStream(AsyncGenerator[EngineEvent, None]):
    """A run's events, an async generator whose ``aclose`` seals the run also while another task is reading.

    Dropped without ``aclose``, the inner generator is closed by the loop, which comes to the same.
    """

    __slots__ = ("_events", "_run")

    def __init__(self, run: Run) -> None:
        self._run = run
        # A plain function's generator: that of a method would form a cycle, and live until the collector comes by.
        self._events: AsyncGeneratorType[EngineEvent, None] = cast("Any", _read(run))

    def __aiter__(self) -> EventStream:
        return self

    def __anext__(self) -> Coroutine[Any, Any, EngineEvent]:
        return self._events.__anext__()

    def asend(self, value: None) -> Coroutine[Any, Any, EngineEvent]:
        """See ``AsyncGenerator``."""
        return self._events.asend(value)

    def athrow(self, *args: Any) -> Coroutine[Any, Any, EngineEvent]:
        """See ``AsyncGenerator``."""
        return self._events.athrow(*args)

    async def aclose(self) -> None:
        """Stop the run and return once it is sealed.

        Raises RuntimeError, after the seal, while another task waits in ``__anext__``: that task reads on to the
        terminal event.
        """
        if self._events.ag_running and self._run.task is not None:
            self._run.close("closed")
            await outlast(self._run.task)
            raise RuntimeError("the stream was closed while another task was reading it; the run is sealed")
        await self._events.aclose()
