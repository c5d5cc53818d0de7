"""The client, sans I/O: cursors of many sessions, commands without answer, what to say after a reconnect.

``receive`` takes a frame and says what to do; nothing here waits or knows a socket.
"""

from __future__ import annotations

from collections import deque
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gateway.client.errors import TooManyCommands
from protocol.transcript import Transcript

if TYPE_CHECKING:
    from collections.abc import Iterator

    from protocol.commands import Role

Frame: TypeAlias = dict[str, Any]

MAX_COMMANDS = 1024
"""So many commands may wait for their answer."""

MAX_BUFFER = 4096
"""So many frames of a session wait for a slow reader; then they give way to one snapshot."""

HELLO = "hello"
"""Stands for the id of an attach that went out with the hello."""


@dataclass(frozen=True, slots=True)
class Send:
    """Send this frame on the connection it was about."""

    frame: Frame


@dataclass(frozen=True, slots=True)
class Answered:
    """The command ``id`` has its reply: an error where the frame is one."""

    id: str
    frame: Frame


@dataclass(frozen=True, slots=True)
class Updated:
    """The session has something for its reader."""

    session_id: str


@dataclass(frozen=True, slots=True)
class Welcomed:
    """The connection stands; the server is heard every ``heartbeat_s`` seconds."""

    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class Leave:
    """The server goes away: open another socket in ``retry_after_s`` seconds, then leave this one."""

    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Again:
    """An attach was refused for now: :meth:`ClientState.attach_again` after ``retry_after_s`` seconds and a backoff.

    ``attempt``: so many were refused one after the other, this one included.
    """

    session_id: str
    id: str
    attempt: int
    retry_after_s: float


Action: TypeAlias = Send | Answered | Updated | Welcomed | Leave | Again


@dataclass(slots=True)
class SessionState:
    """One session's cursor: by the client rule, ends with the server's transcript."""

    id: str
    role: Role = "owner"
    wanted: bool = False
    """Attach again after a reconnect."""
    attached: bool = False
    """Events count: an ``attached`` has come since the last attach."""
    waiting: str | None = None
    """The id of the attach whose ``attached`` is awaited."""
    planned: str | None = None
    """The id of the attach that is to be sent once its wait is over."""
    refused: int = 0
    """Attaches refused for now since the last one that was not."""
    ended: Frame | None = None
    """The ``detached`` or ``error`` that ended the subscription."""
    transcript: Transcript = field(default_factory=Transcript)
    buffer: deque[Frame] = field(default_factory=deque)

    def target(self) -> Frame:
        """Give the attach fields: where this cursor stands."""
        target: Frame = {"session_id": self.id, "role": self.role}
        if self.transcript.epoch is not None:
            target |= {"epoch": self.transcript.epoch, "seq": self.transcript.seq}
        return target

    def receive(self, frame: Frame) -> bool | None:
        """Take a session frame. True: there is something to read; None: there is a gap, attach again."""
        kind = frame["type"]
        if kind == "attached":
            if self.waiting not in (None, HELLO, frame.get("id")):
                return False  # of a cursor that is already replaced
            self.waiting = self.planned = None
            self.refused = 0
            self.wanted = self.attached = True
            self.ended = None
            self.transcript.apply(frame)
            return False
        if not self.attached:
            return False
        match self.transcript.apply(frame):
            case "gap":
                self.attached = False
                return None
            case "applied":
                self._keep(frame)
                return True
        return False

    def end(self, frame: Frame) -> None:
        """Note that the subscription is over."""
        self.wanted = self.attached = False
        self.waiting = self.planned = None
        self.refused = 0
        self.ended = frame

    def note(self, frame: Frame) -> None:
        """Keep a frame for the reader that the fold does not know (a session's error)."""
        self._keep(frame)

    def _keep(self, frame: Frame) -> None:
        if frame["type"] == "snapshot" or len(self.buffer) >= MAX_BUFFER:
            self.buffer.clear()
            dump = deepcopy(self.transcript.dump())  # the transcript goes on, the reader's copy does not
            del dump["open_step"], dump["usage"]
            frame = {"type": "snapshot", "session_id": self.id} | dump
        self.buffer.append(frame)


class ClientState:
    """All that a client must remember between two sockets."""

    def __init__(self, *, batch: bool = True, client: Any = None) -> None:
        self.sessions: dict[str, SessionState] = {}
        self.refusal: Frame | None = None
        """The error that came before the welcome."""
        self._batch = batch
        self._client = client
        self._pending: dict[str, Frame] = {}
        self._unsent: dict[str, None] = {}
        self._attaches = 0
        self._welcomed = False

    def session(self, session_id: str) -> SessionState:
        """Give the session's state, made where there is none."""
        if session_id not in self.sessions:
            self.sessions[session_id] = SessionState(session_id)
        return self.sessions[session_id]

    # -- what to send

    def hello(self, token: str | None) -> Frame:
        """Say hello, with the cursors of all sessions; everything unanswered is to be sent again after it."""
        wanted = [session for session in self.sessions.values() if session.wanted]
        for session in self.sessions.values():
            session.attached = False
            session.waiting = HELLO if session.wanted else None
            session.planned = None
        self.refusal = None
        self._welcomed = False
        self._unsent = dict.fromkeys(self._pending)
        frame: Frame = {"type": "hello", "batch": self._batch, "attach": [session.target() for session in wanted]}
        if self._client is not None:
            frame["client"] = self._client
        if token is not None:
            frame["token"] = token
        return frame

    def command(self, frame: Frame) -> None:
        """Remember a command (``id`` is in it) until it is answered. Raises :exc:`TooManyCommands`."""
        if len(self._pending) >= MAX_COMMANDS:
            raise TooManyCommands(f"{MAX_COMMANDS} commands wait for their answer")
        if frame["type"] == "attach":
            session = self.session(frame["session_id"])
            session.role = frame.get("role", "owner")
            session.waiting = frame["id"]
            session.planned = None
            session.attached = False
        if frame["type"] in ("prompt", "resume", "attach"):
            self.session(frame["session_id"]).ended = None
        self._pending[frame["id"]] = frame
        self._unsent[frame["id"]] = None

    def unsent(self) -> Iterator[Frame]:
        """Give what this connection has not sent yet, in order, each once."""
        while self._unsent:
            id_ = next(iter(self._unsent))
            del self._unsent[id_]
            frame = self._pending.get(id_)
            if frame is None:
                continue
            if frame["type"] == "attach":
                session = self.session(frame["session_id"])
                session.waiting, session.attached = id_, False
                frame = frame | session.target()
            yield frame

    def forget(self, id_: str) -> None:
        """Nobody waits for this answer any more."""
        self._pending.pop(id_, None)
        self._unsent.pop(id_, None)

    # -- what came

    def receive(self, frame: Frame, *, current: bool = True) -> list[Action]:
        """Take one frame. From a socket that is being left (not ``current``) only replies count."""
        kind, id_ = frame.get("type"), frame.get("id")
        out: list[Action] = []
        if id_ in self._pending:
            self.forget(id_)
            out.append(Answered(id_, frame))
        if not current:
            return out
        if kind == "welcome":
            self._welcomed = True
            out.append(Welcomed(float(frame["heartbeat_s"])))
        elif kind == "goaway":
            out.append(Leave(float(frame.get("retry_after_s", 0))))
        elif kind == "error":
            out += self._error(frame)
        elif kind == "detached":
            self.session(frame["session_id"]).end(frame)
            out.append(Updated(frame["session_id"]))
        elif "session_id" in frame and (kind in ("attached", "snapshot") or "seq" in frame):
            out += self._session_frame(frame)
        return out

    def _session_frame(self, frame: Frame) -> list[Action]:
        session = self.sessions.get(frame["session_id"])
        if session is None:
            return []
        news = session.receive(frame)
        if news is None:
            session.waiting = self._attach_id()
            return [Send({"type": "attach", "id": session.waiting, **session.target()})]
        return [Updated(session.id)] if news else []

    def _attach_id(self) -> str:
        self._attaches += 1
        return f"again-{self._attaches}"

    def attach_again(self, session_id: str, id_: str) -> Frame | None:
        """Give the attach whose wait is over; None where meanwhile something else has attached or ended the session."""
        session = self.session(session_id)
        if session.planned != id_:
            return None
        session.waiting, session.planned = id_, None
        return {"type": "attach", "id": id_, **session.target()}

    def _error(self, frame: Frame) -> list[Action]:
        session = self.sessions.get(frame.get("session_id", ""))
        if session is None:
            if not self._welcomed:
                self.refusal = frame
            return []
        # The attaches of a hello are answered without an id, as the hello has none.
        if session.waiting is not None and session.waiting == frame.get("id", HELLO):
            prompts = any(
                command["type"] == "prompt" and command.get("session_id") == session.id
                for command in self._pending.values()
            )
            session.waiting = None
            if session.wanted and frame.get("retryable"):  # a subscription that stood goes on
                session.refused += 1
                session.planned = self._attach_id()
                wait = float(frame.get("retry_after_s") or 0)
                return [Again(session.id, session.planned, session.refused, wait)]
            if not prompts:  # else the prompt makes the session and attaches
                session.end(frame)
            return [Updated(session.id)]
        if "id" not in frame:
            session.note(frame)
            return [Updated(session.id)]
        return []
