"""``python -m tests.bench [--quick]``: every scenario in one run, as a table of ratios. Asserts nothing about time."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.bench.scenarios import FULL, QUICK, SCENARIOS


async def main(*, quick: bool) -> None:
    """Print the table; a scenario that breaks raises."""
    print(f"{'ratio':>7}  {'wanted':>8}  scenario")
    for scenario in SCENARIOS:
        for row in await scenario(QUICK if quick else FULL):
            sign = "<=" if row.at_most else ">="
            mark = " " if row.met else "!"
            print(f"{row.ratio:7.2f}{mark} {sign:>3} {row.floor:4.2f}  {row.name} ({row.detail})", flush=True)


if hasattr(os, "sched_setaffinity") and (os.cpu_count() or 1) > 1:
    os.sched_setaffinity(0, {1})
asyncio.run(main(quick="--quick" in sys.argv[1:]))
