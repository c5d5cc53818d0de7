"""The two seed programs, executed as a reader would."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "gateway" / "examples"


def execute(name: str, *arguments: str, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=EXAMPLES.parents[1],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES.parents[1]), "PYTHONIOENCODING": "utf-8", **env},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_the_second_seed_prints_its_two_lines() -> None:
    assert execute("cancellation.py") == "Cancelled request; extension state cleared\nPartial answer\n"


def test_the_second_seed_differs_from_the_original_in_its_import_lines_only() -> None:
    """Everything but the imports of the agent is to the letter."""
    tree = ast.parse((EXAMPLES / "cancellation.py").read_text(encoding="utf-8"))
    tree.body = [
        node for node in tree.body if not (isinstance(node, ast.ImportFrom) and node.module == "gateway.engine")
    ]
    names = [type(node).__name__ for node in tree.body]
    assert names == ["Expr", "Import", "ImportFrom", "ImportFrom", "ClassDef", "ClassDef", "AsyncFunctionDef", "If"]
    assert ORIGINAL_MAIN in (EXAMPLES / "cancellation.py").read_text(encoding="utf-8")


def test_the_first_seed_aborts_and_resumes_where_it_stopped() -> None:
    """The answer, cut by the abort and continued by the resume, is the whole answer."""
    whole = execute("abort_after.py", "0.25", GATEWAY_SCRIPTED_PACE="0.01")
    before, after = whole.split("\n[AbortError: Aborted]\n")
    assert before.startswith("Hello!")
    assert after.endswith("[resumed: stop]\n")
    from gateway.engine.models.answers import WELCOME

    assert before + after.removesuffix("\n[resumed: stop]\n") == WELCOME


ORIGINAL_MAIN = """\
async def main() -> None:
    tracker = WorkTracker()
    client = await create_agent(StreamingModel(), extensions=[tracker])
    # stream() is annotated AsyncIterator but is an async generator, which aclosing needs.
    async with aclosing(client.stream("Start")) as events:  # type: ignore[type-var]
        async for event in events:
            if event.type == AgentEventType.TEXT_DELTA:
                break
    assert client.agent.state.phase == AgentPhase.CANCELLED and not tracker.active
    print("Cancelled request; extension state cleared")
    print((await client.run("Try again")).content)
    assert client.agent.state.phase == AgentPhase.COMPLETED and not tracker.active
"""
