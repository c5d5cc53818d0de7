"""What can go wrong on the client's side.

* :exc:`~protocol.errors.GatewayError`
    * :exc:`~protocol.errors.CommandError` - the server refused a command.
    * :exc:`Unreachable` - the first connection could not be made.
    * :exc:`Closed` - the connection is over for good.
    * :exc:`TooManyCommands` - too many commands wait for their answer.
"""

from __future__ import annotations

from protocol.errors import GatewayError


class Unreachable(GatewayError):
    """The first connection could not be made; later ones are tried again without end."""


class Closed(GatewayError):
    """The connection is over for good; ``code`` is the close code (1000: this client closed it)."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"connection closed: {code} {reason}".rstrip())
        self.code = code
        self.reason = reason


class TooManyCommands(GatewayError):
    """More commands wait for their answer than the client keeps."""
