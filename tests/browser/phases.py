"""An engine that stands still in every phase of a run until a file in the folder `PHASES` lets it go on."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Phases:
    """One of everything, and a stop between; `stubborn` takes no notice of an abort until it may."""

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[str]] = {}

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield each kind of part, half of it before the phase's permit."""
        wish = messages[-1]["parts"][0]["text"]
        if wish == "stubborn":
            yield {"type": "text-delta", "text": "I go on."}
            await abort.wait()
            await permit("aborting")
            return
        if wish != "everything":
            yield {"type": "text-delta", "text": f"You said {wish}."}
            return
        await permit("started")
        yield {"type": "reasoning-delta", "text": "Let me th"}
        await permit("reasoning")
        yield {"type": "reasoning-delta", "text": "ink."}
        yield {"type": "text-delta", "text": "Half of a sen"}
        await permit("text")
        yield {"type": "text-delta", "text": "tence."}
        call: dict[str, Any] = {"call_id": "call_1", "tool": "delete"}
        yield {"type": "tool-input-start", **call}
        yield {"type": "tool-input-delta", **call, "text": '{"path": "a'}
        await permit("argument")
        yield {"type": "tool-input-delta", **call, "text": '.txt"}'}
        call["input"] = {"path": "a.txt"}
        yield {"type": "tool-call", **call}
        answer = self._answers[session_id] = asyncio.get_running_loop().create_future()
        yield {"type": "approval-request", "request_id": f"req_{session_id}", **call}
        await answer
        yield {"type": "tool-start", "call_id": "call_1"}
        yield {"type": "tool-progress", "call_id": "call_1", "data": {"done": 1, "total": 2}}
        await permit("running")
        yield {"type": "tool-result", "call_id": "call_1", "output": "deleted"}
        yield {"type": "text-delta", "text": "Done."}

    async def respond(self, *, session_id: str, run_id: str, request_id: str, decision: str, value: Any) -> None:
        """Take a person's decision."""
        self._answers.pop(session_id).set_result(decision)


async def permit(phase: str) -> None:
    """Wait until the test has put this phase's file there."""
    while not Path(os.environ["PHASES"], phase).exists():  # noqa: ASYNC110 - the test is another process
        await asyncio.sleep(0.01)


engine = Phases()
