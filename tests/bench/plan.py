"""How much is done: a quick pass that only has to work, and the full one whose ratios are quoted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts and rounds. Times in seconds."""

    rounds: int
    events: int
    """Engine events of a flood."""
    rivals: bool
    """Whether those with environments of their own take part, where they are installed."""
    crowd: int
    """Connections that stream at once, and that come back at once."""
    paced_s: float
    observers: int
    broadcast: int
    """Events that go to every observer."""
    missed: int
    """Events that each returning client has missed."""
    replayed: int
    aborts: int
    idle: int
    """Idle connections, and as many idle sessions."""
    stored: tuple[int, ...]
    """Sessions in the database before anything is measured."""
    folded: int


FULL = Plan(
    rounds=3,
    events=50_000,
    rivals=True,
    crowd=1000,
    paced_s=3.0,
    observers=1000,
    broadcast=100,
    missed=1000,
    replayed=100_000,
    aborts=100,
    idle=10_000,
    stored=(0, 10_000, 1_000_000),
    folded=300_000,
)
QUICK = Plan(
    rounds=1,
    events=10_000,
    rivals=False,
    crowd=100,
    paced_s=1.0,
    observers=50,
    broadcast=50,
    missed=200,
    replayed=10_000,
    aborts=20,
    idle=300,
    stored=(0, 1000),
    folded=20_000,
)
