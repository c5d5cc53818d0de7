"""One session as a program holds it: prompt, abort, resume, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.client.errors import Closed
from protocol.errors import CommandError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Sequence

    from gateway.client.connection import Gateway
    from gateway.client.state import Frame, SessionState
    from protocol.commands import OnBusy, OnDisconnect, OnLost, Role
    from protocol.transcript import Transcript


class Session:
    """A session of a :class:`~gateway.client.Gateway`; made by ``gateway.session(id)``.

    Every method that sends a command raises :exc:`~protocol.errors.CommandError` where the server refuses it and
    :exc:`~gateway.client.Closed` where the connection is over for good. While the connection is down they wait: the
    command goes out, once, when it is back.
    """

    def __init__(self, gateway: Gateway, state: SessionState, news: asyncio.Event) -> None:
        self._gateway = gateway
        self._state = state
        self._news = news
        self._reading = False

    @property
    def id(self) -> str:
        """The session's id."""
        return self._state.id

    @property
    def state(self) -> Transcript:
        """The transcript as of now: messages, status, pending approvals, queue."""
        return self._state.transcript

    async def prompt(
        self,
        text: str | None = None,
        *,
        messages: Sequence[Frame] | None = None,
        on_busy: OnBusy = "reject",
        on_disconnect: OnDisconnect = "abort",
        on_lost: OnLost = "seal",
        grace_s: float | None = None,
        deadline_s: float | None = None,
        replaces: str | None = None,
        metadata: dict[str, Any] | None = None,
        id: str | None = None,
    ) -> Frame:
        """Start a run (or queue it) and give the ``ack``: ``run_id``, ``queued`` where it waits, ``duplicate``.

        ``id`` makes it exactly once over the life of the program too; without one a fresh one is taken.
        """
        return await self._gateway.command(
            "prompt",
            id=id,
            session_id=self.id,
            text=text,
            messages=None if messages is None else list(messages),
            on_busy=on_busy,
            on_disconnect=on_disconnect,
            on_lost=on_lost,
            grace_s=grace_s,
            deadline_s=deadline_s,
            replaces=replaces,
            metadata=metadata,
        )

    async def resume(
        self,
        *,
        on_disconnect: OnDisconnect = "abort",
        grace_s: float | None = None,
        deadline_s: float | None = None,
        id: str | None = None,
    ) -> Frame:
        """Continue the last turn, where it did not complete; gives the ``ack`` with ``run_id``."""
        return await self._gateway.command(
            "resume",
            id=id,
            session_id=self.id,
            on_disconnect=on_disconnect,
            grace_s=grace_s,
            deadline_s=deadline_s,
        )

    async def abort(
        self, *, run_id: str | None = None, command_id: str | None = None, reason: str | None = None
    ) -> list[Frame]:
        """Ask the live run (or the one named) to stop; gives ``{session_id, run_id, state}`` of each run it met.

        This is phase one; the run has ended when its ``run-finish`` comes.
        """
        ack = await self._gateway.command(
            "abort", session_id=self.id, run_id=run_id, command_id=command_id, reason=reason
        )
        runs: list[Frame] = ack.get("runs", [])
        return runs

    async def attach(self, role: Role = "owner") -> Frame:
        """Subscribe to a session that exists, or change the role; gives the ``attached`` frame.

        A prompt attaches by itself.
        """
        return await self._gateway.command("attach", session_id=self.id, role=role)

    async def detach(self, *, abort: bool = False) -> None:
        """Stop the events; with ``abort`` the run too."""
        try:
            await self._gateway.command("detach", session_id=self.id, run="abort" if abort else "continue")
        except CommandError as exc:
            if exc.code == "not_attached":  # an attach that waits for its time is not wanted any more, either
                self._ended_by_client()
            raise
        self._ended_by_client()

    def _ended_by_client(self) -> None:
        self._state.end({"type": "detached", "session_id": self.id, "reason": "client"})
        self._news.set()

    async def respond(self, request_id: str, decision: str, value: Any = None) -> None:
        """Answer an ``approval-request`` with ``allow`` or ``deny``."""
        await self._gateway.command(
            "respond", session_id=self.id, request_id=request_id, decision=decision, value=value
        )

    async def history(self, before: str | None = None, limit: int = 50) -> Frame:
        """Give ``messages`` (oldest first) older than ``before``, and ``has_more``.

        Without ``before``: older than the oldest that ``state`` holds.
        """
        if before is None and self.state.messages:
            before = self.state.messages[0]["id"]
        return await self._gateway.command("history", session_id=self.id, before=before, limit=limit)

    async def events(self, *, until: str | None = None) -> AsyncGenerator[Frame, None]:
        """Yield the session's frames, each once and in order: events, and ``snapshot`` where events are missing.

        A reader who falls 4096 frames behind gets one ``snapshot`` instead of them. Ends after the ``run-finish`` of
        the run ``until``, or when the subscription ends (``detached``); raises CommandError where attaching failed and
        Closed where the connection is over for good. A subscription that cannot be taken up again for now (its error is
        ``retryable``) is tried again, with backoff and not before ``retry_after_s``. One reader at a time. An ``error``
        frame without an answer to it (``store_unavailable``) is yielded too.
        """
        if self._reading:
            raise RuntimeError("this session already has a reader")
        self._reading = True
        buffer = self._state.buffer
        try:
            while True:
                while buffer:
                    frame = buffer.popleft()
                    yield frame
                    if until is not None and _ends(frame, until):
                        return
                if (end := self._state.ended) is not None:
                    if end["type"] == "error":
                        raise CommandError(end["code"], end["message"])
                    return
                if (closed := self._gateway.closed) is not None:
                    if closed.code == 1000:
                        return
                    raise Closed(closed.code, closed.reason)
                self._news.clear()
                await self._news.wait()
        finally:
            self._reading = False


def _ends(frame: Frame, run_id: str) -> bool:
    """Say whether the run is over with this frame; a snapshot may have swallowed its ``run-finish``."""
    if frame["type"] == "snapshot":
        seen = any(message.get("run_id") == run_id for message in frame["messages"])
        return seen and frame["run_id"] != run_id
    return bool(frame["type"] == "run-finish" and frame["run_id"] == run_id)
