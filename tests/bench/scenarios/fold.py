"""(l) the fold in Python and in TypeScript, over the same events."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from protocol.transcript import Transcript
from tests.bench.measure import Contestant, Outcome, in_turn
from tests.bench.process import CLIENT_CORE, ROOT
from tests.bench.rivals.base import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.bench.plan import Plan

BUNDLER = ROOT / "web/node_modules/.bin/rolldown"
RUN = {"session_id": "s", "run_id": "r"}
PER_MESSAGE = 2000


def events(count: int) -> Iterator[dict[str, Any]]:
    """Give runs of an answer with text and a tool whose progress is shown, about ``count`` events in all."""
    seq = 0

    def stamped(kind: str, **fields: Any) -> dict[str, Any]:
        nonlocal seq
        seq += 1
        return {"type": kind, "seq": seq, **RUN, "time": 0, **fields}

    for number in range(max(count // PER_MESSAGE, 1)):
        message, part, call = f"m{number}", f"p{number}", f"c{number}"
        at = {"message_id": message}
        yield stamped("run-start", mode="prompt")
        yield stamped("message-start", **at, role="assistant")
        yield stamped("text-start", **at, part_id=part)
        for _ in range(min(count, PER_MESSAGE) - 200):
            yield stamped("text-delta", **at, part_id=part, text="token ")
        yield stamped("text-end", **at, part_id=part)
        yield stamped("tool-call", **at, part_id=f"t{number}", call_id=call, tool="t", input={})
        yield stamped("tool-start", call_id=call)
        for progress in range(190):
            yield stamped("tool-progress", call_id=call, data=progress)
        yield stamped("tool-result", call_id=call, output="done")
        yield stamped("message-finish", **at, finish_reason="stop", usage=None, error=None)
        yield stamped("run-finish", status="completed", reason=None, error=None, settled=True)


async def fold(plan: Plan) -> Outcome:
    """(l): events already parsed; both must come to the same messages."""
    taken = list(events(plan.folded))
    node = shutil.which("node")
    lengths: set[int] = set()

    async def in_python() -> float:
        transcript = Transcript()
        watch = Stopwatch()
        for event in taken:
            transcript.apply(event)
        messages = transcript.messages
        seconds = watch.seconds
        lengths.add(len(json.dumps(messages, separators=(",", ":"))))
        return len(taken) / seconds

    with tempfile.TemporaryDirectory() as folder:
        contestants = {"gateway": Contestant(in_python)}
        left_out = {}
        if node is None or not BUNDLER.exists():
            left_out["TypeScript"] = "no web/node_modules: cd web && npm ci"
        else:
            frames, program = Path(folder) / "frames.jsonl", Path(folder) / "fold.mjs"
            frames.write_bytes(b"\n".join(orjson.dumps(event) for event in taken))
            source = Path(__file__).with_name("fold.ts")
            bundle = [str(BUNDLER), str(source), "--platform", "node", "--format", "esm", "--file", str(program)]
            await asyncio.to_thread(subprocess.run, bundle, cwd=ROOT / "web", check=True, stdout=subprocess.DEVNULL)

            async def in_typescript() -> float:
                command = ["taskset", "-c", str(CLIENT_CORE), node, str(program), str(frames)]
                done = await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
                said = json.loads(done.stdout)
                lengths.add(said["length"])
                return len(taken) / float(said["seconds"])

            contestants["TypeScript"] = Contestant(in_typescript)
        values = await in_turn(plan.rounds, contestants)
    if len(lengths) != 1:
        raise AssertionError(f"the two folds differ: {lengths}")
    return Outcome("l", "the fold, Python and TypeScript", "events/s", "higher", values, left_out=left_out)
