"""Engines for the black-box tests: bare async generator functions, served as `engines:NAME`.

`director` reads a JSON object in the last user message and plays the behaviour it names, so that one server is
enough for most tests. A user message that is no JSON is answered with a short greeting.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

Event = dict[str, Any]
Spec = dict[str, Any]


async def hello(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """The smallest engine: text, and nothing else."""
    for word in ("Hello", ", ", "world"):
        if abort.is_set():
            return
        yield {"type": "text-delta", "text": word}
        await asyncio.sleep(0)


async def raising(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield {"type": "text-delta", "text": "so far"}
    await asyncio.sleep(0.01)
    raise RuntimeError("the-secret-detail")


async def silent(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Never yields, and ends at once."""
    nothing: list[Event] = []
    for event in nothing:
        yield event


async def hanging(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Never yields, never ends, never looks at `abort`."""
    await asyncio.Event().wait()
    yield {"type": "text-delta", "text": "never"}


def text(delta: str) -> Event:
    return {"type": "text-delta", "text": delta}


def described(message: Any) -> Spec:
    return {
        "role": message["role"],
        "text": "".join(p.get("text", "") for p in message["parts"]),
        "finish_reason": message.get("finish_reason"),
    }


async def released(abort: asyncio.Event, spec: Spec) -> bool:
    """Wait for the abort or for the spec's gate file; true when the file came."""
    gate = Path(spec["gate"]) if spec.get("gate") else None
    while not abort.is_set():
        if gate is not None and gate.exists():
            return True
        try:
            await asyncio.wait_for(abort.wait(), 0.005)
        except TimeoutError:
            continue
    return False


async def play_report(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield text(json.dumps({"mode": mode, "messages": [described(m) for m in messages]}))


async def play_tasks(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Say how many tasks the server's loop has, this run's included."""
    yield text(str(len(asyncio.all_tasks())))


async def play_words(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    for n in range(spec.get("words", 20)):
        if abort.is_set():
            return
        yield text(f"w{n}{'x' * spec.get('pad', 0)} ")
        await asyncio.sleep(spec.get("delay", 0))


async def play_hold(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield text(spec.get("say", "holding"))
    if await released(abort, spec):
        yield text(" released")


async def play_stubborn(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Streams on for ever, whatever `abort` says."""
    n = 0
    while True:
        yield text(f"s{n} ")
        n += 1
        await asyncio.sleep(0.01)


async def play_late(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Goes on talking after the abort; none of that may be kept."""
    yield text("before")
    await abort.wait()
    for _ in range(20):
        yield text(" AFTER")
        await asyncio.sleep(0)
    yield {"type": "tool-call", "call_id": "late", "tool": "late", "input": {}}
    yield {"type": "custom", "name": "late", "data": 1}


async def play_tools(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """One whole tool, from its arguments to its result, then text."""
    call = spec.get("call_id", "call_1")
    yield {"type": "tool-input-start", "call_id": call, "tool": "look"}
    yield {"type": "tool-input-delta", "call_id": call, "tool": "look", "text": '{"at"'}
    yield {"type": "tool-input-delta", "call_id": call, "tool": "look", "text": ': "x"}'}
    yield {"type": "tool-call", "call_id": call, "tool": "look", "input": {"at": "x"}}
    yield {"type": "tool-start", "call_id": call}
    for n in range(3):
        yield {"type": "tool-progress", "call_id": call, "data": {"n": n}}
    yield {"type": "tool-result", "call_id": call, "output": ["seen"]}
    yield text("Seen.")


async def play_tool_running(
    spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]
) -> AsyncIterator[Event]:
    """Two parallel tools, one done, one running; then text, and a wait."""
    for n in (1, 2):
        yield {"type": "tool-call", "call_id": f"call_{n}", "tool": "slow", "input": {"n": n}}
    for n in (1, 2):
        yield {"type": "tool-start", "call_id": f"call_{n}"}
    yield {"type": "tool-result", "call_id": "call_1", "output": "done"}
    if spec.get("text"):
        yield text("meanwhile")
    yield {"type": "custom", "name": "ready", "data": None}
    await released(abort, spec)


async def play_tool_called(
    spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]
) -> AsyncIterator[Event]:
    """A complete call that has not started."""
    yield {"type": "tool-call", "call_id": "call_1", "tool": "slow", "input": {}}
    await released(abort, spec)


async def play_tool_input(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Arguments that never became a call."""
    yield {"type": "tool-input-start", "call_id": "call_1", "tool": "slow"}
    yield {"type": "tool-input-delta", "call_id": "call_1", "tool": "slow", "text": '{"half'}
    await released(abort, spec)


async def play_tool_left(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Ends in good order with one call left running."""
    yield {"type": "tool-call", "call_id": "call_1", "tool": "slow", "input": {}}
    yield {"type": "tool-start", "call_id": "call_1"}


async def play_flood(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Much traffic that leaves a small transcript: progress replaces progress."""
    yield {"type": "tool-call", "call_id": "call_1", "tool": "flood", "input": {}}
    yield {"type": "tool-start", "call_id": "call_1"}
    for n in range(spec["events"]):
        if abort.is_set():
            return
        yield {"type": "tool-progress", "call_id": "call_1", "data": {"n": n, "pad": "p" * spec["bytes"]}}
        await asyncio.sleep(0)
    yield {"type": "tool-result", "call_id": "call_1", "output": "flooded"}
    yield text("flooded")


async def play_mixed(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Reasoning and text, no ids anywhere."""
    yield {"type": "reasoning-delta", "text": "Let me "}
    yield {"type": "reasoning-delta", "text": "think."}
    yield text("I ")
    yield text("thought.")
    yield {"type": "reasoning-delta", "text": "Again."}
    yield text("Done.")


async def play_usage(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield {"type": "step-start", "step": 1}
    yield text("one")
    usage = {"input_tokens": 12, "output_tokens": 4}
    yield {"type": "step-finish", "step": 1, "finish_reason": "stop", "usage": usage}
    yield {"type": "step-start", "step": 2}
    yield text("two")
    yield {"type": "step-finish", "step": 2, "finish_reason": "stop", "usage": None}


async def play_twins(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """A provider that gives the same ids again and again."""
    for n in (1, 2):
        yield {"type": "text-start", "part_id": "p"}
        yield {"type": "text-delta", "part_id": "p", "text": f"text {n}"}
        yield {"type": "text-end", "part_id": "p"}
        yield {"type": "tool-call", "part_id": "p", "call_id": "c", "tool": "twin", "input": {"n": n}}
        yield {"type": "tool-start", "call_id": "c"}
        yield {"type": "tool-result", "call_id": "c", "output": n}


async def play_garbage(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """What no engine may yield; `n` picks the piece."""
    pieces: list[Any] = [
        {"type": "no-such-event", "text": "x"},
        {"text": "no type"},
        {"type": "text-delta", "text": 7},
        {"type": "text-delta"},
        "not a dict",
        None,
        {"type": "tool-start", "call_id": "nobody"},
        {"type": "tool-result", "call_id": "nobody", "output": 1},
        {"type": "text-end", "part_id": "nothing"},
        {"type": "run-finish", "status": "completed"},
        {"type": "message-start", "message_id": 7, "role": "user"},
        {"type": "step-start", "step": "one"},
        {"type": "custom", "name": "x", "data": float("nan")},
        {"type": "custom", "name": "x", "data": {1, 2}},
        {"type": "text-delta", "text": "lone \ud800 surrogate"},
        {"type": "text-delta", "text": "enveloped", "seq": 999, "session_id": "other", "run_id": "other", "time": 1},
    ]
    yield text("good ")
    yield pieces[spec["n"]]
    yield text("still good")


async def play_big(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Two MiB in one delta, or in one output."""
    size = spec.get("bytes", 2 << 20)
    if spec.get("output"):
        yield {"type": "tool-call", "call_id": "call_1", "tool": "big", "input": {}}
        yield {"type": "tool-start", "call_id": "call_1"}
        yield {"type": "tool-result", "call_id": "call_1", "output": "b" * size}
    else:
        yield text("b" * size)


async def play_hang(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield text("hanging")
    await asyncio.Event().wait()


async def play_custom(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    yield {"type": "custom", "name": "note", "data": {"a": [1, None, "ü"]}}
    yield text("noted")


async def play_retry(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    error = {"reason": "APIError", "message": "busy", "code": None, "status_code": 503, "retryable": True}
    yield {"type": "retry", "attempt": 1, "delay_s": 0.01, "error": error}
    yield text("second try")


async def play_same_ids(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """One id for the call, its part and its approval."""
    same = {"call_id": "c", "part_id": "c", "tool": "look"}
    yield {"type": "text-delta", "part_id": "c", "text": "I look. "}
    yield {"type": "tool-input-start", **same}
    yield {"type": "tool-input-delta", **same, "text": "{}"}
    yield {"type": "tool-call", **same, "input": {}}
    yield {"type": "approval-request", **same, "request_id": "c", "input": {}}
    yield {"type": "approval-resolved", "request_id": "c", "decision": "allow"}
    yield {"type": "tool-start", "call_id": "c"}
    yield {"type": "tool-result", "call_id": "c", "output": "seen"}


async def play_no_ids(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Starts and ends, and no id but a text part's own at its start."""
    yield {"type": "text-start", "part_id": "own"}
    yield text("of its ")
    yield text("own")
    yield {"type": "text-end"}
    for event in ("tool-input-start", "tool-input-delta", "tool-call", "tool-start", "tool-result"):
        yield {"type": event, "tool": "look", "text": "{}", "input": {}, "output": "seen"}
    for n in range(3):
        yield {"type": "text-delta", "part_id": 7, "text": f"{n}"}


async def play_changes(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Goes on using the objects that it has given away and was given."""
    value: dict[str, Any] = {"n": 0}
    yield {"type": "tool-call", "call_id": "c", "tool": "count", "input": value}
    yield {"type": "tool-start", "call_id": "c"}
    for n in (1, 2, 3):
        value["n"] = n
        yield {"type": "tool-progress", "call_id": "c", "data": value}
    yield {"type": "tool-result", "call_id": "c", "output": value}
    yield {"type": "custom", "message_id": "m", "name": "set", "data": {1}}
    value["n"] = "changed"
    messages[-1]["parts"].append({"type": "text", "text": "changed"})


class Unsayable:
    def __repr__(self) -> str:
        raise ValueError("unsayable")


async def play_strange(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """The wrong thing in every field."""
    loop: dict[Any, Any] = {"again": [], "key": {Unsayable(): 1}}
    loop["again"] += [loop, loop]
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    things: list[Any] = [Unsayable(), loop, deep, 10**30, float("nan"), {1}, b"\xff", "\ud800", [], True, -1]
    error = dict.fromkeys(("message", "code", "status_code", "retryable"))
    for thing in things:
        ids = dict.fromkeys(("part_id", "call_id", "request_id", "message_id", "tool", "name"), thing)
        values = dict.fromkeys(("input", "output", "data", "attempt", "delay_s", "expires_at", "decision"), thing)
        wrong = {"reason": "NoSuchError", **dict.fromkeys(error, thing)}
        odd = {**ids, **values, "text": "x", "error": wrong, "finish_reason": thing, "step": thing}
        odd["usage"] = dict.fromkeys(("input_tokens", "output_tokens", "cost"), thing)
        for kind in spec["types"]:
            yield {"type": kind, **odd}


async def play_ends(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """Ends in a way of its own."""
    yield text("so far")
    match spec["how"]:
        case "exit":
            raise SystemExit(3)
        case "generator-exit":
            raise GeneratorExit
        case "own-abort":
            abort.set()
        case "abort-error":
            error = {"reason": "AbortError", "message": "mine", "code": "c", "status_code": 5, "retryable": True}
            yield {"type": "message-finish", "finish_reason": "aborted", "usage": None, "error": error}


async def play_close_together(
    spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]
) -> AsyncIterator[Event]:
    """A delta that nearly fills a message, right behind another."""
    yield text("a" * 60_000)
    yield text("b" * 1_030_000)


async def play_asks_much(spec: Spec, abort: asyncio.Event, mode: str, messages: Sequence[Any]) -> AsyncIterator[Event]:
    """An approval whose input does not fit a message."""
    call = {"call_id": "c", "tool": "write"}
    yield {"type": "tool-call", **call, "input": {}}
    yield {"type": "approval-request", **call, "request_id": "r", "input": "z" * (2 << 20)}
    await released(abort, spec)


PLAYS: dict[str, Callable[[Spec, asyncio.Event, str, Sequence[Any]], AsyncIterator[Any]]] = {
    name.removeprefix("play_"): play for name, play in list(globals().items()) if name.startswith("play_")
}
BARE = {"hello": hello, "raising": raising, "silent": silent, "hanging": hanging}


def spec_of(messages: Sequence[Any]) -> Spec:
    said = next((described(m)["text"] for m in reversed(messages) if m["role"] == "user"), "")
    try:
        spec = json.loads(said)
    except ValueError:
        spec = None
    return spec if isinstance(spec, dict) else {"do": "hello"}


async def director(*, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]) -> AsyncIterator[Any]:
    """Play what the last user message asks for; a resumed run plays its `resume`, else it reports."""
    spec = spec_of(messages)
    if mode == "resume":
        spec = spec.get("resume", {"do": "report"})
    do = spec.get("do", "hello")
    if do in BARE:
        events = BARE[do](abort=abort, mode=mode, session_id=session_id, messages=messages)
    else:
        events = PLAYS[do](spec, abort, mode, messages)
    async for event in events:
        yield event


class Approver:
    """An engine as an object: it asks before its tool runs, and can be answered."""

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Future[str]] = {}

    async def stream(
        self, *, abort: asyncio.Event, mode: str, session_id: str, messages: Sequence[Any]
    ) -> AsyncIterator[Event]:
        request = f"req_{session_id}"
        answer = self.answers[request] = asyncio.get_running_loop().create_future()
        yield {"type": "tool-call", "call_id": "call_1", "tool": "delete", "input": {"path": "x"}}
        ask = {"request_id": request, "call_id": "call_1", "tool": "delete", "input": {"path": "x"}}
        yield {"type": "approval-request", **ask}
        stop = asyncio.ensure_future(abort.wait())
        await asyncio.wait({stop, answer}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not answer.done():
            return
        yield {"type": "approval-resolved", "request_id": request, "decision": answer.result()}
        if answer.result() == "allow":
            yield {"type": "tool-start", "call_id": "call_1"}
            yield {"type": "tool-result", "call_id": "call_1", "output": "deleted"}
        else:
            error = {"error": "Denied by the user", "interrupted": False, "outcome": "not_run"}
            yield {"type": "tool-error", "call_id": "call_1", **error}
        yield text("So be it.")

    async def respond(self, *, session_id: str, run_id: str, request_id: str, decision: str, value: Any) -> None:
        self.answers[request_id].set_result(decision)


approver = Approver()
