"""The engine of the cluster's tests: it says words at a pace, and notes in a file what it does, where and when.

A prompt's text is JSON: ``{"steps": 5, "pause": 0.05}``; ``{"gate": path}`` waits for a file after the first word;
``{"ask": true}`` asks for an approval first. Anything else is said back.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

_LOG = os.environ.get("RUN_LOG")


def _show_tasks(*_: object) -> None:
    """Write where every task is: for a node that does not come to an end."""
    for task in asyncio.all_tasks():
        task.print_stack(file=sys.stderr)


signal.signal(signal.SIGUSR1, _show_tasks)


def note(what: str, session: str, text: str = "") -> None:
    """One line, in one write: the file is shared by all nodes."""
    if _LOG is not None:
        line = f"{what}\t{session}\t{text}\t{os.getpid()}\t{time.monotonic():.6f}\n"
        descriptor = os.open(_LOG, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)


class Steps:
    """Says ``w0 w1 …``; takes steering between two words, and answers."""

    def __init__(self) -> None:
        self._steered: dict[str, list[Any]] = {}
        self._answers: dict[str, asyncio.Future[str]] = {}

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]
    ) -> AsyncIterator[dict[str, Any]]:
        text = next((p["text"] for m in reversed(messages) if m["role"] == "user" for p in m["parts"]), "")
        try:
            todo = json.loads(text)
        except ValueError:
            todo = {}
        if not isinstance(todo, dict):
            todo = {}
        note("start", session_id, mode)
        try:
            if todo.get("ask"):
                call = {"call_id": f"call-{os.getpid()}-{time.monotonic_ns()}", "tool": "ask"}
                yield {"type": "tool-call", "input": {}, **call}
                answer = self._answers[session_id] = asyncio.get_running_loop().create_future()
                yield {"type": "approval-request", "request_id": f"req-{call['call_id']}", "input": {}, **call}
                decision = await _first(answer, abort)
                if decision is None:
                    return
                yield {"type": "tool-start", "call_id": call["call_id"]}
                yield {"type": "tool-result", "call_id": call["call_id"], "output": decision}
            for number in range(int(todo.get("steps", 2))):
                if abort.is_set():
                    return
                note("step", session_id, str(number))
                yield {"type": "text-delta", "text": f"w{number} " + "x" * int(todo.get("pad", 0))}
                gate = todo.get("gate")
                if gate:
                    await _opened(Path(gate), abort)
                await asyncio.sleep(float(todo.get("pause", 0.01)))
        finally:
            note("end", session_id, mode)

    async def respond(self, *, session_id: str, decision: str, **_: Any) -> bool:
        waiting = self._answers.pop(session_id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(decision)
        return waiting is not None

    async def steer(self, *, session_id: str, run_id: str, messages: Sequence[Any]) -> bool:
        return True


async def _opened(gate: Path, abort: asyncio.Event) -> None:
    for _ in range(100_000):
        if gate.exists() or abort.is_set():
            return
        await asyncio.sleep(0.02)


async def _first(answer: asyncio.Future[str], abort: asyncio.Event) -> str | None:
    stop = asyncio.create_task(abort.wait())
    stop.add_done_callback(lambda _: answer.cancel())
    await asyncio.wait([answer])
    stop.cancel()
    return None if answer.cancelled() else answer.result()


steps = Steps()
