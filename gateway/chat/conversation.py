"""The conversation: prompts, answers, Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from gateway.chat.drawing import View, draw_message, short
from gateway.chat.terminal import Input, Stdin, quiet
from gateway.client import CommandError, GatewayError, connect

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from gateway.client import Gateway, Session

HELP = """/resume   continue an answer that was stopped
/new      start another session
/history  show what was said
/quit     leave (so does Ctrl-C at the prompt)
Ctrl-C    stop the answer; once more to leave without waiting"""

REFRESH_S = 0.08
"""How often a growing answer is drawn, in seconds."""


class _Chat:
    def __init__(self, gateway: Gateway, session: Session, console: Console, read: Input) -> None:
        self._gateway = gateway
        self._session = session
        self._console = console
        self._read = read
        self._view: View | None = None
        self._dirty = asyncio.Event()
        self._interrupts = 0
        self._prompting: asyncio.Task[str | None] | None = None
        self._working: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None
        self._asking: tuple[str, asyncio.Task[None]] | None = None

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
                self._console.print(draw_message(message))
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
        view = self._view = View(self._session, run_id)
        try:
            with quiet(), Live(view, console=self._console, auto_refresh=False, redirect_stdout=False) as live:
                try:
                    status = await self._follow(run_id, view, live)
                finally:
                    view.live = False
        finally:
            self._view = None
            if not self._console.is_terminal:
                self._console.print()  # what is drawn into a pipe ends without a line's end
        if status == "aborted":
            self.say("stopped")
        elif status == "lost":
            self.say("the server stopped during this answer; /resume continues it", "yellow")
        elif status == "failed":
            self.say("failed; /resume tries to continue", "red")

    async def _follow(self, run_id: str, view: View, live: Live) -> str:
        status = ""
        try:
            async with asyncio.TaskGroup() as self._group, aclosing(self._session.events(until=run_id)) as events:
                drawing = self._group.create_task(self._draw(live))
                self._question(self._group, view)
                async for event in events:
                    self._dirty.set()
                    self._question(self._group, view)
                    match event["type"]:
                        case "abort-requested" if event["run_id"] == run_id:
                            view.note = "stopping…"
                        case "run-finish" if event["run_id"] == run_id:
                            status = event["status"]
                        case "error":
                            view.note = event["message"]
                drawing.cancel()
                if self._asking is not None:
                    self._asking[1].cancel()
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            self._group = self._asking = None
        return status

    def _question(self, group: asyncio.TaskGroup, view: View) -> None:
        """Ask for the oldest open approval, one at a time; take a question back that somebody else has answered."""
        pending = self._session.state.pending
        if self._asking is not None and (not pending or pending[0]["request_id"] != self._asking[0]):
            self._asking[1].cancel()
            self._asking, view.note = None, ""
        if self._asking is None and pending:
            self._asking = pending[0]["request_id"], group.create_task(self._approve(pending[0]))

    async def _draw(self, live: Live) -> None:
        while True:
            live.refresh()
            await asyncio.sleep(REFRESH_S)
            await self._dirty.wait()
            self._dirty.clear()

    async def _approve(self, request: dict[str, Any]) -> None:
        question = f"allow {request['tool']}({short(request['input'])})? y/n"
        line: str | None = ""
        while line is not None and line.strip().lower() not in ("y", "yes", "n", "no"):
            self._note(question)
            if not self._console.is_terminal:
                self.say(question)  # where no note is drawn
            line = await self._read()
        self._note("")
        allowed = line is not None and line.strip().lower().startswith("y")
        reason = "nobody was there to ask" if line is None else None
        with suppress(CommandError):  # somebody else was faster
            await self._session.respond(request["request_id"], "allow" if allowed else "deny", reason)

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
                self._console.print(draw_message(message))
        if not state.messages:
            self.say("nothing was said yet")
        for message in state.messages:
            self._console.print(draw_message(message))

    def _note(self, text: str) -> None:
        if self._view is not None:
            self._view.note = text
            self._dirty.set()


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
