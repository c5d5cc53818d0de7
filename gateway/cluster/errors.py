"""What stands in the way of a command on a node."""

from __future__ import annotations

from protocol.errors import CommandError

Key = tuple[str, str]
"""The principal in whose scope a session is, and its id."""


class Elsewhere(Exception):
    """Another node owns the session ``key``; ``node_id`` None: perhaps nobody does, and this node must not."""

    def __init__(self, key: Key, node_id: str | None) -> None:
        super().__init__(key, node_id)
        self.key = key
        self.node_id = node_id


def out_of_reach() -> CommandError:
    """Build the error for a session whose owner cannot be reached now."""
    return CommandError("store_unavailable", "the session's node cannot be reached; try again", retry_after_s=1.0)


def leaving() -> CommandError:
    """Build the error for what a node does not begin any more."""
    return CommandError("draining", "the server is shutting down", retry_after_s=1.0)
