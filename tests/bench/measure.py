"""The arithmetic: values taken in turn, spread, percentiles, ratios within a round, targets. Pure but for the turns.

On a shared machine absolute numbers jump by half within a minute. So rivals are measured in turn, the ratio is taken
within each round, where both had the same machine, and the median of the rounds' ratios is what is said.
"""

from __future__ import annotations

import asyncio
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

PATIENCE_S = 120
"""A turn that lasts longer is broken, not slow."""

Better = Literal["higher", "lower"]


class Pausable(Protocol):
    """A server that can be stopped while others have their turn."""

    def pause(self) -> None: ...
    def go_on(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who takes part: its server (None: it has none that could disturb others) and how it is measured."""

    measure: Callable[[], Awaitable[float]]
    server: Pausable | None = None


async def in_turn(
    rounds: int, contestants: Mapping[str, Contestant], *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Measure each once per round, all others' processes standing still; the warm-up round is thrown away."""
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    servers = [c.server for c in contestants.values() if c.server is not None]
    for server in servers:
        server.pause()
    try:
        for number in range(rounds + warm_up):
            for name, contestant in contestants.items():
                if contestant.server is not None:
                    contestant.server.go_on()
                async with asyncio.timeout(PATIENCE_S):
                    value = await contestant.measure()
                if contestant.server is not None:
                    contestant.server.pause()
                if number >= warm_up:
                    taken[name].append(value)
    finally:
        for server in servers:
            server.go_on()
    return taken


def percentile(values: Sequence[float], share: float) -> float:
    """Give the smallest value that at least ``share`` (0 to 1) of all do not exceed (nearest rank)."""
    if not values:
        raise ValueError("no values, no percentile")
    rank = -(-len(values) * round(share * 10_000) // 10_000)  # rounded up, without floating point's crumbs
    return sorted(values)[max(rank, 1) - 1]


def spread(values: Sequence[float]) -> float:
    """Give the distance from the lowest to the highest as a share of the median."""
    middle = statistics.median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [one / other for one, other in zip(ours, theirs, strict=True)]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio and what it should be at least, or at most."""

    name: str
    values: list[float]
    """The ratio of each round."""
    bound: float
    at_most: bool = False

    @property
    def ratio(self) -> float:
        """The median of the rounds' ratios."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """The median is on the right side."""
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


@dataclass(slots=True)
class Outcome:
    """What one scenario found: the rivals' values per round, their curves, the targets."""

    letter: str
    title: str
    unit: str
    better: Better
    values: dict[str, list[float]]
    """Each contestant's value of every round; the product's is called ``gateway``."""
    targets: list[Target] = field(default_factory=list)
    curves: dict[str, list[float]] = field(default_factory=dict)
    """Samples of a latency in milliseconds, all rounds together, for a CDF."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Who did not take part, and why."""
    notes: list[str] = field(default_factory=list)

    def median(self, name: str) -> float:
        """The middle one of a contestant's rounds."""
        return statistics.median(self.values[name])

    def times_better(self, name: str) -> float:
        """How many times better the gateway is than ``name`` (``rival, how``: than it is that way): above 1 it wins."""
        same_way = "gateway, " + name.partition(", ")[2]
        ours, theirs = self.values[same_way if same_way in self.values else "gateway"], self.values[name]
        pairs = ratios(ours, theirs) if self.better == "higher" else ratios(theirs, ours)
        return statistics.median(pairs)
