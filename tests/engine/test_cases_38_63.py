"""The contract's cases 38 to 63: tools that resist, errors that race, stores that fail, and what is resumed."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine import (
    Agent,
    AgentExtension,
    AgentRunContext,
    APIError,
    ExtensionEvent,
    MemoryStore,
    ModelRequest,
    NotResumable,
    RunCancelledEvent,
    ScriptedModel,
    ToolContext,
    tool,
    user_message,
)
from gateway.engine.calls import _abandoned
from gateway.engine.history import CONTINUE_NOTE, model_messages, repair
from gateway.engine.messages import AssistantMessage, ToolMessage, UserMessage
from gateway.engine.models.scripted import Call, Do, Fail, Finish, Hang
from gateway.engine.process import run_process
from protocol.messages import ABORT_ERROR
from tests.engine.support import SESSION, Tracker, agent_for, assert_aborted, of, read, stored, text, when
from tests.support_stopwatch import Stopwatch

if TYPE_CHECKING:
    from gateway.engine import Mode

GRACE_S = 0.05


@pytest.mark.parametrize(("reads", "outcome"), [(False, "unknown"), (True, "interrupted")])
async def test_case_38_sync_tool_in_a_thread(reads: bool, outcome: str) -> None:
    """A thread cannot be cancelled: after the grace the truth is that nobody knows, unless the tool only reads."""
    release = threading.Event()
    loop_thread = threading.get_ident()

    @tool(reads=reads)
    def work() -> int:
        release.wait(10)
        return threading.get_ident() - loop_thread

    abort = asyncio.Event()
    agent = agent_for([Call("work")], tools=[work], abort_grace_s=GRACE_S)
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events, settled=False)
    assert of(events, "tool-error")[0]["outcome"] == outcome
    release.set()
    await abandoned_work_ends()
    assert (await stored(agent))[-1]["parts"][0]["outcome"] == outcome


async def test_case_38_sync_tool_returns_within_the_grace() -> None:
    """A thread that looks at its context may return in time, and its result is kept."""

    @tool
    def work(context: ToolContext) -> str:
        return "stopped early" if context.wait_aborted(10) else "never aborted"

    abort = asyncio.Event()
    agent = agent_for([Call("work")], tools=[work])
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events)
    assert of(events, "tool-result")[0]["output"] == "stopped early"


async def test_case_39_tool_swallows_one_cancel() -> None:
    """The cancellation is asserted again before the grace ends."""
    cancelled: list[str] = []

    @tool
    async def stubborn() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            cancelled.append("swallowed")
        await asyncio.get_running_loop().create_future()

    abort = asyncio.Event()
    agent = agent_for([Call("stubborn")], tools=[stubborn], abort_grace_s=GRACE_S)
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events)
    assert cancelled == ["swallowed"]
    assert of(events, "tool-error")[0]["outcome"] == "interrupted"


async def test_case_40_tool_never_returns() -> None:
    """The run ends within the grace all the same, says so, and the session goes on."""
    release = asyncio.Event()

    @tool
    async def immortal() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    abort = asyncio.Event()
    agent = agent_for([Call("immortal")], "Usable", tools=[immortal], abort_grace_s=GRACE_S)
    with Stopwatch() as watch:
        events = await read(agent, abort=abort, on=when("tool-start", abort.set))
        assert watch.seconds() < GRACE_S + 1.0
    assert_aborted(events, settled=False)
    assert of(events, "tool-error")[0]["outcome"] == "unknown"
    assert text(await read(agent)) == "Usable"
    release.set()
    await abandoned_work_ends()


async def test_case_41_abandoned_tool_fails_later(caplog: pytest.LogCaptureFixture) -> None:
    """What an abandoned tool does later is in the log and nowhere else."""
    release = asyncio.Event()

    @tool
    async def immortal() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        raise ValueError("much later")

    abort = asyncio.Event()
    agent = agent_for([Call("immortal")], tools=[immortal], abort_grace_s=GRACE_S)
    await read(agent, abort=abort, on=when("tool-start", abort.set))
    before = await stored(agent)
    release.set()
    await abandoned_work_ends()
    assert await stored(agent) == before
    assert "much later" in caplog.text


async def test_case_45_cancel_turns_into_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A tool that answers its cancellation with an error was interrupted; the error is for the log."""

    @tool
    async def work() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise ValueError("cleanup went wrong") from None

    abort = asyncio.Event()
    agent = agent_for([Call("work")], tools=[work])
    events = await read(agent, abort=abort, on=when("tool-start", abort.set))
    assert_aborted(events)
    assert of(events, "tool-error")[0]["outcome"] == "interrupted"
    assert "cleanup went wrong" in caplog.text
    assert "cleanup" not in repr(events)


async def test_case_46_provider_error_after_the_abort() -> None:
    """Whatever the provider says once the run is being stopped, it was stopped."""
    abort = asyncio.Event()
    events = await read(agent_for(["Half ", Do(abort.set), Fail(APIError("boom"))]), abort=abort)
    assert_aborted(events)


async def test_case_47_provider_error_recorded_first() -> None:
    """An abort does not hide an error that had already ended the run."""
    abort, tracker = asyncio.Event(), Tracker()

    class Late(MemoryStore):
        async def save(self, session_id: str, message: Any) -> None:
            if message["role"] == "assistant":
                abort.set()
            await super().save(session_id, message)

    agent = agent_for(["Half ", Fail(APIError("boom", status_code=500))], store=Late(), extensions=[tracker])
    events = await read(agent, abort=abort)
    assert events[-1]["status"] == "failed"
    assert events[-1]["error"] == {
        "reason": "APIError",
        "message": "boom",
        "code": None,
        "status_code": 500,
        "retryable": True,
    }
    assert text(events) == "Half "
    assert tracker.ends == ["error APIError"]


async def test_case_48_transport_error_caused_by_closing() -> None:
    """A connection that breaks because we close it is no failure of the provider."""

    class Breaking(ScriptedModel):
        async def stream(self, request: ModelRequest) -> Any:
            try:
                async for event in super().stream(request):
                    yield event
            except asyncio.CancelledError:
                raise APIError("connection reset") from None

    hang, abort = Hang(), asyncio.Event()
    agent = Agent(Breaking([["Half ", hang]]))
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    assert_aborted(await task)


async def test_case_49_store_fails_while_sealing(caplog: pytest.LogCaptureFixture) -> None:
    """A store that fails costs the stored turn, not the session: the next run works on what is there."""

    class Failing(MemoryStore):
        broken = True

        async def save(self, session_id: str, message: Any) -> None:
            if self.broken and message["role"] == "assistant":
                raise OSError("disk full")
            await super().save(session_id, message)

    store, hang, abort, tracker = Failing(), Hang(), asyncio.Event(), Tracker()
    agent = agent_for(["Half ", hang], "Answer", store=store, extensions=[tracker])
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    assert_aborted(await task)
    assert "disk full" in caplog.text
    assert tracker.ends == ["cancelled"]
    store.broken = False
    assert text(await read(agent, mode="resume")) == "Answer"


async def test_case_50_store_hangs_while_sealing() -> None:
    """A store that hangs is given a deadline, then the session is released."""

    class Hanging(MemoryStore):
        async def save(self, session_id: str, message: Any) -> None:
            if message["role"] == "assistant":
                await asyncio.get_running_loop().create_future()
            await super().save(session_id, message)

    hang, abort, tracker = Hang(), asyncio.Event(), Tracker()
    agent = agent_for(["Half ", hang], store=Hanging(), extensions=[tracker], seal_deadline_s=GRACE_S)
    task = asyncio.create_task(read(agent, abort=abort))
    await hang.reached.wait()
    abort.set()
    assert_aborted(await task)
    assert tracker.ends == ["cancelled"]
    assert agent._live == {}
    await abandoned_work_ends()


async def test_case_51_cancel_hook_raises() -> None:
    """One extension's failing clean-up does not cost the others theirs."""

    class Failing(AgentExtension):
        def __init__(self, error: BaseException) -> None:
            self.error = error

        async def on_event(self, context: AgentRunContext, event: ExtensionEvent) -> None:
            raise self.error

    tracker, abort = Tracker(), asyncio.Event()
    agent = agent_for("One two", extensions=[Failing(ValueError("hook")), Failing(asyncio.CancelledError()), tracker])
    assert_aborted(await read(agent, abort=abort, on=when("text-delta", abort.set)))
    assert tracker.ends == ["cancelled"]


async def test_case_52_hook_emits_during_the_abort() -> None:
    """An extension may say something while the queue is full and the run is being stopped; nobody waits for anybody."""

    class Chatty(AgentExtension):
        async def on_event(self, context: AgentRunContext, event: ExtensionEvent) -> None:
            if isinstance(event, RunCancelledEvent):
                for number in range(100):
                    context.emit("bye", number)

    abort = asyncio.Event()
    agent = agent_for("One two", extensions=[Chatty()], queue_limit=2)
    events = await read(agent, abort=abort, on=when("text-delta", abort.set))
    assert_aborted(events)
    assert len(of(events, "custom")) == 100


async def test_case_53_hook_swallows_the_cancel() -> None:
    """A hook that eats the cancellation gains nothing: the next boundary stops the run."""
    hooked = asyncio.Event()

    class Greedy(AgentExtension):
        async def before_model(self, context: AgentRunContext, request: ModelRequest) -> None:
            hooked.set()
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                return

    model, abort = ScriptedModel(["never said"]), asyncio.Event()
    agent = Agent(model, extensions=[Greedy()])
    task = asyncio.create_task(read(agent, abort=abort))
    await hooked.wait()
    abort.set()
    assert_aborted(await task)
    assert model.requests == []


async def test_case_54_no_usage_received() -> None:
    """Not measured is null; zero would be a claim."""
    hang, abort = Hang(), asyncio.Event()
    task = asyncio.create_task(read(agent_for(["Half ", hang]), abort=abort))
    await hang.reached.wait()
    abort.set()
    events = await task
    assert of(events, "step-finish")[0]["usage"] is None
    assert of(events, "message-finish")[0]["usage"] is None
    whole = await read(agent_for(["All", Finish(usage=None)]))
    assert of(whole, "message-finish")[0]["usage"] is None


async def test_case_55_resume_after_mid_text() -> None:
    """The partial text stays, and the model hears that it was interrupted there."""
    hang, abort = Hang(), asyncio.Event()
    model = ScriptedModel([["The quick ", hang], "brown fox"])
    agent = Agent(model)
    task = asyncio.create_task(read(agent, abort=abort, text="Say it"))
    await hang.reached.wait()
    abort.set()
    await task
    events = await read(agent, mode="resume")
    assert text(events) == "brown fox"
    assert model.requests[-1].messages == [
        UserMessage("Say it"),
        AssistantMessage("The quick "),
        UserMessage(CONTINUE_NOTE, note=True),
    ]
    assert [message["role"] for message in await stored(agent)] == ["user", "assistant", "assistant"]


async def test_case_57_resume_of_a_completed_turn() -> None:
    """There is nothing to continue, and nothing is written."""
    tracker = Tracker()
    agent = agent_for("Done", extensions=[tracker])
    await read(agent)
    before = await stored(agent)
    tracker.seen.clear()
    with pytest.raises(NotResumable):
        await read(agent, mode="resume")
    with pytest.raises(NotResumable):
        await read(agent, mode="resume", session_id="unknown")
    assert await stored(agent) == before
    assert tracker.seen == []
    assert len(agent.abort_events) == 0


KILLED: list[Any] = [
    {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Pay and report"}], "created_at": 1},
    {
        "id": "a1",
        "role": "assistant",
        "run_id": "run_1",
        "parts": [
            {"type": "reasoning", "part_id": "p0", "text": "Hm", "state": "done"},
            {"type": "text", "part_id": "p1", "text": "Paying", "state": "done"},
            {"type": "tool", "part_id": "p2", "call_id": "c1", "tool": "pay", "state": "running", "input": {"n": 1}},
            {"type": "tool", "part_id": "p3", "call_id": "c2", "tool": "log", "state": "input-available", "input": {}},
            {"type": "text", "part_id": "p4", "text": "Now I rep", "state": "streaming"},
        ],
        "finish_reason": None,
        "usage": None,
        "error": None,
        "created_at": 2,
        "completed_at": None,
    },
]


def test_case_58_history_after_kill_9() -> None:
    """Repairing twice changes nothing, to the byte, and the original is left alone."""
    original = json.dumps(KILLED)
    once = repair(KILLED)
    twice = repair(once)
    assert json.dumps(once) == json.dumps(twice)
    assert json.dumps(KILLED) == original
    tools = [part for part in once[1]["parts"] if part["type"] == "tool"]
    assert [(part["state"], part["outcome"]) for part in tools] == [
        ("output-error", "unknown"),
        ("output-error", "not_run"),
    ]
    assert once[1]["parts"][-1]["state"] == "done"  # type: ignore[typeddict-item]


async def test_case_58_a_killed_turn_can_be_resumed() -> None:
    """A history that ends in an open message is continued like an aborted one."""
    store = MemoryStore()
    for message in KILLED:
        await store.save(SESSION, message)
    model = ScriptedModel(["ort: done"])
    events = await read(Agent(model, store=store), mode="resume")
    assert events[-1]["status"] == "completed"
    assert model.requests[0].messages[-1] == UserMessage(CONTINUE_NOTE, note=True)


async def test_case_60_abort_of_an_idle_session() -> None:
    """Nothing runs: there is no event to set, and saying so is no error."""
    agent = agent_for("Done")
    await read(agent)
    assert agent.abort_events.get(SESSION) is None
    assert agent.abort_events.abort_from_thread(SESSION) is False


def test_case_61_text_after_a_call_or_an_orphan_result() -> None:
    """Whatever is stored, the model gets each call answered before anything else is said."""
    orphan = {"type": "tool", "part_id": "p9", "state": "output-available", "output": "whose?"}
    message: Any = {**KILLED[1], "parts": [*KILLED[1]["parts"], orphan], "completed_at": 3, "error": ABORT_ERROR}
    turns = model_messages([KILLED[0], message])
    kinds = [type(turn).__name__ for turn in turns]
    assert kinds == ["UserMessage", "AssistantMessage", "ToolMessage", "ToolMessage", "AssistantMessage"]
    assert isinstance(turns[1], AssistantMessage)
    assert [call.call_id for call in turns[1].tool_calls] == ["c1", "c2"]
    assert turns[1].reasoning == ""
    assert [turn.call_id for turn in turns if isinstance(turn, ToolMessage)] == ["c1", "c2"]
    assert turns[-1].content == "Now I rep"


def children() -> list[str]:
    """Name our child processes."""
    return " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()


async def test_case_63_a_thousand_abort_resume_cycles() -> None:
    """Over tools of every kind nothing is left over: no task, no thread, no file, no child process, no entry."""

    @tool
    def threaded(stopped: bool, context: ToolContext) -> str:
        return "stopped" if stopped and context.wait_aborted(60) else "touched"

    @tool(reads=True)
    async def waiting(stopped: bool) -> str:
        if stopped:
            await asyncio.get_running_loop().create_future()
        return "touched"

    @tool
    async def process(stopped: bool) -> int:
        return (await run_process("/bin/sleep", "1000" if stopped else "0")).returncode

    @tool
    async def daemon(stopped: bool) -> int:
        """Start one that leaves the group and holds our pipes, for no longer than the test wants it."""
        script = f"setsid sleep 0.03 & {'sleep 1000' if stopped else ''}"
        return (await run_process("/bin/sh", "-c", script)).returncode

    @tool(timeout_s=0.01)
    async def timed(stopped: bool) -> None:
        await asyncio.get_running_loop().create_future()

    @tool(policy="ask", approval_timeout_s=600)
    async def asking(stopped: bool) -> None: ...

    tools = [threaded, waiting, process, daemon, timed, asking]
    kinds = [*([each] for each in tools), [threaded, waiting, process]]
    abort_at = ("text-delta", "tool-start", "tool-end", "step-start")
    seen = Counter[str]()
    stopped_in = Counter[str]()

    async def cycle(number: int) -> None:
        session = f"ses_{number % 7}"
        kind, at = kinds[number % 7], abort_at[number // 7 % 4]
        calls = [Call(each.name, {"stopped": at == "tool-start"}) for each in kind]
        if kind == [asking] and at == "tool-start":
            at = "approval-request"
        model = ScriptedModel([["One ", *calls], "two", "three"])
        agent = Agent(model, tools=tools, store=store)
        abort = asyncio.Event()
        async for event in agent.stream(abort=abort, mode="prompt", session_id=session, messages=[user_message("Go")]):
            if event["type"] == at or (at == "tool-end" and event["type"] in ("tool-result", "tool-error")):
                if not abort.is_set():
                    stopped_in["+".join(each.name for each in kind) + f" at {at}"] += 1
                abort.set()
            elif event["type"] == "approval-request":
                run_id, request_id = agent._live[session].context.run_id, event["request_id"]
                await agent.respond(session_id=session, run_id=run_id, request_id=request_id, decision="deny")
            elif event["type"] == "run-finish":
                seen[event["status"]] += 1
        mode: Mode = "resume" if abort.is_set() else "prompt"
        again = [] if mode == "resume" else [user_message("Again")]
        async for event in agent.stream(abort=asyncio.Event(), mode=mode, session_id=session, messages=again):
            last = event
        assert last["status"] == "completed"
        await store.clear(session)

    async def at_rest() -> None:
        """On a busy machine what was ended with its run may need a moment longer than the run's grace.

        What is collected comes first: a client of a provider's library that an earlier test left behind makes a task
        to close itself when it goes.
        """
        gc.collect()
        for _ in range(3000):
            if len(asyncio.all_tasks()) == 1 and not children():
                break
            await asyncio.sleep(0.01)

    class Clearing(MemoryStore):
        async def clear(self, session_id: str) -> None:
            self._sessions.pop(session_id, None)

    store = Clearing()
    # The loop's own pool grows when it likes, up to its bound; at a bound of one it has its size before we count.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    for number in range(28):
        await cycle(number)
    await at_rest()
    stopped_in.clear()
    seen.clear()
    before = (len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd")), children())
    for number in range(1000):
        await cycle(number)
    for thread in threading.enumerate():
        if thread.name.startswith(("tool-", "waitpid-")):
            thread.join(5)
    await at_rest()
    after = (len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd")), children())
    print(f"tasks, threads, files, children: {before} -> {after}; {dict(seen)}; {dict(stopped_in)}")
    assert after == before
    assert not _abandoned
    assert seen["aborted"] == 1000, "all of them were really stopped"
    assert len(stopped_in) == len(kinds) * len(abort_at), "each kind at each place"


async def abandoned_work_ends() -> None:
    """Wait for what earlier runs had to abandon, so that no test leaves a task to the next."""
    logging.getLogger("gateway.engine").debug("waiting for %d tasks", len(_abandoned))
    if _abandoned:
        await asyncio.wait(set(_abandoned), timeout=5)
    await asyncio.sleep(0)
    assert not _abandoned
