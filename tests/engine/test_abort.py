"""The latch, the shield that holds, and the registry of abort events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from gateway.engine.abort import AbortEventManager, Latch, LatchState, outlast

if TYPE_CHECKING:
    from collections.abc import Callable


def latch() -> tuple[Latch, asyncio.Event]:
    event = asyncio.Event()
    return Latch(event), event


def test_a_set_event_stops_before_any_watcher_has_woken() -> None:
    verdict, event = latch()
    before = verdict.stopping
    event.set()
    assert (before, verdict.stopping, verdict.state) == (False, True, LatchState.RUNNING)


def test_the_first_abort_gives_the_reason() -> None:
    verdict, _ = latch()
    assert verdict.abort("user")
    assert not verdict.abort("closed")
    verdict.seal()
    assert (verdict.reason, verdict.state) == ("user", LatchState.SEALED)


def test_a_recorded_error_is_not_hidden_by_a_later_abort() -> None:
    verdict, event = latch()
    error = ValueError("first")
    assert verdict.fail(error)
    event.set()
    assert not verdict.abort("user")
    verdict.seal()
    assert (verdict.error, verdict.aborted) == (error, False)


def test_an_error_after_the_abort_is_not_recorded() -> None:
    verdict, event = latch()
    event.set()
    assert not verdict.fail(ValueError("late"))
    verdict.seal()
    assert (verdict.error, verdict.reason) == (None, "user")


def test_after_the_seal_an_abort_is_too_late() -> None:
    verdict, event = latch()
    verdict.seal()
    event.set()
    assert not verdict.abort("user")
    assert not verdict.aborted


async def test_outlast_waits_through_cancellations_and_raises_them_afterwards() -> None:
    gate, written = asyncio.Event(), asyncio.Event()

    async def write() -> None:
        await gate.wait()
        written.set()

    async def caller() -> None:
        await outlast(asyncio.create_task(write()))

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written.is_set()


async def test_an_abort_from_a_thread_goes_through_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting the event directly would set a flag at which nobody looks while the loop sleeps."""
    manager, event = AbortEventManager(), asyncio.Event()
    manager.register("s", event)
    handed: list[Callable[[], Any]] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", handed.append)
    assert manager.abort_from_thread("s")
    assert not event.is_set()
    assert handed == [event.set]


def test_an_abort_for_a_loop_that_is_closed_says_that_nothing_runs() -> None:
    manager = AbortEventManager()

    async def register() -> None:
        manager.register("s", asyncio.Event())

    asyncio.run(register())
    assert manager.abort_from_thread("s") is False


def test_the_manager_registers_gets_unregisters_and_resets() -> None:
    manager, event = AbortEventManager(), asyncio.Event()
    assert manager.get("s") is None
    manager.register("s", event)
    assert manager.get("s") is event
    manager.unregister("s")
    assert manager.get("s") is None
    manager.unregister("s")
    manager.register("s", event)
    manager.reset()
    assert manager.get("s") is None
