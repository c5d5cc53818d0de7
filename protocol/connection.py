"""One connection, sans I/O: hello first, limits, bad frames, deadlines.

The endpoint feeds it every message and the time; it answers with what to do. It never waits and knows no socket, so
each rule is tested without a loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from protocol import frames
from protocol.codec import BadCommand, decode_command
from protocol.commands import Abort, Command, Hello, Ping
from protocol.errors import CloseCode, CommandError

MAX_BAD_FRAMES = 20
"""This many undecodable frames in a row end the connection with 4400."""

MAX_RATE_ERRORS = 1000
"""This many refused commands without a pause (half of the budget back) end the connection with 4105: nobody listens."""

SILENCE_FACTOR = 3
"""A client that has sent ``ping`` and then nothing for so many heartbeats is gone (4103)."""


HEARTBEAT_SHARE = 0.6
"""The server speaks after this share of a heartbeat, so that a coarse clock still keeps the promise of a whole one."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this frame."""

    frame: frames.Frame


@dataclass(frozen=True, slots=True)
class Handle:
    """Carry out this command."""

    command: Command


@dataclass(frozen=True, slots=True)
class Close:
    """End the connection, after what has been replied."""

    code: CloseCode
    reason: str


Action: TypeAlias = Reply | Handle | Close


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What one connection may do. Times in seconds, sizes in bytes."""

    max_frame_bytes: int = 1024 * 1024
    commands_per_s: float = 100.0
    heartbeat_s: float = 15.0
    hello_timeout: float = 10.0
    auth_required: bool = False


class Connection:
    """The state of one connection. ``now`` is any monotonic clock in seconds."""

    __slots__ = (
        "_bad",
        "_budget",
        "_budget_at",
        "_limits",
        "_refused",
        "auth_deadline",
        "closing",
        "greeted",
        "heard_at",
        "opened_at",
        "pinged",
        "sent_at",
        "welcomed",
    )

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._limits = limits
        self._bad = 0
        self._refused = 0
        self._budget = max(limits.commands_per_s, 1.0)
        self._budget_at = now
        self.opened_at = now
        self.heard_at = now
        self.sent_at = now
        self.greeted = False
        """A hello has come, or was implied."""
        self.welcomed = False
        """``welcome`` has gone out: before it only errors may."""
        self.pinged = False
        self.closing = False
        self.auth_deadline: float | None = None

    def receive(self, data: str | bytes, now: float) -> list[Action]:
        """Take one message from the client and say what to do."""
        if self.closing:
            return []
        self.heard_at = now
        try:
            command = self._decode(data)
        except BadCommand as exc:
            return self._wrong(exc)
        self._bad = 0
        if not isinstance(command, Abort) and not self._spend(now):
            return self._limited(command)
        if isinstance(command, Ping):
            self.pinged = True
        if self.greeted:
            return [Handle(command)]
        if isinstance(command, Hello):
            self.greeted = True
            return [Handle(command)]
        if self._limits.auth_required:
            refusal = CommandError("unauthorized", "the first command must be a hello with a token")
            return [Reply(frames.error(refusal, command.id)), self.close(CloseCode.UNAUTHENTICATED, "no hello")]
        self.greeted = True
        return [Handle(Hello()), Handle(command)]

    @property
    def flooding(self) -> bool:
        """Commands were refused for their rate, and the client has not paused since."""
        return self._refused > 0

    def close(self, code: CloseCode, reason: str) -> Close:
        """Note that the connection is ending; nothing more is taken from the client."""
        self.closing = True
        return Close(code, reason)

    def welcome(self, auth_seconds_left: float | None, now: float) -> None:
        """Note that the client is known, for so long."""
        self.welcomed = True
        self.auth_deadline = None if auth_seconds_left is None else now + auth_seconds_left

    def sent(self, now: float) -> None:
        """Note that a message has gone out."""
        self.sent_at = now

    def tick(self, now: float) -> list[Action]:
        """Look at the clock: hello in time, token still good, client alive, server heard."""
        if self.closing:
            return []
        limits = self._limits
        if limits.auth_required and not self.greeted and now - self.opened_at >= limits.hello_timeout:
            return [self.close(CloseCode.NO_HELLO, "no hello in time")]
        if self.auth_deadline is not None and now >= self.auth_deadline:
            return [self.close(CloseCode.AUTH_EXPIRED, "authentication expired")]
        if self.pinged and now - self.heard_at >= SILENCE_FACTOR * limits.heartbeat_s:
            return [self.close(CloseCode.HEARTBEAT_LOST, "heartbeat lost")]
        if self.welcomed and now - self.sent_at >= limits.heartbeat_s * HEARTBEAT_SHARE:
            return [Reply(frames.pong())]
        return []

    def _decode(self, data: str | bytes) -> Command:
        if isinstance(data, bytes):
            raise BadCommand("bad_frame", "messages are text, not binary")
        size = len(data) if data.isascii() else len(data.encode("utf-8", "surrogatepass"))
        if size > self._limits.max_frame_bytes:
            raise BadCommand("too_large", f"{size} bytes; a frame has at most {self._limits.max_frame_bytes}")
        return decode_command(data)

    def _wrong(self, exc: BadCommand) -> list[Action]:
        reply = Reply(frames.error(exc, exc.id))
        if exc.code != "bad_frame":
            self._bad = 0
            return [reply]
        self._bad += 1
        if self._bad >= MAX_BAD_FRAMES:
            return [reply, self.close(CloseCode.BAD_FRAMES, "bad frames")]
        return [reply]

    def _spend(self, now: float) -> bool:
        rate = self._limits.commands_per_s
        self._budget = min(max(rate, 1.0), self._budget + (now - self._budget_at) * rate)
        self._budget_at = now
        if self._budget < 1:
            return False
        if self._budget >= max(rate, 1.0) / 2:  # it has paused; one that floods gets one through now and then, too
            self._refused = 0
        self._budget -= 1
        return True

    def _limited(self, command: Command) -> list[Action]:
        self._refused += 1
        wait = round((1 - self._budget) / self._limits.commands_per_s, 3)
        refusal = CommandError("rate_limited", "too many commands", retry_after_s=wait)
        reply = Reply(frames.error(refusal, command.id))
        if self._refused >= MAX_RATE_ERRORS:
            return [reply, self.close(CloseCode.RATE_LIMITED, "rate limited")]
        return [reply]
