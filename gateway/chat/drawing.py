"""Messages as rich draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from rich.console import Console, Group
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from gateway.client import Session


class View:
    """One run as it stands: its messages, and a footer while it lives."""

    def __init__(self, session: Session, run_id: str) -> None:
        self.note = ""
        self.link = ""
        self.live = True
        self._session = session
        self._run_id = run_id

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        drawn = list(_messages(self._session, self._run_id))
        if self.live:
            drawn.append(Text(self.link + self.note or "…", style="dim"))
        lines = console.render_lines(Group(*drawn), options, pad=False)
        if self.live:
            lines = lines[-max(console.height - 2, 1) :]  # the end is what grows
        for line in lines:
            yield from line
            yield Segment.line()


def _messages(session: Session, run_id: str) -> Iterator[RenderableType]:
    for message in session.state.messages:
        if message.get("run_id") == run_id:
            yield draw_message(message)


def draw_message(message: dict[str, Any]) -> RenderableType:
    """Draw one message, a person's or an agent's."""
    if message["role"] == "user":
        said = "\n".join(part.get("text", f"[{part['type']}]") for part in message["parts"])
        return Text(f"› {said}", style="bold")
    drawn = [_part(part) for part in message["parts"]]
    error = message["error"]
    if error is not None and error["reason"] not in ("AbortError", "InterruptedError"):
        drawn.append(Text(f"{error['reason']}: {error['message']}", style="red"))
    return Group(*drawn)


def _part(part: dict[str, Any]) -> RenderableType:
    match part["type"]:
        case "text":
            return Markdown(part["text"])
        case "reasoning":
            return Text(part["text"], style="dim italic")
        case "tool":
            return _tool(part)
        case kind:
            return Text(f"[{part.get('name') or kind}]", style="dim")


def _tool(part: dict[str, Any]) -> Text:
    text = Text("⚙ ", style="cyan")
    text.append(part["tool"], style="bold")
    text.append(f"({short(part['input']) if 'input' in part else part.get('raw_input', '')}) ")
    match part["state"]:
        case "output-available":
            text.append(f"→ {short(part['output'])}", style="green")
        case "output-error":
            style = "yellow" if part["interrupted"] else "red"
            text.append(f"✗ {part['outcome']}: {part['error']}", style=style)
        case "running":
            progress = f" {short(part['progress'])}" if "progress" in part else ""
            text.append(f"running{progress}…", style="dim")
        case state:
            text.append(state.replace("-", " "), style="dim")
    return text


def short(value: Any, limit: int = 200) -> str:
    """Give a value on one line, cut where it is long."""
    text = value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"
