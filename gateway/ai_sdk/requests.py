"""The frames of the AI SDK's ``WebSocketChatTransport`` (``ai`` 7): what a page may send, and what it is answered.

Each frame belongs to a request by its ``requestId``; an answer to a request that a page does not know is ignored there.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeAlias

import orjson
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from gateway.auth import bearer
from protocol.codec import mended
from protocol.commands import SessionId  # noqa: TC001  pydantic reads it at run time

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=100)]


class _Frame(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    requestId: RequestId


class UIMessage(BaseModel):
    """A message as the page keeps it. Its parts are looked at where they are used."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    id: Annotated[str, StringConstraints(max_length=256)]
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]]
    metadata: Any = None


class _About(_Frame):
    id: SessionId
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}

    @property
    def token(self) -> str | None:
        """The bearer token that the page put into the frame's ``headers``."""
        for name, value in self.headers.items():
            if name.lower() == "authorization":
                return bearer(value)
        return None


class Send(_About):
    """Starts a run: a new message, an edited one, an answer to be given again, or decisions on approvals."""

    type: Literal["send"]
    trigger: Literal["submit-message", "regenerate-message"]
    messageId: str | None = None
    messages: Annotated[list[UIMessage], Field(min_length=1)]


class Resume(_About):
    """Asks for the run of a chat from its beginning, then live."""

    type: Literal["resume"]
    lastSequence: int | None = None


class Abort(_Frame):
    """Stops what a request of this connection started."""

    type: Literal["abort"]


Request: TypeAlias = Send | Resume | Abort
_REQUESTS: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="type")])
_ID_IN_FRONT = re.compile(r'\s*\{\s*"type"\s*:\s*"\w+"\s*,\s*"requestId"\s*:\s*"([^"\\]{1,100})"')


class BadRequest(Exception):
    """A wrong frame. ``request_id`` is what it is about, where that can be read; ``is_frame`` False: no JSON object."""

    def __init__(self, message: str, request_id: str = "", *, is_frame: bool = True) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.is_frame = is_frame


def parse(text: str, max_bytes: int) -> Request:
    """Read a frame. Raises :exc:`BadRequest`."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if size > max_bytes:
        # The page sends its whole history each time: this is where a long chat ends that does not leave it out.
        hint = "send the last messages only (prepareSendMessagesRequest)"
        raise BadRequest(f"{size} bytes; a frame has at most {max_bytes}: {hint}", request_id_in(text))
    data: str | bytes = mended(text) or text
    try:
        return _REQUESTS.validate_json(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False, include_context=False)[0]
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        raw = None
    if not isinstance(raw, dict):
        raise BadRequest("a frame is one JSON object", is_frame=False)
    id_ = raw.get("requestId")
    where = ".".join(str(step) for step in first["loc"][1:]) or "frame"
    why = first["msg"].removeprefix("Value error, ")
    raise BadRequest(f"{where}: {why}"[:500], id_ if isinstance(id_, str) else "")


def request_id_in(text: str) -> str:
    """Give the ``requestId`` of a frame that was not parsed, from where the transport writes it; else ``""``."""
    found = _ID_IN_FRONT.match(text[:1000])
    return found.group(1) if found else ""


# -- what the server says

KEEP_ALIVE: dict[str, Any] = {"type": "start", "requestId": "keep-alive"}
"""Says only that the server is there: the transport passes over a request that it does not know."""


def start(request_id: str) -> dict[str, Any]:
    """There is something to resume."""
    return {"type": "start", "requestId": request_id}


def chunk(request_id: str, sequence: int, value: dict[str, Any]) -> dict[str, Any]:
    """One UI message chunk; ``sequence`` counts from 0 in each answer, without a gap."""
    return {"type": "chunk", "requestId": request_id, "sequence": sequence, "chunk": value}


def end(request_id: str) -> dict[str, Any]:
    """The answer is complete."""
    return {"type": "end", "requestId": request_id}


def error(request_id: str, text: str) -> dict[str, Any]:
    """The request failed; what it started, if anything, goes on."""
    return {"type": "error", "requestId": request_id, "errorText": text}


def no_active(request_id: str) -> dict[str, Any]:
    """Nothing runs that could be resumed."""
    return {"type": "no-active", "requestId": request_id}
