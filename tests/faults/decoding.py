"""What holds of any bytes that a client sends: they are a command or a refusal that says why, and nothing else."""

from __future__ import annotations

import json

from protocol import codec
from protocol.codec import BadCommand, decode_command
from protocol.connection import Close, Connection, ConnectionLimits, Handle, Reply

CODES = frozenset({"bad_frame", "unknown_type", "invalid"})


def check(data: bytes) -> None:
    """Hold the decoder and the connection to it, for text and for binary."""
    text = data.decode("utf-8", "replace")
    _decoder(text)
    connection = Connection(ConnectionLimits(max_frame_bytes=10_000), 0)
    for message in (text, data):
        for action in connection.receive(message, 0):
            assert isinstance(action, Reply | Handle | Close)
            if isinstance(action, Reply):
                json.loads(codec.encode(action.frame))


def _decoder(text: str) -> None:
    refusal = None
    try:
        command = decode_command(text)
    except BadCommand as exc:
        refusal = exc
    if refusal is not None:
        assert refusal.code in CODES, refusal.code
        assert refusal.id is None or 1 <= len(refusal.id) <= 128
        str(refusal).encode()
        return
    again = decode_command(command.model_dump_json(exclude_none=True))
    assert again == command, "a command survives being written and read"
    if "\\u" not in text:
        json.loads(text)  # whatever is a command is JSON
