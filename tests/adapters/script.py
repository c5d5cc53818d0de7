"""One conversation for every framework: what the model says, when it stops to wait, what its tool does.

A subject's model plays the script through its framework's own model interface, and writes down what it was asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from protocol.messages import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.engine.port import Engine


@dataclass(frozen=True)
class Say:
    """The model says something."""

    text: str


@dataclass(frozen=True)
class Think:
    """The model reasons aloud."""

    text: str


@dataclass(frozen=True)
class Call:
    """The model calls the tool ``look``, its arguments in two pieces."""

    call_id: str
    city: str

    @property
    def pieces(self) -> tuple[str, str]:
        return '{"city": "', f'{self.city}"}}'


@dataclass(frozen=True)
class Fail:
    """The provider answers 429, once the test has seen what came before."""


@dataclass(frozen=True)
class Hold:
    """Nothing more comes: a provider that has gone quiet."""


Item: TypeAlias = "Say | Think | Call | Fail | Hold"
Seen: TypeAlias = "tuple[str, str]"
"""A turn that a model was sent: (user | assistant | call | answer | system, text)."""


PATIENCE_S = 10.0
"""How long a test waits for what must come."""


class Held:
    """A place where the script waits for ever: ``entered``, and ``left`` once what waited there was cancelled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.left = asyncio.Event()

    async def reached(self) -> None:
        """Wait until the script is here."""
        async with asyncio.timeout(PATIENCE_S):
            await self.entered.wait()

    async def wait(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(20):  # cleaning up takes some turns of the loop: whoever does not wait for it is seen
                await asyncio.sleep(0)
            self.left.set()


@dataclass
class Script:
    """``steps``: one list of items per request to the model, in order, over all runs."""

    steps: list[list[Item]]
    requests: list[list[Seen]] = field(default_factory=list)
    model: Held = field(default_factory=Held)
    tool: Held = field(default_factory=Held)
    calls: list[str] = field(default_factory=list)
    may_fail: asyncio.Event = field(default_factory=asyncio.Event)
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=7, output_tokens=3))

    async def play(self, request: list[Seen]) -> AsyncIterator[Say | Think | Call | Fail]:
        """Answer a request."""
        step = self.steps[len(self.requests)]
        self.requests.append(request)
        for item in step:
            if isinstance(item, Hold):
                await self.model.wait()
            else:
                if isinstance(item, Fail):
                    await self.may_fail.wait()
                yield item

    async def look(self, city: str) -> str:
        """The tool: ``Bree`` never comes back, ``Mordor`` fails."""
        self.calls.append(city)
        if city == "Bree":
            await self.tool.wait()
        if city == "Mordor":
            raise LookupError("one does not simply look there")
        return f"{city}: clear"


class Subject(Protocol):
    """A framework under test."""

    def build(self, script: Script) -> Engine:
        """Make an engine whose model plays ``script`` and whose one tool is ``look``."""
        ...


def request_text(content: Any) -> str:
    """Give a message's text, whether it is a string or a list of blocks."""
    if isinstance(content, str):
        return content
    return "".join(block if isinstance(block, str) else str(block.get("text", "")) for block in content)
