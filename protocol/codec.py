"""Bytes on the wire: decode commands (pydantic, straight from bytes), encode events (orjson), merge deltas, batch.

An event is encoded once. A delta's bytes are ``head + ,"seq":N,"text":"…"}`` where ``head`` is one object shared by all
deltas of its part: two neighbours with the same ``head`` merge by joining their text bytes, no JSON is parsed again.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import orjson
from pydantic import BaseModel, TypeAdapter, ValidationError

from protocol.commands import COMMAND_TYPES, Command, DiscriminatedCommand
from protocol.errors import CommandError
from protocol.events import DELTAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_MESSAGE_BYTES = 1024 * 1024
"""A server message is never larger (contract, "Wire protocol v1")."""

BATCH_BYTES = 64 * 1024
"""A batch is never larger; a larger single frame goes alone."""

_LITERALS = re.compile(r"NaN|Infinity")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_command: TypeAdapter[Command] = TypeAdapter(DiscriminatedCommand)


class BadCommand(CommandError):
    """A command that could not be decoded; ``id`` is its id where one could be read."""

    id: str | None = None


def decode_command(data: str | bytes) -> Command:
    """Decode one command.

    Raises :exc:`BadCommand` with code ``bad_frame``, ``unknown_type`` or ``invalid`` (naming the field).
    """
    try:
        return _decode(data)
    except BadCommand as exc:
        text = mended(data) if exc.code == "bad_frame" else None
        if text is None:
            raise
    return _decode(text)


def _decode(data: str | bytes) -> Command:
    try:
        if _LITERALS.search(data if isinstance(data, str) else data.decode("utf-8", "replace")):
            orjson.loads(data)  # pydantic takes NaN and Infinity, JSON has no such words
    except orjson.JSONDecodeError as exc:
        raise BadCommand("bad_frame", f"not JSON: {exc}") from None
    try:
        return _command.validate_json(data)
    except ValidationError as exc:
        raise _explain(exc, data) from None


def mended(data: str | bytes) -> bytes | None:
    """Replace lone surrogates: they are JSON (a browser sends half an emoji so) and no text. None: not the trouble."""
    text = data if isinstance(data, str) else data.decode("utf-8", "replace")
    if not _SURROGATE.search(text):
        return None
    try:
        return orjson.dumps(jsonable(json.loads(text, parse_constant=_no_constant)))
    except (ValueError, RecursionError):
        return None


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _explain(exc: ValidationError, data: str | bytes) -> BadCommand:
    first = exc.errors(include_url=False, include_context=False, include_input=False)[0]
    if first["type"] == "json_invalid":
        return BadCommand("bad_frame", f"not JSON: {first['msg']}")
    if not first["loc"] and first["type"] not in ("union_tag_invalid", "union_tag_not_found"):
        return BadCommand("bad_frame", "a frame is one JSON object")
    if first["type"] == "union_tag_invalid" and not first["loc"]:
        bad = BadCommand("unknown_type", f"unknown type; known are {', '.join(COMMAND_TYPES)}")
    elif first["type"] == "union_tag_not_found" and not first["loc"]:
        bad = BadCommand("invalid", "type: Field required")
    else:
        # The first item of loc is the union's tag, which the sender knows.
        where = ".".join(str(item) for item in first["loc"][1:]) or "frame"
        # What our own validators say, pydantic introduces.
        bad = BadCommand("invalid", f"{where}: {first['msg'].removeprefix('Value error, ')}")
    bad.id = _id_of(data)
    return bad


def _id_of(data: str | bytes) -> str | None:
    try:
        raw = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    id_ = raw.get("id") if isinstance(raw, dict) else None
    return id_ if isinstance(id_, str) and 1 <= len(id_) <= 128 else None


def encode(value: Any) -> bytes:
    """Encode any value; what JSON cannot say is said as a string, never refused."""
    try:
        return orjson.dumps(value, default=_default, option=orjson.OPT_NON_STR_KEYS)
    except (orjson.JSONEncodeError, TypeError):
        return orjson.dumps(jsonable(value))


def _default(value: Any) -> Any:
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, BaseModel):
        try:
            return value.model_dump(mode="json")
        except Exception:
            return _shown(value)
    return _shown(value)


def _shown(value: Any) -> str:
    """Say a stranger as text, whatever its own ``repr`` does."""
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def jsonable(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Turn any value into plain JSON data: lone surrogates replaced, big integers and strangers as strings.

    ``inside`` are the containers around it: what contains itself, or is nested beyond all measure, becomes a string.
    """
    if len(inside) > 100 or id(value) in inside:
        return clean_text(_shown(value)[:200])
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, dict):
        inside = (*inside, id(value))
        return {
            clean_text(key if isinstance(key, str) else _shown(key)): jsonable(item, inside)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        inside = (*inside, id(value))
        return [jsonable(item, inside) for item in value]
    plain = _default(value)
    return clean_text(plain) if isinstance(plain, str) else jsonable(plain, (*inside, id(value)))


def clean_text(text: str) -> str:
    """Make text encodable as UTF-8: surrogate pairs are joined, lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


class Record:
    """One stamped event as it goes on the wire and into the store: immutable, shared by every cursor.

    ``head`` and ``text`` are set on deltas only; equal (identical) heads mean the same part.
    """

    __slots__ = ("data", "head", "seq", "text")

    def __init__(self, seq: int, data: bytes, head: bytes | None = None, text: bytes = b"") -> None:
        self.seq = seq
        self.data = data
        self.head = head
        self.text = text


class EventEncoder:
    """Encodes the events of one session; remembers the head of the part that deltas come for."""

    __slots__ = ("_head", "_key", "_session_id")

    def __init__(self, session_id: str) -> None:
        self._session_id = session_id
        self._key: tuple[Any, ...] | None = None
        self._head = b""

    def encode(self, event: Mapping[str, Any]) -> Record:
        """Encode a stamped event (``session_id``, ``seq``, ``run_id`` and ``time`` are in it)."""
        seq = event["seq"]
        if event["type"] not in DELTAS or "truncated" in event:
            return Record(seq, encode(event))
        key = (event["part_id"], event["type"], event["run_id"])
        if key != self._key:
            head = {name: event[name] for name in event if name not in ("seq", "text", "from")}
            self._head = encode(head)[:-1]
            self._key = key
        text = encode(event["text"])[1:-1]
        return Record(seq, b'%b,"seq":%d,"text":"%b"}' % (self._head, seq, text), self._head, text)


def message(parts: Sequence[bytes], *, joined: bool = False) -> bytes:
    """Put encoded frames into one message: a single one bare, several as an array.

    ``joined``: a part holds several, with commas between.
    """
    if len(parts) == 1 and not joined:
        return parts[0]
    return b"[%b]" % b",".join(parts)


def decode_message(data: str | bytes) -> list[dict[str, Any]]:
    """Decode a server message into its frames (the client's side of batching)."""
    value = orjson.loads(data)
    return cast("list[dict[str, Any]]", value if isinstance(value, list) else [value])
