"""The agent of the document's transcripts: it does what the last user message says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


class Scripted:
    """``count`` says ``1 2 3``; ``hold`` says ``Once`` and waits for the abort; ``ask`` asks before it deletes;
    ``story`` takes a second.
    """

    def __init__(self) -> None:
        self._answers: dict[str, asyncio.Future[str]] = {}

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[dict[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield what the last message asks for; in mode ``resume`` the rest of the story."""
        wish = messages[-1]["parts"][0].get("text", "") if mode == "prompt" else "resume"
        if wish == "ask":
            answer = self._answers[session_id] = asyncio.get_running_loop().create_future()
            call = {"call_id": "call_1", "tool": "delete", "input": {"path": "x"}}
            yield {"type": "tool-call", **call}
            yield {"type": "approval-request", "request_id": "req_1", **call}
            waits = [asyncio.ensure_future(abort.wait()), answer]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            waits[0].cancel()
            if abort.is_set():
                return
            yield {"type": "tool-start", "call_id": "call_1"}
            yield {"type": "tool-result", "call_id": "call_1", "output": "deleted"}
        elif wish == "hold":
            yield {"type": "text-delta", "text": "Once"}
            await abort.wait()
        elif wish == "resume":
            for text in (" upon", " a time"):
                yield {"type": "text-delta", "text": text}
        elif wish == "story":
            for number in range(300):
                yield {"type": "text-delta", "text": f"{number} "}
                await asyncio.sleep(0.003)
        else:
            for text in ("1", " 2", " 3"):
                yield {"type": "text-delta", "text": text}

    async def respond(self, *, session_id: str, run_id: str, request_id: str, decision: str, value: Any) -> None:
        """Take a person's decision."""
        self._answers.pop(session_id).set_result(decision)


engine = Scripted()
