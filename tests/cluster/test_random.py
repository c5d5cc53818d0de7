"""Random clients on three nodes under random faults: the contract's invariants hold, and each session has one runner.

``GATEWAY_TEST_ROUNDS`` multiplies the rounds (default 1), ``GATEWAY_TEST_SEED`` is the first one's seed.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.chaos import play

if TYPE_CHECKING:
    from tests.cluster.conftest import Launch

ROUNDS = int(os.environ.get("GATEWAY_TEST_ROUNDS", "1"))
SEED = int(os.environ.get("GATEWAY_TEST_SEED", "0")) or time.time_ns() % 1_000_000


@pytest.mark.timeout(300 + 300 * ROUNDS)
async def test_the_invariants_hold_under_random_faults(cluster: Launch) -> None:
    three = cluster(3, lease_s=3, drain=3, abort_grace=1)
    prompts = 0
    for number in range(ROUNDS):
        prompts += await play(three, SEED + number, people=5, actions=40, faults=8)
        print(f"seed {SEED + number}: {prompts} prompts so far, {len(three.executed())} steps of engines")
    assert prompts > 30 * ROUNDS
