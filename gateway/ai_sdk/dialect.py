"""One connection of an AI SDK page, translated, sans I/O: its frames become commands, our frames become its answers.

It keeps no transcript. A request has a :class:`~gateway.ai_sdk.chunks.Teller`; a session is attached while one of its
requests is open, so a page that stays costs nothing between two answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gateway.ai_sdk import requests as r
from gateway.ai_sdk.chunks import Teller
from gateway.ai_sdk.pages import prompt_message, replaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from gateway.ai_sdk.chunks import Chunk

    Frame = Mapping[str, Any]
    Command = dict[str, Any]

MAX_REQUESTS = 64
"""Answers under way on one connection: each costs what it is told."""

HELLO = "hello"
SAID = "said"
"""What the dialect itself answers, on its way through the outbox."""

OPTIONS = frozenset({"on_busy", "on_disconnect", "grace_s", "deadline_s", "on_lost"})
"""What of a page's ``body`` is for the prompt itself; the rest is its metadata."""


@dataclass(slots=True)
class _Open:
    """A request that is not answered to its end."""

    request: r.Send | r.Resume
    command_id: str
    teller: Teller | None = None
    sequence: int = 0
    prompted: bool = False
    aborted: bool = False

    @property
    def id(self) -> str:
        return self.request.requestId

    @property
    def session_id(self) -> str:
        return self.request.id

    @property
    def answers(self) -> bool:
        """It brings decisions on approvals."""
        return isinstance(self.request, r.Send) and self.request.messages[-1].role == "assistant"


@dataclass(slots=True)
class _Held:
    """A session with open requests: how far it was told, and what was asked of it."""

    seq: int = 0
    attached: bool = False
    requests: list[_Open] = field(default_factory=list)


class Dialect:
    """Translates both ways. What ``hear`` and ``told`` want done is in ``commands``, for the owner to carry out.

    ``token`` is that of the handshake, for a page whose frames bring none.
    """

    def __init__(self, *, max_frame_bytes: int, token: str | None = None) -> None:
        self.commands: list[Command] = []
        self._max_frame_bytes = max_frame_bytes
        self._handshake_token = token
        self._token: str | None = None
        self._greeted = False
        self._asking: r.Send | r.Resume | None = None  # its new token is being looked at
        self._waiting: list[r.Send | r.Resume] = []  # behind that one
        self._open: dict[str, _Open] = {}
        self._held: dict[str, _Held] = {}

    # -- from the page

    def hear(self, text: str) -> Iterator[dict[str, Any]]:
        """Take a frame of the page; gives what it is answered at once. Raises :exc:`~.requests.BadRequest`."""
        request = r.parse(text, self._max_frame_bytes)
        if isinstance(request, r.Send) and request.messages[-1].role == "system":
            raise r.BadRequest("messages: the last one has another role than user or assistant", request.requestId)
        if isinstance(request, r.Abort):
            yield from self._abort(request.requestId)
            return
        if isinstance(request, r.Resume) and request.lastSequence is not None:
            raise r.BadRequest("lastSequence: an answer is told from its beginning", request.requestId)
        known = request.requestId in self._open or any(request.requestId == other.requestId for other in self._queue)
        if known:
            raise r.BadRequest("requestId: it is in use", request.requestId)
        if len(self._open) + len(self._queue) >= MAX_REQUESTS:
            raise r.BadRequest(f"a connection has at most {MAX_REQUESTS} requests open", request.requestId)
        if self._asking is not None:
            self._waiting.append(request)
            return
        self._admit(request)

    @property
    def _queue(self) -> list[r.Send | r.Resume]:
        return self._waiting if self._asking is None else [self._asking, *self._waiting]

    def _admit(self, request: r.Send | r.Resume) -> None:
        """Act for a request; one that brings another token waits until that is known to be the same principal's."""
        token = request.token or self._handshake_token
        if not self._greeted:
            self._greeted, self._token = True, token
            self._hello(token)
        elif token is not None and token != self._token:
            self._asking = request
            self._hello(token)
            return
        self._begin(request)

    def _hello(self, token: str | None) -> None:
        command: Command = {"type": "hello", "id": HELLO, "batch": True, "client": "ai-sdk"}
        self.commands.append(command if token is None else {**command, "token": token})

    def _begin(self, request: r.Send | r.Resume) -> None:
        item = _Open(request, _command_id(request))
        self._open[item.id] = item
        held = self._held.setdefault(item.session_id, _Held())
        held.requests.append(item)
        if isinstance(request, r.Send) and not item.answers and not _again(request):
            self._prompt(item, None)
        else:
            self._attach(item)

    def _attach(self, item: _Open) -> None:
        """Ask for a snapshot: what is there decides what the request means."""
        self.commands.append({"type": "attach", "id": f"attach:{item.id}", "session_id": item.session_id})

    def _prompt(self, item: _Open, replaces: str | None) -> None:
        request = item.request
        assert isinstance(request, r.Send)
        options = {name: value for name, value in request.body.items() if name in OPTIONS}
        metadata = {name: value for name, value in request.body.items() if name not in OPTIONS}
        command = {
            "type": "prompt",
            "id": item.command_id,
            "session_id": item.session_id,
            "messages": [prompt_message(request.messages[-1])],
            "on_busy": "queue",
            **options,
        }
        if metadata:
            command["metadata"] = metadata
        if replaces is not None:
            command["replaces"] = replaces
        item.prompted = True
        self.commands.append(command)

    def _abort(self, request_id: str) -> Iterator[dict[str, Any]]:
        """Stop what a request of this connection is about; any other id is nobody's, and nothing happens."""
        for request in self._queue:
            if request.requestId == request_id:
                if request is not self._asking:
                    self._waiting.remove(request)
                    yield r.end(request_id)
                return
        item = self._open.get(request_id)
        if item is None or item.aborted:
            return
        if item.prompted:
            item.aborted = True
            self.commands.append({"type": "abort", "session_id": item.session_id, "command_id": item.command_id})
            return
        if item.teller is None:
            # It has told nothing yet (a page that mounts twice drops its first resume): no wish to stop a run.
            item.aborted = not isinstance(item.request, r.Resume)
            if not item.aborted:
                self._close(item)
                yield r.no_active(request_id)
            return
        item.aborted = True
        newer = self._held[item.session_id].requests
        if isinstance(item.request, r.Resume) and any(other.teller is None for other in newer):
            self._close(item)  # replaced by another one of the same page
            yield r.end(request_id)
            return
        run_id = item.teller.run_id
        self.commands.append({"type": "abort", "session_id": item.session_id, "run_id": run_id})

    # -- from the server

    def told(self, frames: Iterable[Frame]) -> Iterator[dict[str, Any]]:
        """Translate the frames of one message."""
        touched: dict[str, None] = {}
        for frame in frames:
            kind = frame["type"]
            if kind == "error":
                yield from self._error(frame)
            elif kind == "ack":
                self._ack(frame)
            elif kind == SAID:
                yield frame["frame"]
            elif kind == "pong":
                yield r.KEEP_ALIVE
            elif kind == "detached":
                yield from self._detached(frame)
            elif (session_id := frame.get("session_id")) in self._held and kind != "session-changed":
                touched[session_id] = None
                yield from self._session_frame(self._held[session_id], frame)
        for session_id in touched:
            for item in self._requests(session_id):
                if item.teller is not None:
                    yield from self._chunks(item, item.teller.pause())

    def _requests(self, session_id: str) -> list[_Open]:
        held = self._held.get(session_id)
        return list(held.requests) if held is not None else []

    def _session_frame(self, held: _Held, frame: Frame) -> Iterator[dict[str, Any]]:
        kind = frame["type"]
        if kind == "attached":
            held.attached = True
            if frame["recovery"] == "live":
                held.seq = frame["seq"]
            return
        if not held.attached:
            return  # left over from before the last detach
        if kind == "snapshot":
            held.seq = frame["seq"]
            for item in list(held.requests):
                yield from self._snapshot(item, frame)
        elif frame["seq"] > held.seq:
            held.seq = frame["seq"]
            for item in list(held.requests):
                if item.teller is not None:
                    yield from self._chunks(item, item.teller.event(frame))

    def _snapshot(self, item: _Open, frame: Frame) -> Iterator[dict[str, Any]]:
        if item.teller is None and not item.prompted:
            yield from self._decide(item, frame)
        if item.teller is not None:
            yield from self._chunks(item, item.teller.snapshot(frame))

    def _decide(self, item: _Open, frame: Frame) -> Iterator[dict[str, Any]]:
        """The session is there as it is now: resume its run, answer what it asks, or take a message's place in it."""
        request = item.request
        if item.aborted:
            yield from self._chunks(item, iter([{"type": "abort", "reason": "Aborted"}]))
            yield from self._finished(item)
        elif isinstance(request, r.Resume):
            waiting = frame["queue"][0]["run_id"] if frame["queue"] else None
            run_id = frame["run_id"] or waiting
            if run_id is None:
                self._close(item)
                yield r.no_active(item.id)
                return
            item.teller = Teller(run_id)
            yield r.start(item.id)
        elif item.answers:
            yield from self._answer(item, frame)
        else:
            regenerate = request.trigger == "regenerate-message"
            self._prompt(item, replaced(frame, request.messages, regenerate=regenerate))

    def _answer(self, item: _Open, frame: Frame) -> Iterator[dict[str, Any]]:
        """The page sends its last answer back with the decisions on it: pass those on, and go on telling."""
        assert isinstance(item.request, r.Send)
        last = item.request.messages[-1]
        run_id = next((m["run_id"] for m in frame["messages"] if m["id"] == last.id and "run_id" in m), None)
        decided = [part for part in last.parts if part.get("state") == "approval-responded"]
        if run_id is None or not decided:
            problem = "tools run on the server: the page can only decide on approvals" if run_id else "no such message"
            yield from self._fail(item, problem)
            return
        pending = [entry["request_id"] for entry in frame["pending"]]  # a list: what a page sends may not be hashable
        for part in decided:
            approval = part.get("approval")
            if not isinstance(approval, dict) or approval.get("id") not in pending:
                continue  # somebody else was first
            allowed = approval.get("approved") is True
            decision = {"request_id": approval["id"], "decision": "allow" if allowed else "deny"}
            if isinstance(approval.get("reason"), str):
                decision["value"] = {"reason": approval["reason"]} if allowed else approval["reason"]
            self.commands.append(
                {
                    "type": "respond",
                    "id": _key(item.session_id, item.id, approval["id"]),
                    "session_id": item.session_id,
                    **decision,
                }
            )
        item.teller = Teller(run_id, held=last.parts)

    def _ack(self, frame: Frame) -> None:
        if frame["command"] == "hello":
            self._welcomed_again()
        if frame["command"] != "prompt":
            return
        duplicate = bool(frame.get("duplicate"))
        for item in self._requests(frame["session_id"]):
            if item.command_id == frame.get("id") and item.teller is None and item.prompted:
                item.teller = Teller(frame["run_id"], fresh=not duplicate)
                if duplicate:
                    self._attach(item)  # it has run for a while: what there is of it comes as a snapshot

    def _welcomed_again(self) -> None:
        request, self._asking = self._asking, None
        if request is not None:
            self._token = request.token
            self._begin(request)
        self._go_on()

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            if self._asking is not None:
                self._waiting.append(request)
            else:
                self._admit(request)

    def _error(self, frame: Frame) -> Iterator[dict[str, Any]]:
        id_, text = str(frame.get("id") or ""), str(frame["message"])
        if id_ == HELLO:
            if self._asking is not None:
                request, self._asking = self._asking, None
                yield r.error(request.requestId, text)
                self._go_on()
            else:
                for item in list(self._open.values()):
                    yield from self._fail(item, text)
            return
        for item in list(self._open.values()):
            if item.prompted and item.command_id == id_ and item.teller is None:
                yield from self._fail(item, text)
            elif f"attach:{item.id}" == id_:
                yield from self._not_attached(item, frame)
        if not id_ and "session_id" not in frame:
            yield r.error("", text)

    def _not_attached(self, item: _Open, frame: Frame) -> Iterator[dict[str, Any]]:
        request = item.request
        missing = frame["code"] == "session_not_found"
        if missing and isinstance(request, r.Resume):
            self._close(item)
            yield r.no_active(item.id)
        elif missing and isinstance(request, r.Send) and not item.answers and not item.aborted:
            self._prompt(item, None)  # nothing is there that it could replace
        else:
            yield from self._fail(item, str(frame["message"]))

    def _detached(self, frame: Frame) -> Iterator[dict[str, Any]]:
        for item in self._requests(frame["session_id"]):
            if item.teller is not None:
                yield from self._chunks(item, item.teller.fail(f"The session is {frame['reason']}"))
        held = self._held.get(frame["session_id"])
        if held is not None:
            held.attached = False

    # -- answers

    def _chunks(self, item: _Open, chunks: Iterator[Chunk]) -> Iterator[dict[str, Any]]:
        for value in chunks:
            yield r.chunk(item.id, item.sequence, value)
            item.sequence += 1
        if item.teller is not None and item.teller.over:
            yield from self._finished(item)

    def _finished(self, item: _Open) -> Iterator[dict[str, Any]]:
        if self._close(item):
            yield r.end(item.id)

    def _fail(self, item: _Open, text: str) -> Iterator[dict[str, Any]]:
        if self._close(item):
            yield r.error(item.id, text)

    def _close(self, item: _Open) -> bool:
        """Forget a request, and leave its session when it was the last one; its runs stay this connection's."""
        if self._open.pop(item.id, None) is None:
            return False
        held = self._held[item.session_id]
        held.requests.remove(item)
        if not held.requests:
            del self._held[item.session_id]
            self.commands.append({"type": "detach", "session_id": item.session_id})
        return True


def _again(request: r.Send) -> bool:
    """Say whether something else takes the place of what was said before."""
    return request.trigger == "regenerate-message" or request.messageId is not None


def _command_id(request: r.Send | r.Resume) -> str:
    """A new message is sent once by its own id, whatever happens to the connection; all else once by request."""
    whole = [request.id, request.requestId]
    if isinstance(request, r.Send) and not _again(request) and request.messages[-1].id:
        whole = [request.id, "message", request.messages[-1].id]
    return _key(*whole)


def _key(*names: str) -> str:
    """Give a command's id: what is stored once goes by it, on whatever connection."""
    return "ai-" + hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()[:48]
