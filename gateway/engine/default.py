"""The agent of ``gateway serve`` without arguments: the offline model and three tools to try."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gateway.engine.agent import Agent
from gateway.engine.errors import ToolError
from gateway.engine.models.scripted import ScriptedModel
from gateway.engine.tools import Tool, ToolContext, tool

if TYPE_CHECKING:
    from gateway.engine.model import Model

SYSTEM_PROMPT = "You are the demonstration agent of a realtime gateway. Be brief, friendly and honest about it."


def count_tool(pace_s: float = 0.5) -> Tool:
    """Make the slow tool: it counts at ``pace_s`` seconds a number and shows how far it is."""

    @tool(name="count", reads=True)
    async def count(context: ToolContext, n: Annotated[int, Field(ge=1, le=1000)]) -> list[int]:
        """Count from 1 to n, slowly."""
        counted: list[int] = []
        for number in range(1, n + 1):
            await asyncio.sleep(pace_s)
            counted.append(number)
            context.progress({"done": number, "of": n})
        return counted

    return count


@tool(name="time", reads=True)
def time_tool() -> str:
    """Tell the server's local date and time."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def list_dir_tool(root: Path) -> Tool:
    """Make a tool that lists directories at or below ``root``, and nothing that a link or ``..`` leads out to."""
    root = root.resolve()

    @tool(name="list_dir", reads=True)
    def list_dir(path: str = ".") -> list[str]:
        """List the names in a directory below the working directory; directories end with a slash."""
        try:
            directory = (root / path).resolve()
        except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL in the name
            raise ToolError("There is no such directory") from None
        if not directory.is_relative_to(root):
            raise ToolError("Only directories below the working directory can be listed")
        if not directory.is_dir():
            raise ToolError("There is no such directory")
        return sorted(entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in os.scandir(directory))

    return list_dir


def default_agent(model: Model | None = None, *, abort_grace_s: float = 5.0) -> Agent:
    """Build the demonstration agent, on the offline model unless another is given.

    ``GATEWAY_SCRIPTED_PACE`` sets the offline model's pace in seconds per word.
    """
    return Agent(
        model if model is not None else ScriptedModel(),
        tools=[count_tool(), time_tool, list_dir_tool(Path.cwd())],
        system_prompt=SYSTEM_PROMPT,
        abort_grace_s=abort_grace_s,
    )
