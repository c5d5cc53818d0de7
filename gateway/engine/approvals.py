"""What a person's answer to an ``approval-request`` means.

``respond`` carries a decision and, optionally, a ``value``:

* with ``allow``, ``{"input": {…}}`` replaces the call's arguments. They are checked like the model's own, the
  transcript gets a ``custom`` part ``tool-input-edited``, and the model is shown what really ran.
* with ``allow``, the whole ``value`` is also handed to the tool as ``context.answer``.
* with ``deny``, a string (or ``{"reason": "…"}``) is told to the model as the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.engine.bounds import MAX_ERROR_BYTES, bounded_text
from gateway.engine.errors import ToolError

if TYPE_CHECKING:
    from protocol.messages import Decision

EDITED = "tool-input-edited"
"""The ``custom`` part that says with which arguments an allowed call ran instead: ``{request_id, input}``."""


class NotAllowed(ToolError):
    """The call may not run, and has not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How the wait for a person ended."""

    decision: Decision
    value: Any = None

    @property
    def edited(self) -> dict[str, Any] | None:
        """The arguments that the person put in place of the model's."""
        given = self.value.get("input") if isinstance(self.value, dict) else None
        return given if isinstance(given, dict) else None

    def check(self) -> None:
        """Raise :exc:`NotAllowed` unless the person said yes."""
        if self.decision == "allow":
            return
        if self.decision == "expired":
            raise NotAllowed("Nobody allowed this call in time")
        reason = self.value.get("reason") if isinstance(self.value, dict) else self.value
        said = f": {bounded_text(reason, MAX_ERROR_BYTES)}" if isinstance(reason, str) and reason else ""
        raise NotAllowed(f"The person did not allow this call{said}")
