"""The agent of ``gateway serve`` without arguments: the offline model and a few tools to try."""

from __future__ import annotations

import asyncio
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from gateway.engine.agent import Agent
from gateway.engine.files import list_dir_tool, read_file_tool
from gateway.engine.models.scripted import ScriptedModel
from gateway.engine.shell import shell_tool
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


def default_agent(
    model: Model | None = None, *, shell: bool = False, root: Path | None = None, abort_grace_s: float = 5.0
) -> Agent:
    """Build the demonstration agent, on the offline model unless another is given.

    It may list and read files below ``root`` (default: the working directory), and run commands there once a person
    allows each where ``shell`` is on. ``GATEWAY_SCRIPTED_PACE`` sets the offline model's pace in seconds per word.
    """
    root = root if root is not None else Path.cwd()
    return Agent(
        model if model is not None else ScriptedModel(),
        tools=[count_tool(), time_tool, list_dir_tool(root), read_file_tool(root), *[shell_tool(root)] * shell],
        system_prompt=SYSTEM_PROMPT,
        abort_grace_s=abort_grace_s,
    )
