"""A thread of its own for each sync tool."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Run ``call`` in a daemon thread of its own.

    Not the default executor: a tool that never returns would hold one of its few workers for ever, and the process
    would wait for it at exit.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # which a future refuses
            done.set_exception(RuntimeError("tool raised StopIteration"))
        else:
            done.set_exception(error)

    def work() -> None:
        try:
            outcome: tuple[Any, BaseException | None] = (context.run(call), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(deliver, *outcome)
        except RuntimeError:  # the loop is closed: the process is on its way out
            return

    threading.Thread(target=work, name=f"tool-{name}", daemon=True).start()
    return await done
