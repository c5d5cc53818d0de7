"""The programs in `gateway/examples/`, run as a reader would: served by `gateway serve`, or talking to it.

The two seeds are in `tests/engine/test_examples.py`, the mounted application in `test_mounted.py`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.support import ROOT, agree, check_log, fresh, text_of

if TYPE_CHECKING:
    from tests.e2e.conftest import Launch

HERE = Path(__file__).parent
TESTED = {
    "abort_after": ROOT / "tests/engine/test_examples.py",
    "cancellation": ROOT / "tests/engine/test_examples.py",
    "fastapi_app": HERE / "test_mounted.py",
    "langgraph_graph": ROOT / "tests/adapters/test_examples.py",
    "openai_agent": ROOT / "tests/adapters/test_examples.py",
    "pydantic_ai_agent": ROOT / "tests/adapters/test_examples.py",
    "talk": HERE / "test_examples.py",
    "ten_lines": HERE / "test_examples.py",
    "weather": HERE / "test_examples.py",
    "zett_agent_client": ROOT / "tests/adapters/test_examples.py",
}
"""Where each program is run."""


def test_every_example_is_run_by_a_test() -> None:
    found = {path.stem for path in (ROOT / "gateway/examples").glob("*.py")} - {"__init__"}
    assert found == set(TESTED)
    for name, test in TESTED.items():
        assert name in test.read_text()


async def test_the_ten_lines_echo_and_stop(launch: Launch) -> None:
    server = launch("gateway.examples.ten_lines:echo")
    session = fresh()
    async with server.client() as c:
        await c.run(session, "one two")
        assert text_of((await agree(server, c, session))["messages"][-1]) == "one two "
        ack = await c.prompt(session, "word " * 1000)
        await c.until("text-delta", run_id=ack["run_id"])
        await c.ok("abort", session_id=session)
        assert (await c.until("run-finish", run_id=ack["run_id"]))["status"] == "aborted"
        await agree(server, c, session)
    check_log(await server.log(session))


async def test_the_weather_agent_answers(launch: Launch) -> None:
    server = launch("gateway.examples.weather:agent", scripted_pace=0)
    session = fresh()
    async with server.client() as c:
        assert (await c.run(session, "think"))["status"] == "completed"
        await agree(server, c, session)


@pytest.mark.parametrize("target", ["gateway.examples.weather:agent"])
async def test_talk_is_stopped_and_resumed(launch: Launch, target: str) -> None:
    server = launch(target, scripted_pace=0.01)
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-m", "gateway.examples.talk", f"ws://127.0.0.1:{server.port}/ws"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        out, err = await program.communicate()
    assert (program.returncode, err.decode()) == (0, "")
    assert out.decode().splitlines() == ["stopped: aborted", "resumed: completed"]
    [row] = (await server.http("GET", "/api/sessions")).body["sessions"]
    messages = (await server.snapshot(row["session_id"]))["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "assistant"]
    check_log(await server.log(row["session_id"]))
