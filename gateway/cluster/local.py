"""A bus within one process, for several hubs in one event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.cluster.base import Listener


class Exchange:
    """What :class:`LocalBus` es meet at."""

    def __init__(self) -> None:
        self.buses: list[LocalBus] = []


class LocalBus:
    """A :class:`~gateway.cluster.base.Bus` to every other one at its exchange. ``cut`` loses the connection."""

    def __init__(self, exchange: Exchange) -> None:
        self.works = False
        self._exchange = exchange
        self._listener: Listener | None = None
        self._channels: set[str] = set()

    async def start(self, listener: Listener, channels: list[str]) -> None:
        """Connect."""
        self._listener = listener
        self._channels.update(channels)
        self._exchange.buses.append(self)
        self.mend()

    async def stop(self) -> None:
        """Disconnect."""
        self.works = False
        if self in self._exchange.buses:
            self._exchange.buses.remove(self)

    def cut(self) -> None:
        """Lose the connection."""
        self.works = False
        if self._listener is not None:
            self._listener.lost()

    def mend(self) -> None:
        """Have the connection again."""
        self.works = True
        if self._listener is not None:
            self._listener.restored()

    def send(self, channel: str, data: bytes, undelivered: Callable[[], None] | None = None) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        loop = asyncio.get_running_loop()
        takers = [bus for bus in self._exchange.buses if bus.works and channel in bus._channels] if self.works else []
        for bus in takers:
            loop.call_soon(bus._deliver, channel, data)
        if not takers and undelivered is not None:
            loop.call_soon(undelivered)

    def _deliver(self, channel: str, data: bytes) -> None:
        if self.works and self._listener is not None and channel in self._channels:
            self._listener.received(channel, data)

    def subscribe(self, channel: str) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        self._channels.add(channel)

    def unsubscribe(self, channel: str) -> None:
        """See :class:`~gateway.cluster.base.Bus`."""
        self._channels.discard(channel)
