"""Seeds: printed, replayed with `FAULT_SEED`; `FAULT_TIMES=10` makes every seeded test ten times as long."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TIMES = float(os.environ.get("FAULT_TIMES") or 1)


def cast(capsys: pytest.CaptureFixture[str]) -> random.Random:
    """Dice whose seed stands in the output (the machine's own timing is not in it)."""
    seed = int(os.environ.get("FAULT_SEED") or time.time_ns() % 1_000_000)
    say(capsys, f"FAULT_SEED={seed}")
    return random.Random(seed)


def say(capsys: pytest.CaptureFixture[str], what: object) -> None:
    """Print past pytest's capture."""
    with capsys.disabled():
        print(f" [{what}]", end="", flush=True)
