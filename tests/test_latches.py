"""Aborts that wait for their command: bounded, and one principal's flood drives out only its own."""

from __future__ import annotations

import gateway.latches
from gateway.latches import Latches


async def test_a_flood_of_one_principal_drives_out_nobody_elses() -> None:
    latches = Latches()
    latches.set("alice", "hers", "stop")
    for n in range(gateway.latches.MAX_LATCHES * 2):
        latches.set("mallory", f"m{n}", None)
    assert latches.peek("alice", "hers") == "stop"
    assert latches.peek("mallory", "m0") is None
    assert latches.peek("mallory", f"m{gateway.latches.MAX_LATCHES * 2 - 1}") == ""
    held = sum(latches.peek("mallory", f"m{n}") is not None for n in range(gateway.latches.MAX_LATCHES * 2))
    assert held == gateway.latches.MAX_LATCHES - 1


async def test_what_was_set_twice_counts_once_and_what_was_dropped_not_at_all() -> None:
    latches = Latches()
    latches.set("alice", "first", None)
    for n in range(gateway.latches.MAX_LATCHES):
        latches.set("mallory", "same", None)
        latches.set("bob", f"b{n}", None)
        latches.drop("bob", f"b{n}")
    latches.drop("nobody", "nothing")
    assert latches.peek("alice", "first") == ""
    assert latches.peek("mallory", "same") == ""
    latches.expire(float("inf"))
    assert latches.peek("alice", "first") is None
