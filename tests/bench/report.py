"""What a run found: a table for people, JSON for programs, pictures for both."""

from __future__ import annotations

import json
import os
import platform
import statistics
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from tests.bench import svg
from tests.bench.measure import spread

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.bench.measure import Outcome


def figure(value: float) -> str:
    """Give three or four digits, whatever the size."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def table(outcome: Outcome) -> Iterator[str]:
    """Give the lines of a scenario: medians, spreads, ratios, targets, who is missing and why."""
    yield f"({outcome.letter}) {outcome.title}: {outcome.unit}, {outcome.better} is better"
    for name, values in outcome.values.items():
        times = "" if name == "gateway" or "gateway" not in outcome.values else _times(outcome, name)
        yield f"    {figure(statistics.median(values)):>12}  ±{spread(values) * 50:3.0f} %  {name}{times}"
    for target in outcome.targets:
        sign, verdict = ("≤" if target.at_most else "≥"), ("met" if target.met else "NOT MET")
        low, high = min(target.values), max(target.values)
        yield f"    {target.ratio:12.2f}  {sign} {target.bound:g}  {target.name} ({low:.2f} to {high:.2f}): {verdict}"
    for note in outcome.notes:
        yield f"    {note}"
    for name, why in outcome.left_out.items():
        yield f"    left out: {name} ({why})"


def _times(outcome: Outcome, name: str) -> str:
    if name.startswith("gateway"):
        return ""
    return f"  (the gateway is {outcome.times_better(name):.2f} times better)"


def write(outcomes: Sequence[Outcome], folder: Path, *, quick: bool) -> None:
    """Write ``results.json``, a bar plot per scenario and a CDF plot where there are curves."""
    folder.mkdir(parents=True, exist_ok=True)
    data = {"quick": quick, "machine": machine(), "scenarios": [as_data(outcome) for outcome in outcomes]}
    (folder / "results.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "bars.svg").write_text(svg.bars(outcomes))
    for outcome in outcomes:
        if outcome.curves:
            title = f"({outcome.letter}) {outcome.title}"
            (folder / f"cdf-{outcome.letter}.svg").write_text(svg.cdf(title, outcome.curves))


def machine() -> dict[str, Any]:
    """Say on what this was measured."""
    packages = ("uvicorn", "starlette", "websockets", "uvloop", "python-socketio")
    return {
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "packages": {name: version(name) for name in packages},
    }


def as_data(outcome: Outcome) -> dict[str, Any]:
    """Give an outcome as JSON data."""
    return {
        "scenario": outcome.letter,
        "title": outcome.title,
        "unit": outcome.unit,
        "better": outcome.better,
        "values": outcome.values,
        "medians": {name: statistics.median(values) for name, values in outcome.values.items()},
        "targets": [
            {
                "name": target.name,
                "ratio": target.ratio,
                "values": target.values,
                "bound": target.bound,
                "at_most": target.at_most,
                "met": target.met,
            }
            for target in outcome.targets
        ],
        "left_out": outcome.left_out,
        "notes": outcome.notes,
    }
