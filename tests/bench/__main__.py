"""``python -m tests.bench [--quick] [--only a,c] [--out folder]``: the gateway and its rivals, in turn, in one run.

Asserts nothing about time: a target that is not met is a line of the table. One that breaks is said to, and
the exit code is 1 after the others have run.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from tests.bench import report
from tests.bench.plan import FULL, QUICK, Plan
from tests.bench.process import CLIENT_CORE, pin
from tests.bench.rivals.base import Stopwatch
from tests.bench.scenarios import fanout, fold, idle, latency, replay, store, throughput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.bench.measure import Outcome

SCENARIOS: dict[str, Callable[[Plan], Awaitable[Outcome]]] = {
    "a": throughput.one_session,
    "b": throughput.fifty_sessions,
    "c": latency.delivery,
    "d": fanout.fan_out,
    "e": latency.abort,
    "f": replay.reconnect,
    "g": replay.long_log,
    "h": idle.memory,
    "i": idle.start_up,
    "j": store.store,
    "k": store.growth,
    "l": fold.fold,
}


async def main(letters: str, plan: Plan) -> list[Outcome]:
    """Run scenarios and print what they find as they go."""
    outcomes = []
    for letter in letters:
        watch = Stopwatch()
        try:
            outcome = await SCENARIOS[letter](plan)
        except Exception:
            traceback.print_exc()
            print(f"({letter}) BROKE after {watch.seconds:.0f} s\n", flush=True)
            continue
        outcomes.append(outcome)
        print("\n".join(report.table(outcome)), f"\n    [{watch.seconds:.0f} s]\n", flush=True)
    return outcomes


def _letters(text: str) -> str:
    letters = text.replace(",", "")
    if not letters or set(letters) - SCENARIOS.keys():
        raise argparse.ArgumentTypeError(f"scenarios are {','.join(SCENARIOS)}")
    return letters


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only see that every scenario works, in about 40 s")
    parser.add_argument("--only", type=_letters, default="".join(SCENARIOS), help="letters of scenarios: a,c")
    parser.add_argument("--out", type=Path, help="where results.json and the pictures go")
    options = parser.parse_args()
    pin(CLIENT_CORE)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the servers end with us
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        found = runner.run(main(options.only, QUICK if options.quick else FULL))
    if options.out is not None:
        report.write(found, options.out, quick=options.quick)
    sys.exit(len(found) < len(options.only))
