"""The stopwatch counts what a process does and waits for, and not what others take from it."""

from __future__ import annotations

import multiprocessing
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support_stopwatch import Stopwatch

if TYPE_CHECKING:
    from collections.abc import Iterator


def spin() -> None:
    while True:
        pass


@contextmanager
def a_busy_machine() -> Iterator[None]:
    """Three others want each processor."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=spin, daemon=True) for _ in range(3 * (os.cpu_count() or 1))]
    for one in others:
        one.start()
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.join()


def test_sleeping_counts() -> None:
    with Stopwatch() as watch:
        time.sleep(0.5)
        assert watch.seconds() > 0.25


def test_computing_counts_and_waiting_for_a_processor_does_not() -> None:
    with a_busy_machine(), Stopwatch() as watch:
        began, computed = time.monotonic(), time.process_time()
        while time.process_time() - computed < 0.3:
            pass
        took, seen = time.monotonic() - began, watch.seconds()
    assert seen > 0.2
    assert seen - 0.3 < (took - 0.3) / 2 + 0.1
