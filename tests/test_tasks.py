"""A task that runs until it is told not to comes to an end, also where a library loses its cancellation."""

from __future__ import annotations

import asyncio

from gateway.tasks import ended


async def test_a_task_that_lost_its_cancellation_is_cancelled_again() -> None:
    cancelled = 0

    async def loses_one() -> None:
        nonlocal cancelled
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                cancelled += 1
                if cancelled > 1:
                    raise

    task = asyncio.create_task(loses_one())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await ended([task])
    assert task.cancelled()
    assert cancelled == 2


async def test_what_cleans_up_is_left_to_it_and_failures_are_the_tasks_own() -> None:
    cleaned = asyncio.Event()

    async def cleans_up() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.01)
            cleaned.set()

    async def fails() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise RuntimeError("as it ended")

    tasks = [asyncio.create_task(cleans_up()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    await ended(tasks)
    assert cleaned.is_set()
    assert isinstance(tasks[1].exception(), RuntimeError)
    await ended(tasks)  # what has ended already is not waited for


async def test_who_is_cancelled_again_while_it_waits_leaves_none_of_its_own_behind() -> None:
    async def loses_one() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await asyncio.sleep(3600)

    child = asyncio.create_task(loses_one())

    async def owns_it() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await ended([child])

    owner = asyncio.create_task(owns_it())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await ended([owner])
    assert owner.cancelled()
    assert child.cancelled()
