"""The way out of one connection: whenever the socket takes something, the next message of its outbox.

Nothing runs for a connection that has nothing to send. What one turn of the loop brings goes straight into the socket
at the end of that turn, for all connections in one callback; a task begins only where a socket does not take it at
once, and ends when it has.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from gateway.outbox import Outbox
from gateway.wakeup import Wakeup
from protocol.errors import CloseCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping

    from protocol.connection import Connection

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)


class Socket(Protocol):
    """What the gateway's own server has behind ASGI's ``receive``; see :class:`~gateway.sockets.BoundedWebSocket`."""

    @property
    def ready(self) -> bool:
        """A message would go straight to the system, nothing waits before it."""

    def say(self, text: bytes) -> None:
        """Send a text message (UTF-8), now."""


class Turns:
    """Flushes the pumps that were woken in one turn of the loop, together at its end."""

    def __init__(self) -> None:
        self._woken: dict[Pump, None] = {}

    def add(self, pump: Pump) -> None:
        """Have a pump flushed."""
        if not self._woken:
            asyncio.get_running_loop().call_soon(self._flush)
        self._woken[pump] = None

    def _flush(self) -> None:
        woken, self._woken = self._woken, {}
        for pump in woken:
            try:
                pump.flush()
            except Exception:  # the others' turn it is, too
                logger.exception("sending to a connection failed")


class Pump:
    """Sends what one connection's outbox has, then closes it."""

    __slots__ = (
        "_connection",
        "_receive",
        "_send",
        "_sending_since",
        "_socket",
        "_task",
        "_timeout_s",
        "_translate",
        "_turns",
        "broken",
        "closing",
        "outbox",
        "room",
    )

    def __init__(
        self,
        turns: Turns,
        connection: Connection,
        receive: Receive,
        send: Send,
        timeout_s: float,
        translate: Callable[[bytes], Iterable[bytes]] | None = None,
    ) -> None:
        self.outbox = Outbox(self.wake)
        self.closing: tuple[CloseCode, str, bool] | None = None
        """With what code and reason to close once the replies have been sent, and whether the events, too."""
        self.broken = False
        """Nothing can be sent any more."""
        self.room = Wakeup()
        """Set after each message sent: fewer replies wait."""
        self._turns = turns
        self._connection = connection
        self._receive = receive
        self._send = send
        self._timeout_s = timeout_s
        self._translate = translate
        socket = getattr(receive, "__self__", None)
        # Not isinstance: on a protocol that costs a new connection 10 µs.
        self._socket: Socket | None = socket if translate is None and hasattr(socket, "ready") else None
        self._task: asyncio.Task[None] | None = None
        self._sending_since: float | None = None

    def wake(self) -> None:
        """There is something to send."""
        if self._task is None and not self.broken:
            self._turns.add(self)

    def close(self, code: CloseCode, reason: str, *, flush: bool) -> None:
        """End the connection once its replies (with ``flush`` its events too) have been sent."""
        if self.closing is None:
            self._connection.closing = True
            self.closing = (code, reason, flush)
            self.wake()

    def flush(self) -> None:
        """Send what there is; where the socket does not take it at once, begin a task that waits for it."""
        if self._task is not None or self.broken:
            return
        socket = self._socket
        now = 0.0
        while socket is not None and self.closing is None and socket.ready:
            message = self._next()
            if message is None:
                return
            if self.outbox.overflowed:
                self.give_up()
                return
            try:
                socket.say(message)
            except Exception as exc:
                self._lost(exc)
                return
            now = now or asyncio.get_running_loop().time()
            self._connection.sent(now)
            self.room.set()
        self._task = asyncio.create_task(self._run())

    def _next(self, *, events: bool = True) -> bytes | None:
        try:
            return self.outbox.next_message(events=events)
        except Exception:
            logger.exception("what is for a client cannot be written")
            self.outbox.clear()
            self.close(CloseCode.INTERNAL, "internal error", flush=False)
            return None

    async def _run(self) -> None:
        """Send one message after the other until none is left, then close if that is wanted."""
        over = True
        try:
            while True:
                message = self._next(events=self.closing is None or self.closing[2])
                if message is None:
                    if self.closing is None:
                        over = False
                    else:
                        await self._close(*self.closing[:2])
                    return
                if self.outbox.overflowed:
                    self.give_up()
                    return
                for text in (message,) if self._translate is None else self._translate(message):
                    await self._say(text)
                self.room.set()
        except Exception as exc:
            self._lost(exc)
        finally:
            self._sending_since = None
            self._task = None
            if over:
                self.broken = True
                self.room.set()

    def _lost(self, exc: Exception) -> None:
        """Note that nothing can be sent. The reader learns of the end by itself; what was not sent is in the logs."""
        logger.debug("a connection ended while something was being sent: %r", exc)
        self.broken = True
        self.room.set()

    async def _say(self, text: bytes) -> None:
        clock = asyncio.get_running_loop().time
        self._sending_since = clock()
        await self._send({"type": "websocket.send", "text": text.decode()})
        self._sending_since = None
        self._connection.sent(clock())

    async def _close(self, code: CloseCode, reason: str) -> None:
        self._sending_since = asyncio.get_running_loop().time()
        await self._send({"type": "websocket.close", "code": int(code), "reason": reason})

    def tick(self, now: float) -> None:
        """Look at the clock: a client that takes nothing is given up."""
        since = self._sending_since
        if self.outbox.overflowed or (since is not None and now - since > self._timeout_s):
            self.give_up()

    def give_up(self) -> None:
        """The client is too slow: end with 4102 past the blocked send, and let go of what it costs at once."""
        self.broken = True
        self._connection.closing = True
        code, reason = CloseCode.TOO_SLOW, "too slow"
        if self.closing is not None:
            code, reason = self.closing[0], self.closing[1]
        self.closing = (code, reason, False)
        self.outbox.clear()
        self.room.set()
        if self._task is not None:
            self._task.cancel()
        _force_close(self._receive, code, reason, self._timeout_s)

    async def stop(self) -> None:
        """Send no more. The reader is done, so nobody is there to send to."""
        self.broken = True
        self.room.set()
        # They know each other: together they would stay until the garbage collector comes.
        self.outbox.mute()
        self._translate = None
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            self._task = None  # one that was cancelled before its first step has not said so itself


def _force_close(receive: Receive, code: CloseCode, reason: str, patience_s: float) -> None:
    """Close a socket whose sends are blocked, past ASGI: its ``send`` would wait for the very same buffer.

    uvicorn's ``receive`` is a method of the protocol object, which has the transport: the close frame is put behind
    what is buffered (a client that wakes up reads why), and the transport is cut after ``patience_s``. On another
    server the connection ends with the server's own timeouts.
    """
    protocol = getattr(receive, "__self__", None)
    transport = getattr(protocol, "transport", None)
    machine = getattr(protocol, "conn", None)
    if transport is None:
        return
    if machine is not None:
        with suppress(Exception):  # already closing
            machine.send_close(int(code), reason)
            transport.write(b"".join(machine.data_to_send()))
    asyncio.get_running_loop().call_later(patience_s, transport.abort)
