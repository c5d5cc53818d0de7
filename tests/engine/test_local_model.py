"""The local model's way of working, on a writer of ours: its prompt, its thread, its Stop. (Real: tests/local.)"""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from gateway.app import load_model
from gateway.config import BadSetting, Settings
from gateway.engine import Agent, user_message
from gateway.engine.messages import AssistantMessage, ToolMessage, UserMessage
from gateway.engine.models import local
from gateway.engine.models.local import LocalModel, prompt_of
from gateway.engine.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from gateway.engine.messages import ModelMessage


class Slow:
    """Writes a word whenever it is let, in whichever thread it is called from, and counts what it did."""

    def __init__(self, free: bool = False) -> None:
        self.prompts: list[int] = []
        self.let = threading.Semaphore(1000 if free else 0)
        self.written = 0
        self.stopped: Callable[[], bool] = bool
        self.late = 0  # words written after the model was told to stop
        self.closed = 0
        self.threads: set[int] = set()
        self.reading: threading.Event | None = None

    def tokens(self, text: str) -> list[int]:
        return list(range(len(text.split())))

    def read(self, prompt: Sequence[int], stopped: Callable[[], bool]) -> None:
        self.prompts.append(len(prompt))
        self.stopped = stopped
        while self.reading is not None and not stopped():
            self.reading.set()

    def write(self, prompt: Sequence[int], limit: int) -> Generator[str, None, None]:
        self.threads.add(threading.get_ident())
        try:
            for _ in range(limit):
                assert self.let.acquire(timeout=10)
                self.late += self.stopped()
                self.written += 1
                yield "word "
        finally:
            self.closed += 1


async def test_a_stop_is_honoured_at_the_next_token() -> None:
    """The thread, told to stop, writes one more word at most, and is gone before the run has ended."""
    slow = Slow()
    abort = asyncio.Event()
    agent = Agent(LocalModel(load=lambda: slow))
    said = ""
    slow.let.release(3)
    async for event in agent.stream(abort=abort, mode="prompt", session_id="s", messages=[user_message("Go")]):
        if event["type"] == "text-delta":
            said += event["text"]
            if said.count("word") == 3:
                abort.set()
                slow.let.release(1000)  # it goes on writing until it is told, as a model does
        last = event
    assert (last["type"], last["status"], last["settled"]) == ("run-finish", "aborted", True)
    assert slow.late <= 1
    assert slow.closed == 1
    # What it wrote in the loop's turn that Stop came in was said, and is kept.
    assert said == "word " * said.count("word")
    assert 3 <= said.count("word") <= slow.written - slow.late
    assert threading.get_ident() not in slow.threads


async def test_a_stop_while_the_prompt_is_read() -> None:
    """No word yet: the thread leaves at its next look, and the answer stays empty."""
    slow = Slow()
    reading = slow.reading = threading.Event()
    abort = asyncio.Event()
    agent = Agent(LocalModel(load=lambda: slow))
    async for event in agent.stream(abort=abort, mode="prompt", session_id="s", messages=[user_message("Go")]):
        if event["type"] == "step-start":
            assert await in_thread(lambda: reading.wait(10), "wait")
            abort.set()
        last = event
    assert (last["status"], slow.written) == ("aborted", 0)


async def test_one_answer_at_a_time_and_a_long_conversation_loses_its_beginning() -> None:
    """Two sessions share one set of weights; what does not fit is left out at the front."""
    slow = Slow(free=True)
    model = LocalModel(load=lambda: slow, answer_tokens=5)
    agent = Agent(model)
    question = "word " * (local.CONTEXT_TOKENS * 2)
    answers = await asyncio.gather(
        *(
            agent.invoke(abort=asyncio.Event(), mode="prompt", session_id=name, messages=[user_message(question)])
            for name in ("a", "b")
        )
    )
    assert [answer.content for answer in answers] == ["word " * 5] * 2
    assert slow.prompts == [local.CONTEXT_TOKENS - 5] * 2
    assert answers[0].usage == {"input_tokens": local.CONTEXT_TOKENS - 5, "output_tokens": 5}


async def test_weights_that_cannot_be_loaded_fail_the_run() -> None:
    def broken() -> local.Writer:
        raise OSError("no space left")

    agent = Agent(LocalModel(load=broken))
    answer = await agent.invoke(abort=asyncio.Event(), mode="prompt", session_id="s", messages=[user_message("Go")])
    assert answer.error is not None
    assert answer.error.reason == "UnknownError"


def test_an_interrupted_answer_is_simply_continued() -> None:
    """A base model gets text, not turns: no note, no role, no result of a tool."""
    turns: list[ModelMessage] = [
        UserMessage("Hello."),
        AssistantMessage("Hi there. "),
        UserMessage("Once upon"),
        AssistantMessage(" a ti"),
        ToolMessage("c1", "look", "clear"),
        UserMessage("[go on]", note=True),
    ]
    assert prompt_of(turns) == "Hello.Hi there.\n\nOnce upon a ti"


@pytest.mark.skipif(find_spec("llama_cpp") is not None, reason="the extra is installed here")
def test_without_its_extra_the_error_is_one_line_that_names_it() -> None:
    with pytest.raises(BadSetting, match=r"^model: the local model needs the gateway's extra `local`$"):
        load_model(Settings(model="local"))
