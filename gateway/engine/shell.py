"""The shell tool: off unless switched on, and then it asks a person before each command."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from gateway.engine.process import run_process
from gateway.engine.tools import Policy, Tool, ToolContext, tool

if TYPE_CHECKING:
    from pathlib import Path

KEPT_BYTES = 64 * 1024
"""What is kept of each of a command's outputs."""
SHOWN_BYTES = 2048
SHOWN_EVERY_S = 0.25
ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER")
"""What a command gets of our environment: no provider's key, no token."""


def shell_tool(
    root: Path, *, policy: Policy = "ask", timeout_s: float = 60.0, approval_timeout_s: float | None = 600.0
) -> Tool:
    """Make a tool that runs commands in ``root``. A command can do whatever the gateway's user can."""

    @tool(name="shell", policy=policy, timeout_s=timeout_s, approval_timeout_s=approval_timeout_s)
    async def shell(context: ToolContext, command: str) -> dict[str, Any]:
        """Run a shell command in the working directory; gives its exit code and what it wrote."""
        result = await run_process(
            "/bin/sh",
            "-c",
            command,
            cwd=root,
            env={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            inherit_env=False,
            max_output_bytes=KEPT_BYTES,
            on_output=_Shown(context).take,
        )
        told: dict[str, Any] = {"exit_code": result.returncode, "stdout": result.stdout, "stderr": result.stderr}
        if result.truncated:
            told["truncated"] = True
        if result.survivors:
            told["still_running"] = list(result.survivors)
        return told

    return shell


class _Shown:
    """Shows the end of a command's output while it runs, a few times a second."""

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._tail = b""
        self._next = 0.0

    def take(self, data: bytes) -> None:
        self._tail = (self._tail + data[-SHOWN_BYTES:])[-SHOWN_BYTES:]
        now = asyncio.get_running_loop().time()
        if now >= self._next:
            self._next = now + SHOWN_EVERY_S
            self._context.progress({"output": self._tail.decode(errors="replace")})
