"""Of a run that is over, however it ended, nothing waits for the garbage collector: it holds the whole history."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from typing import TYPE_CHECKING

import pytest

from gateway.engine import Agent, tool, user_message
from gateway.engine.errors import NotResumable
from gateway.engine.models.scripted import Call, Do, ScriptedModel
from gateway.engine.store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gateway.engine.loop import Run


@tool
async def failing() -> str:
    raise ValueError("no")


@tool(timeout_s=0.01)
async def slow() -> None:
    await asyncio.get_running_loop().create_future()


@tool
async def endless() -> None:
    await asyncio.get_running_loop().create_future()


@tool
def threaded() -> str:
    return "done"


@tool(policy="ask")
async def asking() -> None: ...


def fail() -> None:
    raise RuntimeError("the model fails")


TOOLS = [failing, slow, endless, threaded, asking]


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Only who is known by nobody goes; and nobody keeps a log, which would know every error's frames."""
    gc.collect()
    gc.disable()
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    gc.enable()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    ("says", "abort_at"),
    [
        ("One", ""),
        ("One", "text-delta"),
        ("One", "step-start"),
        (Call("failing"), ""),
        (Call("slow"), ""),
        (Call("threaded"), ""),
        (Call("unknown"), ""),
        (Call("threaded"), "tool-start"),
        (Call("endless"), "tool-start"),
        (Call("asking"), "approval-request"),
        (Do(fail), ""),
    ],
    ids=lambda given: type(given).__name__ if isinstance(given, Do) else str(getattr(given, "tool", given)),
)
async def test_a_run_goes_with_its_last_reader(says: str | Call | Do, abort_at: str) -> None:
    agent = Agent(ScriptedModel([[says], "two"]), tools=TOOLS, store=MemoryStore())
    abort, runs = asyncio.Event(), list[weakref.ref["Run"]]()
    async for event in agent.stream(abort=abort, mode="prompt", session_id="s", messages=[user_message("Go")]):
        runs += [weakref.ref(run) for run in agent._live.values()]
        if event["type"] == abort_at:
            abort.set()
    assert abort.is_set() == bool(abort_at)
    for _ in range(100):  # a thread tells the loop, and ends a moment later
        if runs[0]() is None:
            break
        await asyncio.sleep(0.01)
    assert runs[0]() is None


@pytest.mark.usefixtures("uncollected")
async def test_a_run_that_was_refused_goes_with_its_error() -> None:
    agent = Agent(ScriptedModel(["One"]), store=MemoryStore())
    stream = agent.stream(abort=asyncio.Event(), mode="resume", session_id="s")
    run = weakref.ref(stream._run)
    with pytest.raises(NotResumable) as refused:
        await anext(stream)
    assert refused.type is NotResumable
    del stream, refused
    assert run() is None
