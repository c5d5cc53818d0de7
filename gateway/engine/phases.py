"""Where a run stands. Illegal transitions raise: a phase that lies is worse than none."""

from __future__ import annotations

from enum import StrEnum


class AgentPhase(StrEnum):
    """The phases of a run."""

    CREATED = "created"
    LOADING_CONTEXT = "loading_context"
    READY = "ready"
    GENERATING = "generating"
    RUNNING_TOOL = "running_tool"
    COMPACTING = "compacting"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({AgentPhase.COMPLETED, AgentPhase.FAILED, AgentPhase.CANCELLED})

_NEXT: dict[AgentPhase, frozenset[AgentPhase]] = {
    AgentPhase.CREATED: frozenset({AgentPhase.LOADING_CONTEXT}),
    AgentPhase.LOADING_CONTEXT: frozenset({AgentPhase.READY}),
    AgentPhase.READY: frozenset(
        {AgentPhase.GENERATING, AgentPhase.RUNNING_TOOL, AgentPhase.COMPACTING, AgentPhase.COMPLETED}
    ),
    AgentPhase.GENERATING: frozenset({AgentPhase.READY}),
    AgentPhase.RUNNING_TOOL: frozenset({AgentPhase.READY}),
    AgentPhase.COMPACTING: frozenset({AgentPhase.READY}),
}


class IllegalTransition(RuntimeError):
    """A run tried to go from one phase to another that does not follow it."""

    def __init__(self, old: AgentPhase, new: AgentPhase) -> None:
        super().__init__(f"a run cannot go from {old} to {new}")
        self.old = old
        self.new = new


class AgentState:
    """The phase of one run; ``agent.state`` is that of the run started last."""

    __slots__ = ("_phase",)

    def __init__(self) -> None:
        self._phase = AgentPhase.CREATED

    @property
    def phase(self) -> AgentPhase:
        """The current phase."""
        return self._phase

    def enter(self, phase: AgentPhase) -> None:
        """Move to ``phase``; any unfinished phase may fail or be cancelled. Raises :exc:`IllegalTransition`."""
        stops = self._phase not in FINAL and phase in (AgentPhase.FAILED, AgentPhase.CANCELLED)
        if not stops and phase not in _NEXT.get(self._phase, frozenset()):
            raise IllegalTransition(self._phase, phase)
        self._phase = phase
