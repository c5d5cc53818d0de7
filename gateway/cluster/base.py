"""The bus's interface: channels of bytes between nodes, at most once, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Listener(Protocol):
    """Who uses a bus. All of it is called on the event loop and must not wait."""

    def received(self, channel: str, data: bytes) -> None:
        """A message on a subscribed channel."""

    def restored(self) -> None:
        """The bus works, for the first time or again: everything sent meanwhile may be lost."""

    def lost(self) -> None:
        """The bus does not work any more."""


class Bus(Protocol):
    """Signals between nodes. Nothing here waits for a network or raises because of one."""

    @property
    def works(self) -> bool:
        """What is sent now has a chance to arrive."""

    async def start(self, listener: Listener, channels: list[str]) -> None:
        """Begin to connect, for as long as it takes, and to listen on ``channels``."""

    async def stop(self) -> None:
        """Send what waits, within a moment, and let go."""

    def send(self, channel: str, data: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """Send a message. Two messages on one channel arrive in their order, or not at all.

        ``undelivered`` is called where it is certain that nobody was listening; its not being called says nothing.
        """

    def subscribe(self, channel: str) -> None:
        """Listen on a further channel from soon on."""

    def unsubscribe(self, channel: str) -> None:
        """Listen there no longer."""
