"""A Stop comes to a run's owner twice, as a flag in the store and as a signal: whichever is first, it is done once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import orjson

from gateway.cluster.aborts import Aborts
from gateway.stores.base import AbortFlag

WORD = {"id": "w-1", "kind": "abort", "run_id": "run_1", "reason": None, "at": 0}


def a_session(done: list[Any]) -> Any:
    """A session that stops its run once: a second Stop would find nothing."""
    return SimpleNamespace(
        key=("p", "s"), log=SimpleNamespace(fence=None), abort=lambda *_, **__: [done.pop()] if done else []
    )


async def test_a_signal_behind_its_flag_is_answered_with_what_was_done() -> None:
    stopped = {"session_id": "s", "run_id": "run_1", "state": "requested"}
    aborts, session = Aborts(cast("Any", None)), a_session([stopped])
    aborts.obey(session, AbortFlag("p", "s", 1, (orjson.dumps(WORD),)))
    assert aborts.signalled(session, WORD) == [stopped]
