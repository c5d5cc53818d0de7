"""The contract's cases 18 to 37: races with the end, with the caller, and with other runs."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import aclosing, suppress
from typing import Any

import pytest

from gateway.engine import (
    Agent,
    AgentExtension,
    AgentPhase,
    AgentRunContext,
    MemoryStore,
    ScriptedModel,
    SessionBusy,
    user_message,
)
from gateway.engine.abort import AbortEventManager, AbortEventRunnerObserver
from gateway.engine.models.scripted import Do, Hang
from protocol.messages import ABORT_ERROR
from tests.engine.support import SESSION, Tracker, agent_for, assert_aborted, check, drain, of, read, stored, text, when


class GatedStore(MemoryStore):
    """A store whose writes of assistant messages wait for ``gate``."""

    def __init__(self) -> None:
        super().__init__()
        self.writing = asyncio.Event()
        self.gate = asyncio.Event()
        self.written = 0

    async def save(self, session_id: str, message: Any) -> None:
        if message["role"] == "assistant":
            self.writing.set()
            await self.gate.wait()
            self.written += 1
        await super().save(session_id, message)


def own_tasks() -> list[str]:
    """Name the tasks that a run may leave behind."""
    return [
        task.get_name()
        for task in asyncio.all_tasks()
        if task.get_name().split()[0] in {"run", "work", "abort", "seal", "tool", "storing", "the"}
    ]


async def test_case_18_before_the_final_commit() -> None:
    """Everything is said but nothing committed: abort wins."""
    abort = asyncio.Event()
    events = await read(agent_for("All of it"), abort=abort, on=when("text-delta", abort.set, text="it"))
    assert_aborted(events)
    assert text(events) == "All of it"


async def test_case_19_after_the_final_commit() -> None:
    """Once the end is decided an abort is too late: completed stays completed."""
    store, abort, tracker = GatedStore(), asyncio.Event(), Tracker()
    agent = agent_for("All of it", store=store, extensions=[tracker])
    task = asyncio.create_task(read(agent, abort=abort))
    await store.writing.wait()
    abort.set()
    store.gate.set()
    events = await task
    assert events[-1]["status"] == "completed"
    assert of(events, "message-finish")[0]["error"] is None
    assert tracker.ends == ["success"]


async def test_case_21_after_finish() -> None:
    """Setting the event of a finished run does nothing at all."""
    abort = asyncio.Event()
    agent = agent_for("Done")
    await read(agent, abort=abort)
    before = await stored(agent)
    abort.set()
    await asyncio.sleep(0)
    assert await stored(agent) == before
    assert agent.state.phase is AgentPhase.COMPLETED


async def test_case_22_twice() -> None:
    """Pressing Stop again changes nothing: one AbortError, one cancelled hook."""
    hang, abort, tracker = Hang(), asyncio.Event(), Tracker()
    agent = agent_for(["Half ", hang], extensions=[tracker])
    task = asyncio.create_task(read(agent, abort=abort, on=when("text-end", abort.set)))
    await hang.reached.wait()
    abort.set()
    abort.set()
    assert_aborted(await task)
    assert [message["error"] for message in (await stored(agent))[1:]] == [ABORT_ERROR]
    assert tracker.ends == ["cancelled"]


async def test_case_23_abort_then_task_cancel() -> None:
    """A caller cancelled on top of an abort gets its CancelledError, and a sealed turn."""
    hang, abort = Hang(), asyncio.Event()
    agent = agent_for(["Half ", hang])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR
    assert own_tasks() == []


async def test_case_24_task_cancel_alone() -> None:
    """Cancelling the caller seals the turn before the cancellation goes on."""
    hang, tracker = Hang(), Tracker()
    agent = agent_for(["Half ", hang], extensions=[tracker])
    task = asyncio.create_task(read(agent))
    await hang.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    message = (await stored(agent))[-1]
    assert (message["parts"][0]["text"], message["error"]) == ("Half ", ABORT_ERROR)
    assert tracker.ends == ["cancelled"]
    assert agent.state.phase is AgentPhase.CANCELLED


async def test_case_25_cancelled_repeatedly_while_sealing() -> None:
    """No number of cancellations cuts the write off."""
    hang, store = Hang(), GatedStore()
    agent = agent_for(["Half ", hang], store=store)
    task = asyncio.create_task(read(agent))
    await hang.reached.wait()
    task.cancel()
    await store.writing.wait()
    for _ in range(5):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert store.written == 1


async def test_case_26_break_and_aclose() -> None:
    """Leaving a closed stream is an abort: it returns sealed, and the agent runs again at once."""
    tracker = Tracker()
    agent = agent_for("One two three", "Again", extensions=[tracker])
    stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    async with aclosing(stream) as events:
        async for event in events:
            if event["type"] == "text-delta":
                break
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR
    assert agent.state.phase is AgentPhase.CANCELLED
    assert tracker.ends == ["cancelled"]
    assert own_tasks() == []
    assert (await read(agent))[-1]["status"] == "completed"


async def test_case_27_break_without_aclose() -> None:
    """A reader that just walks away leaves no task behind: the loop closes the generator that it dropped."""
    agent = agent_for(["One ", Hang()])
    async for event in agent.stream(
        abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")]
    ):
        if event["type"] == "text-delta":
            break
    gc.collect()
    for _ in range(50):
        if not own_tasks():
            break
        await asyncio.sleep(0)
    assert own_tasks() == []
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR


async def test_case_28_consumer_stalled_and_queue_full() -> None:
    """A reader that stops reading holds the model back, but neither Stop nor the seal."""
    abort, tracker = asyncio.Event(), Tracker()
    agent = agent_for("word " * 100, extensions=[tracker], queue_limit=4)
    stream = agent.stream(abort=abort, mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    await stream.__anext__()
    for _ in range(20):  # the producer fills the queue and waits
        await asyncio.sleep(0)
    run = agent._live[SESSION]
    assert len(run.outbox._events) == 4
    abort.set()
    assert run.task is not None
    await asyncio.wait({run.task})
    assert tracker.ends == ["cancelled"]
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR
    rest = await drain(stream)
    assert rest[-1]["status"] == "aborted"
    check([{"type": "message-start"}, *rest])


async def test_case_29_aclose_during_a_pending_anext() -> None:
    """Closing under a reader is a misuse with a defined answer: an error, after the seal."""
    hang = Hang()
    agent = agent_for(["One ", hang])
    stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    reader = asyncio.create_task(drain(stream))
    await hang.reached.wait()
    with pytest.raises(RuntimeError, match="while another task was reading"):
        await stream.aclose()
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR
    assert (await reader)[-1]["status"] == "aborted"


async def test_case_30_timeout_around_the_caller() -> None:
    """``asyncio.timeout`` stays what it is: a TimeoutError, and a task that is not being cancelled any more."""
    hang = Hang()
    agent = agent_for(["One ", hang])
    with pytest.raises(TimeoutError):  # noqa: PT012  # the scope is what is tested
        async with asyncio.timeout(None) as scope:

            def expire(event: object) -> None:
                scope.reschedule(asyncio.get_running_loop().time())

            await read(agent, on=expire)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR


async def test_case_31_sibling_in_the_callers_task_group_fails() -> None:
    """The group reports the sibling's error and nothing of ours."""
    hang = Hang()
    agent = agent_for(["One ", hang])

    async def sibling() -> None:
        await hang.reached.wait()
        raise ValueError("sibling")

    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the group is what is tested
        async with asyncio.TaskGroup() as group:
            group.create_task(read(agent))
            group.create_task(sibling())
    assert [str(error) for error in caught.value.exceptions] == ["sibling"]
    assert (await stored(agent))[-1]["error"] == ABORT_ERROR


async def test_case_32_a_set_event_reused() -> None:
    """An event is one-shot: the next run that gets it is aborted at once."""
    abort = asyncio.Event()
    model = ScriptedModel(["One two", "never said"])
    agent = Agent(model)
    assert_aborted(await read(agent, abort=abort, on=when("text-delta", abort.set)))
    assert_aborted(await read(agent, abort=abort))
    assert len(model.requests) == 1


async def test_case_33_set_from_a_thread() -> None:
    """Through the manager, a set from another thread wakes a loop that sleeps."""
    hang = Hang()
    agent = agent_for(["One ", hang])
    task = asyncio.create_task(read(agent))
    await hang.reached.wait()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(agent.abort_events.abort_from_thread(SESSION)))
    thread.start()
    assert_aborted(await task)
    thread.join()
    assert answers == [True]
    assert agent.abort_events.abort_from_thread(SESSION) is False


async def test_case_34_event_of_another_loop() -> None:
    """An event that can never wake this loop is refused before anything has happened."""
    foreign = asyncio.Event()

    def bind() -> None:
        async def wait() -> None:
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await foreign.wait()

        asyncio.run(wait())

    thread = threading.Thread(target=bind)
    thread.start()
    thread.join()
    model = ScriptedModel(["never said"])
    agent = Agent(model)
    with pytest.raises(RuntimeError, match="different event loop"):
        await read(agent, abort=foreign)
    assert model.requests == []
    assert await stored(agent) == []
    assert len(agent.abort_events) == 0


async def test_case_35_crash_in_the_run() -> None:
    """However a run ends, its entry in the manager goes with it."""

    class Broken:
        retry = None

        def stream(self, request: object) -> Any:
            raise ZeroDivisionError("secret detail")

    agent = Agent(Broken())  # type: ignore[arg-type]
    events = await read(agent)
    assert events[-1]["status"] == "failed"
    assert events[-1]["error"]["reason"] == "UnknownError"
    assert events[-1]["error"]["message"] == "ZeroDivisionError"
    assert agent.abort_events.get(SESSION) is None


async def test_case_36_late_unregister_of_an_old_run() -> None:
    """The observer of an old run cannot take a newer run's event away."""
    manager = AbortEventManager()
    observer = AbortEventRunnerObserver(manager)
    old, new = asyncio.Event(), asyncio.Event()
    observer.started(SESSION, old)
    observer.started(SESSION, new)
    observer.idle(SESSION, old)
    assert manager.get(SESSION) is new
    observer.idle(SESSION, new)
    assert manager.get(SESSION) is None


async def test_case_37_second_run_of_the_same_session() -> None:
    """One session, one run: the second is refused and does not disturb the first."""
    hang, abort = Hang(), asyncio.Event()
    agent = agent_for(["One ", hang])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    with pytest.raises(SessionBusy):
        await read(agent)
    assert agent.abort_events.get(SESSION) is abort
    abort.set()
    assert_aborted(await task)


async def test_the_next_run_may_start_once_run_finish_is_read() -> None:
    """The session is released with the terminal event, not some ticks after it."""
    agent = agent_for("One", "Two")
    stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    async for event in stream:
        if event["type"] == "run-finish":
            assert text(await read(agent)) == "Two"
    await stream.aclose()


async def test_a_reader_that_leaves_before_a_tool_call_is_committed_prevents_it() -> None:
    """No side effect happens that the reader could still have stopped by leaving."""
    events: list[str] = []

    class Watch(AgentExtension):
        async def before_tool(self, context: AgentRunContext, call: Any) -> None:
            events.append(call.tool)

    from gateway.engine.models.scripted import Call

    agent = agent_for(["One ", Call("any"), Do(lambda: None)], extensions=[Watch()])
    stream = agent.stream(abort=asyncio.Event(), mode="prompt", session_id=SESSION, messages=[user_message("Go")])
    async with aclosing(stream):
        async for event in stream:
            if event["type"] == "text-delta":
                break
    assert events == []
