"""The one task and the thin generator that all adapters share."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from gateway.adapters import relay as module
from gateway.adapters.relay import LIMIT, check_finish, relay, scoped, turns_of
from gateway.engine import user_message
from gateway.engine.errors import APIError, ContentFilterError, OutputLengthError
from gateway.engine.port import RunContext, run_context

if TYPE_CHECKING:
    from gateway.adapters.relay import Emit


def same(error: Exception) -> Exception:
    return error


async def test_a_reader_that_waits_makes_the_framework_wait() -> None:
    """No more than the limit is ever unread, and nothing is lost or turned round."""
    made = 0

    async def work(emit: Emit) -> None:
        nonlocal made
        for made in range(1, 3 * LIMIT + 1):
            await emit("text-delta", text=str(made))

    async with aclosing(relay(work, asyncio.Event(), same)) as events:
        read = [int((await anext(events))["text"])]
        assert made <= LIMIT
        async for event in events:
            read.append(int(event["text"]))
            assert made - len(read) <= LIMIT
    assert read == list(range(1, 3 * LIMIT + 1))


async def test_what_was_said_before_an_error_is_read_before_it() -> None:
    """The events come first, then the error, translated, with the framework's own as its cause."""

    async def work(emit: Emit) -> None:
        await emit("text-delta", text="a")
        raise KeyError("x")

    read = []
    events = relay(work, asyncio.Event(), lambda error: APIError("y"))
    read.append((await anext(events))["text"])
    with pytest.raises(APIError) as caught:
        await anext(events)
    assert read == ["a"]
    assert isinstance(caught.value.__cause__, KeyError)


async def test_an_error_of_the_clean_up_is_no_error_of_the_run() -> None:
    """After an abort nothing is raised: the abort explains what came of it."""
    abort = asyncio.Event()

    async def work(emit: Emit) -> None:
        try:
            await emit("text-delta", text="a")
            await asyncio.Event().wait()
        finally:
            raise KeyError("the connection was closed")

    async with aclosing(relay(work, abort, same)) as events:
        assert (await anext(events))["text"] == "a"
        abort.set()
        assert [event async for event in events] == []


async def test_events_of_the_clean_up_still_come() -> None:
    """A tool's real result, known only while it is being cancelled, reaches the session."""
    abort = asyncio.Event()

    async def work(emit: Emit) -> None:
        await emit("tool-start", call_id="c")
        try:
            await asyncio.Event().wait()
        finally:
            await emit("tool-result", call_id="c", output=1)

    async with aclosing(relay(work, abort, same)) as events:
        await anext(events)
        abort.set()
        assert [event["type"] async for event in events] == ["tool-result"]


async def test_an_agent_that_cancels_itself_has_failed() -> None:
    """A framework's own CancelledError is not taken for anybody's wish."""

    async def work(emit: Emit) -> None:
        raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="cancelled itself"):
        await anext(relay(work, asyncio.Event(), same))


async def test_a_framework_that_will_not_let_go_is_kept_until_it_does() -> None:
    """A second cancel of the reader, the session's after the grace, gets through; the task stays referenced."""
    release, stubborn, entered = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(emit: Emit) -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stubborn.set()
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    async def read() -> None:
        async with aclosing(relay(work, asyncio.Event(), same)) as events:
            async for _ in events:
                pass

    reader = asyncio.create_task(read())
    await entered.wait()
    reader.cancel()
    await stubborn.wait()
    assert not reader.done()
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    [left] = module._LEFT_BEHIND
    assert not left.done()
    release.set()
    await asyncio.wait({left})
    assert not module._LEFT_BEHIND


def test_a_finish_that_is_none_fails_the_run() -> None:
    with pytest.raises(OutputLengthError):
        check_finish("length")
    with pytest.raises(ContentFilterError):
        check_finish("content-filter")
    check_finish("stop")
    check_finish("tool-calls")


def test_a_framework_never_sees_two_principals_in_one_session() -> None:
    """The same session id of two principals is two sessions."""
    assert scoped("s") == "s"
    token = run_context.set(RunContext("ann", "s", "run_1"))
    try:
        assert scoped("s") == "ann:s"
    finally:
        run_context.reset(token)


def test_the_last_turn_is_what_is_to_be_answered() -> None:
    before, last = turns_of([user_message("a"), user_message("b")], "prompt")
    assert ([turn.content for turn in before], last.content) == (["a"], "b")
    with pytest.raises(ValueError, match="nothing to answer"):
        turns_of([], "resume")
