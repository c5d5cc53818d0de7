"""``gateway chat``: a conversation in the terminal.

Everything on the screen is drawn from the session's transcript, so that a reconnect needs no code of its own here.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol

import orjson
from rich.console import Console, Group
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

from gateway.client import CommandError, GatewayError, connect

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from rich.console import ConsoleOptions, RenderableType, RenderResult

    from gateway.client import Gateway, Session

HELP = """/resume   continue an answer that was stopped
/new      start another session
/history  show what was said
/quit     leave (so does Ctrl-C at the prompt)
Ctrl-C    stop the answer; once more to leave without waiting"""

REFRESH_S = 0.08


class Input(Protocol):
    """Where lines come from."""

    async def __call__(self) -> str | None:
        """Give the next line, without its end; None at the end of the input."""


class Stdin:
    """Lines of standard input, read by the event loop: no thread is left blocking when the program ends.

    ``unseen`` is told of each line that was typed before anybody asked, while the terminal did not echo.
    """

    def __init__(self, fd: int | None = None, unseen: Callable[[str], None] | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._unseen = unseen if os.isatty(self._fd) else None
        self._held = b""
        self._ended = False

    async def __call__(self) -> str | None:
        """Give the next line."""
        ahead = self._unseen is not None and bool(self._held or select.select([self._fd], [], [], 0)[0])
        while b"\n" not in self._held and not self._ended:
            await self._readable()
            data = os.read(self._fd, 65536)
            self._held += data
            self._ended = not data
        line, end, self._held = self._held.partition(b"\n")
        if not line and not end:
            return None
        text = line.decode("utf-8", "replace").rstrip("\r")
        if ahead and self._unseen is not None:
            self._unseen(text)
        return text

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:
            return  # a plain file: always readable
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)


@contextmanager
def _quiet() -> Iterator[None]:
    """Do not echo what is typed while an answer is drawn: it would tear the picture."""
    try:
        fd = sys.stdin.fileno()
    except (OSError, ValueError):
        fd = -1
    if termios is None or fd < 0 or not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class _View:
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


class _Chat:
    def __init__(self, gateway: Gateway, session: Session, console: Console, read: Input) -> None:
        self._gateway = gateway
        self._session = session
        self._console = console
        self._read = read
        self._view: _View | None = None
        self._dirty = asyncio.Event()
        self._interrupts = 0
        self._prompting: asyncio.Task[str | None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> int:
        """Converse until the person leaves; gives the exit code."""
        while True:
            line = await self._ask()
            if line is None:
                if self._gateway.closed is not None:
                    raise self._gateway.closed
                return 0
            match line.split():
                case []:
                    continue
                case ["/quit"]:
                    return 0
                case ["/help"]:
                    self._console.print(HELP, style="dim", highlight=False)
                case ["/new"]:
                    self._session = self._gateway.session()
                    self.say(f"new session {self._session.id}")
                case ["/history"]:
                    if not await self.interruptible(self._history()):
                        return 130
                case ["/resume"]:
                    if not await self.interruptible(self._run(resume=True)):
                        return 130
                case [word, *_] if word.startswith("/"):
                    self.say(f"{word}: no such command; /help names them all")
                case _:
                    if not await self.interruptible(self._run(text=line)):
                        return 130

    def say(self, text: str, style: str = "dim") -> None:
        """Say something that is not the agent's."""
        self._console.print(Text(text, style=style))

    def interrupt(self) -> None:
        """Take a Ctrl-C: stop the run, then leave; at the prompt, leave."""
        self._interrupts += 1
        if self._prompting is not None:
            self._prompting.cancel()
        elif self._group is not None and self._interrupts == 1:
            self._note("stopping…")
            self._group.create_task(self._abort())
        elif self._working is not None:
            self._working.cancel()

    def status(self, status: str) -> None:
        """Take a change of the connection."""
        if self._view is not None:
            self._view.link = "connection lost, reconnecting… " if status == "reconnecting" else ""
            self._dirty.set()
        elif status == "closed" and self._prompting is not None:
            self._prompting.cancel()
        elif status == "reconnecting":
            self.say("connection lost, reconnecting…")
        elif status == "open":
            self.say("connected")

    async def enter(self) -> None:
        """Show a session that exists, and its run where one is under way."""
        try:
            await self._session.attach()
        except CommandError as exc:
            if exc.code != "session_not_found":
                raise
            self.say("no such session yet: the first prompt makes it")
            return
        async with aclosing(self._session.events()) as events:
            async for frame in events:
                if frame["type"] == "snapshot":
                    break
        state = self._session.state
        run_id = state.run_id
        for message in state.messages:
            if run_id is None or message.get("run_id") != run_id:
                self._console.print(_message(message))
        if run_id is not None:
            await self._show(run_id)
        elif state.resumable:
            self.say("the last answer was stopped; /resume continues it")

    async def interruptible(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do ``work``; False if the person would not wait for its end."""
        self._interrupts = 0
        self._working = asyncio.create_task(work)
        try:
            await asyncio.wait([self._working])
            if self._working.cancelled():
                return False
            self._working.result()
            return True
        finally:
            self._working.cancel()
            await asyncio.wait([self._working])
            self._working = None

    # -- inside

    async def _ask(self) -> str | None:
        self._console.print(Text("› ", style="bold"), end="")
        self._prompting = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait([self._prompting])
            if self._prompting.cancelled():
                self._console.print()
                return None
            return self._prompting.result()
        finally:
            self._prompting.cancel()
            await asyncio.wait([self._prompting])
            self._prompting = None

    async def _run(self, *, text: str | None = None, resume: bool = False) -> None:
        try:
            ack = await (self._session.resume() if resume else self._session.prompt(text))
            await self._show(ack["run_id"])
        except CommandError as exc:
            self.say(f"{exc.code}: {exc.message}", "red")

    async def _show(self, run_id: str) -> None:
        view = self._view = _View(self._session, run_id)
        try:
            with _quiet(), Live(view, console=self._console, auto_refresh=False, redirect_stdout=False) as live:
                try:
                    status = await self._follow(run_id, view, live)
                finally:
                    view.live = False
        finally:
            self._view = None
        if status == "aborted":
            self.say("stopped")
        elif status == "lost":
            self.say("the server stopped during this answer; /resume continues it", "yellow")
        elif status == "failed":
            self.say("failed; /resume tries to continue", "red")

    async def _follow(self, run_id: str, view: _View, live: Live) -> str:
        approving: asyncio.Task[None] | None = None
        status = ""
        try:
            async with asyncio.TaskGroup() as self._group, aclosing(self._session.events(until=run_id)) as events:
                drawing = self._group.create_task(self._draw(live))
                for request in self._session.state.pending:
                    approving = self._group.create_task(self._approve(request))
                async for event in events:
                    self._dirty.set()
                    match event["type"]:
                        case "approval-request":
                            approving = self._group.create_task(self._approve(event))
                        case "approval-resolved" if approving is not None:
                            approving.cancel()
                            view.note = ""
                        case "abort-requested" if event["run_id"] == run_id:
                            view.note = "stopping…"
                        case "run-finish" if event["run_id"] == run_id:
                            status = event["status"]
                        case "error":
                            view.note = event["message"]
                drawing.cancel()
                if approving is not None:
                    approving.cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._group = None
        return status

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(REFRESH_S)
            await self._dirty.wait()
            self._dirty.clear()

    async def _approve(self, request: dict[str, Any]) -> None:
        question = f"allow {request['tool']}({_short(request['input'])})? y/n"
        self._note(question)
        while (line := await self._read()) is not None:
            if line.strip().lower() in ("y", "yes", "n", "no"):
                decision = "allow" if line.strip().lower().startswith("y") else "deny"
                self._note("")
                with suppress(CommandError):  # somebody else was faster
                    await self._session.respond(request["request_id"], decision)
                return
            self._note(question)

    async def _abort(self) -> None:
        try:
            await self._session.abort()
        except CommandError as exc:
            self._note(f"{exc.code}: {exc.message}")

    async def _history(self) -> None:
        state = self._session.state
        if state.has_more:
            page = await self._session.history()
            for message in page["messages"]:
                self._console.print(_message(message))
        if not state.messages:
            self.say("nothing was said yet")
        for message in state.messages:
            self._console.print(_message(message))

    def _note(self, text: str) -> None:
        if self._view is not None:
            self._view.note = text
            self._dirty.set()


def _messages(session: Session, run_id: str) -> Iterator[RenderableType]:
    for message in session.state.messages:
        if message.get("run_id") == run_id:
            yield _message(message)


def _message(message: dict[str, Any]) -> RenderableType:
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
    text.append(f"({_short(part['input']) if 'input' in part else part.get('raw_input', '')}) ")
    match part["state"]:
        case "output-available":
            text.append(f"→ {_short(part['output'])}", style="green")
        case "output-error":
            style = "yellow" if part["interrupted"] else "red"
            text.append(f"✗ {part['outcome']}: {part['error']}", style=style)
        case "running":
            progress = f" {_short(part['progress'])}" if "progress" in part else ""
            text.append(f"running{progress}…", style="dim")
        case state:
            text.append(state.replace("-", " "), style="dim")
    return text


def _short(value: Any, limit: int = 200) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value, default=repr).decode()
    return text if len(text) <= limit else text[: limit - 1] + "…"


async def chat(
    url: str,
    session_id: str | None = None,
    token: str | None = None,
    *,
    read: Input | None = None,
    console: Console | None = None,
) -> int:
    """Converse with the gateway at ``url`` (``ws://host:port/ws``) until the person leaves.

    ``session_id`` continues a session (a run that is under way is shown and can be stopped); ``read`` and ``console``
    stand in for standard input and output. Gives the exit code: 0, 1 where there is no gateway or no getting in, 130
    when the person left in the middle of an answer.
    """
    console = console or Console(highlight=False)
    talk: list[_Chat] = []
    loop = asyncio.get_running_loop()

    def interrupted() -> None:
        for each in talk:
            each.interrupt()

    def changed(status: str) -> None:
        for each in talk:
            each.status(status)

    try:
        async with connect(url, token, client={"name": "gateway chat"}, on_status=changed) as gateway:
            session = gateway.session(session_id)
            mine = _Chat(gateway, session, console, read or Stdin(unseen=console.out))
            mine.say(f"session {session.id}; /help for help")
            talk.append(mine)
            loop.add_signal_handler(signal.SIGINT, interrupted)
            try:
                if session_id is not None and not await mine.interruptible(mine.enter()):
                    return 130
                return await mine.run()
            finally:
                talk.clear()
                loop.remove_signal_handler(signal.SIGINT)
    except GatewayError as exc:
        console.print(Text(str(exc), style="red"))
    return 1
