"""What the engine's tests share: a runner that reads a stream to its end, and the rules that every stream keeps."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gateway.engine import Agent, AgentExtension, AssistantMessage, RunCancelledEvent, ScriptedModel, user_message
from protocol.messages import ABORT_ERROR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine import AgentRunContext, ExtensionEvent, Mode

Event = dict[str, Any]
On = Callable[[Event], object]
SESSION = "ses_1"


async def read(
    agent: Agent,
    *,
    abort: asyncio.Event | None = None,
    mode: Mode = "prompt",
    text: str = "Go",
    session_id: str = SESSION,
    on: On = lambda event: None,
) -> list[Event]:
    """Run one turn, call ``on`` with every event as it is read, and check what holds for all streams."""
    events: list[Event] = []
    stream = agent.stream(
        abort=abort or asyncio.Event(),
        mode=mode,
        session_id=session_id,
        messages=[user_message(text)] if mode == "prompt" else [],
    )
    async for event in stream:
        events.append(copy.deepcopy(event))
        on(event)
    check(events)
    return events


def check(events: list[Event]) -> None:
    """Hold a finished stream to the invariants of the protocol that are the engine's part."""
    kinds = types(events)
    assert kinds.count("run-finish") == 1
    assert kinds[-1] == "run-finish"
    assert kinds[0] in ("message-start", "custom")
    assert kinds.count("message-start") == kinds.count("message-finish") >= 1
    assert kinds.count("step-start") == kinds.count("step-finish")
    for kind in ("text", "reasoning"):
        assert [e["part_id"] for e in of(events, f"{kind}-start")] == [e["part_id"] for e in of(events, f"{kind}-end")]
    called = {e["call_id"] for e in of(events, "tool-input-start") + of(events, "tool-call")}
    answers = [e["call_id"] for e in of(events, "tool-result") + of(events, "tool-error")]
    assert sorted(called) == sorted(answers)


def types(events: list[Event]) -> list[str]:
    return [event["type"] for event in events]


def of(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event["type"] == kind]


def text(events: list[Event], kind: str = "text") -> str:
    return "".join(event["text"] for event in of(events, f"{kind}-delta"))


def assert_aborted(events: list[Event], *, settled: bool = True) -> None:
    finish = events[-1]
    assert (finish["status"], finish["error"], finish["settled"]) == ("aborted", ABORT_ERROR, settled)
    message = of(events, "message-finish")[-1]
    assert (message["finish_reason"], message["error"]) == ("aborted", ABORT_ERROR)


async def stored(agent: Agent, session_id: str = SESSION) -> list[Any]:
    """Give what the agent's own store holds of a session."""
    store = agent._config.store
    assert store is not None
    return list(await store.load(session_id))


def when(kind: str, action: Callable[[], object], **fields: Any) -> On:
    """Make an ``on`` that acts at the first event of ``kind`` with these fields."""
    done = False

    def on(event: Event) -> None:
        nonlocal done
        if not done and event["type"] == kind and fields.items() <= event.items():
            done = True
            action()

    return on


class Tracker(AgentExtension):
    """Writes down what reaches an extension."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def before_run(self, context: AgentRunContext) -> None:
        self.seen.append("before_run")

    async def on_event(self, context: AgentRunContext, event: ExtensionEvent) -> None:
        if isinstance(event, RunCancelledEvent):
            self.seen.append("cancelled")

    async def on_success(self, context: AgentRunContext, result: AssistantMessage) -> None:
        self.seen.append("success")

    async def on_error(self, context: AgentRunContext, error: Exception) -> None:
        self.seen.append(f"error {type(error).__name__}")

    @property
    def ends(self) -> list[str]:
        return [name for name in self.seen if name != "before_run"]


class Clock:
    """A sleep that a test ends by hand: ``asleep`` is set once somebody sleeps."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.asleep = asyncio.Event()
        self.wake = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.asleep.set()
        await self.wake.wait()


async def no_sleep(seconds: float) -> None:
    """Pass the time at once."""


def agent_for(*script: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(list(script)), **options)


async def drain(events: AsyncIterator[Event]) -> list[Event]:
    return [event async for event in events]
