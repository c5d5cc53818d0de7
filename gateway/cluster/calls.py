"""Messages between nodes, and questions with an answer, over the bus.

A message is one line of JSON, then whatever bytes it is about. A question is asked once; whoever asks decides whether
it may be asked again.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

    from gateway.cluster.base import Bus

Header = dict[str, Any]

PREFIX = "agent-gateway"
ALL = f"{PREFIX}:all"
"""Where every node listens."""


def node_channel(node_id: str) -> str:
    """Give the channel on which one node listens."""
    return f"{PREFIX}:node:{node_id}"


def watch_channel(principal: str) -> str:
    """Give the channel of a principal's session list."""
    return f"{PREFIX}:watch:{principal}"


def pack(header: Header, body: bytes = b"") -> bytes:
    """Encode a message."""
    return orjson.dumps(header) + b"\n" + body


def unpack(data: bytes) -> tuple[Header, bytes]:
    """Decode a message. Raises ValueError."""
    line, _, body = data.partition(b"\n")
    return orjson.loads(line), body


class Unreached(Exception):
    """A question was certainly not heard (``certain``), or nobody knows whether it was."""

    def __init__(self, message: str, *, certain: bool) -> None:
        super().__init__(message)
        self.certain = certain


class _Asked:
    __slots__ = ("arrived", "future", "node")

    def __init__(self, node: str, arrived: Callable[[Header], None] | None) -> None:
        self.node = node
        self.arrived = arrived
        self.future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()


class Calls:
    """The questions that this node has asked, and the answers it gives."""

    def __init__(self, bus: Bus, node_id: str) -> None:
        self._bus = bus
        self._node_id = node_id
        self._asked: dict[str, _Asked] = {}

    async def ask(
        self,
        node: str,
        op: str,
        header: Header,
        body: bytes = b"",
        *,
        timeout: float,
        arrived: Callable[[Header], None] | None = None,
    ) -> Header:
        """Ask a node and give its answer. ``arrived`` has it first, before any later message of that node is looked at.

        Raises :exc:`Unreached`.
        """
        id_ = secrets.token_hex(8)
        asked = self._asked[id_] = _Asked(node, arrived)
        message = pack({"t": "ask", "id": id_, "from": self._node_id, "op": op, **header}, body)
        self._bus.send(node_channel(node), message, lambda: self._unheard(id_))
        try:
            async with asyncio.timeout(timeout):
                return await asked.future
        except TimeoutError:
            raise Unreached(f"node {node} does not answer", certain=False) from None
        finally:
            del self._asked[id_]

    def answer(self, node: str, id_: str, header: Header) -> None:
        """Answer a question."""
        self._bus.send(node_channel(node), pack({"t": "answer", "id": id_, **header}))

    def answered(self, header: Header) -> None:
        """An answer has come."""
        asked = self._asked.get(header["id"])
        if asked is None or asked.future.done():
            return
        if asked.arrived is not None:
            asked.arrived(header)
        asked.future.set_result(header)

    def dead(self, alive: frozenset[str]) -> None:
        """Give up on what was asked of nodes that are not alive."""
        for asked in list(self._asked.values()):
            if asked.node not in alive and not asked.future.done():
                asked.future.set_exception(Unreached(f"node {asked.node} is gone", certain=False))

    def _unheard(self, id_: str) -> None:
        asked = self._asked.get(id_)
        if asked is not None and not asked.future.done():
            asked.future.set_exception(Unreached(f"node {asked.node} does not listen", certain=True))
