"""uvicorn's two protocols, with a bound on what a stranger may cost before and beside the application.

The application sees whole requests and messages; what comes before them is the server's: a head that dribbles in, one
that never ends, a reader that leaves a response lying, control frames that ask for answers nobody reads, a message in
millions of empty pieces, a small frame that unpacks to megabytes. Each has a bound here, in time or in bytes.
"""

from __future__ import annotations

from struct import pack
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

if TYPE_CHECKING:
    import asyncio

    from websockets.frames import Frame

MAX_HEAD_BYTES = 64 * 1024
"""What a request may have beside its body: nginx allows 32 KiB of headers, and what a browser sends is far below."""

BODY_FACTOR = 6
"""A body may take so many times as long as a head: a prompt of 60 kB on a line of 1 kB/s. So may a response's end."""

MAX_PIECES = 1024
"""Frames that one message may come in: a fragment costs memory even where it is empty."""

SLICE_BYTES = 4 * 1024
"""So much of what a socket brought is parsed in one turn of the loop: one read may bring 256 KiB, in frames of a few
bytes each, and the others would wait for all of them. Deflate packs at most 1 to 1032: a slice unpacks to 4 MiB."""

LINGER_S = 20.0
"""How long what the socket still holds may wait for its peer once the application is done: twice what uvicorn waits for
the answer to a close, after which it would wait for the peer to read for ever."""


AFTER_BYTES = 32 * 1024
"""What may still come from a peer once the application has ended, its answer to our close with it: parsing what a flood
goes on with would take the others' time."""


_NOTHING = memoryview(b"")


class _Deadline:
    """One timer of a connection: set, set again, or clear. It cuts the transport."""

    __slots__ = ("_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> bool:
        return self._timer is not None

    def start(self, seconds: float, transport: asyncio.Transport) -> None:
        self.clear()
        self._timer = self._loop.call_later(seconds, transport.abort)

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_protocol(head_s: float, stall_s: float) -> type[HttpToolsProtocol]:
    """Give an HTTP protocol whose requests have to be whole, and whose responses have to be read, in time.

    ``head_s``: seconds from the connection, or from a request's first byte, to the end of its head; the body may take
    :data:`BODY_FACTOR` times as long. ``stall_s``: how long a response may wait for a client that reads nothing of it.
    """

    class BoundedHttp(HttpToolsProtocol):
        """Cuts who dribbles, never ends, or does not read."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._beside_bodies = 0
            self._request = _Deadline(self.loop)
            self._reading = _Deadline(self.loop)
            self._request.start(head_s, transport)

        def connection_lost(self, exc: Exception | None) -> None:
            self._request.clear()
            self._reading.clear()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self._request.pending:
                self._request.start(head_s, self.transport)
            self._beside_bodies += len(data)
            super().data_received(data)
            if self._beside_bodies > MAX_HEAD_BYTES:
                self.transport.abort()

        def on_headers_complete(self) -> None:
            self._beside_bodies = 0
            self._request.start(head_s * BODY_FACTOR, self.transport)
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._beside_bodies -= len(body)  # the application bounds it
            super().on_body(body)

        def on_message_complete(self) -> None:
            self._beside_bodies = 0
            self._request.clear()
            super().on_message_complete()

        def handle_websocket_upgrade(self) -> None:
            self._beside_bodies = 0
            self._request.clear()
            super().handle_websocket_upgrade()
            del self.parser  # it knows our methods: together they would stay until the garbage collector comes

        def pause_writing(self) -> None:
            super().pause_writing()
            self._reading.start(stall_s, self.transport)

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._reading.clear()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._linger()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._linger()

        def _linger(self) -> None:
            """Where the transport is closing, see to it that it does: what is little pauses no writing."""
            if self.transport.is_closing() and self in self.connections:
                self._reading.start(stall_s * BODY_FACTOR, self.transport)

    return BoundedHttp


def text_head(size: int) -> bytes:
    """Give what comes before the ``size`` bytes of a whole text message from a server (RFC 6455, 5.2)."""
    if size < 126:
        return bytes((0x81, size))
    return pack("!BBH", 0x81, 126, size) if size < 65536 else pack("!BBQ", 0x81, 127, size)


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket whose peer gets no further ahead than the application and its own reading are."""

    # Not in the instance's dictionary: past thirty names that one is no longer shared, a kilobyte a connection.
    __slots__ = ("_after", "_lingering", "_lost", "_over", "_turn", "_unread")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unread = _NOTHING
        self._turn: asyncio.Handle | None = None
        self._over = False
        self._after = 0
        self._lost: tuple[Exception | None] | None = None
        self._lingering = _Deadline(self.loop)

    def data_received(self, data: bytes) -> None:
        """Take what came, a slice in a turn, and none while the application has something to take."""
        if not self._unread and len(data) <= SLICE_BYTES:
            self._feed(data)
            return
        self._unread = memoryview(bytes(self._unread) + data)
        self._parse()

    def _parse(self) -> None:
        if not self._unread or self._turn is not None or self.read_paused:
            return  # there is a turn to come, or `receive` goes on with it
        piece, self._unread = self._unread[:SLICE_BYTES], self._unread[SLICE_BYTES:]
        self._feed(bytes(piece))
        if self._unread and not self.read_paused:
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._go_on)
        elif not self.read_paused:
            self.transport.resume_reading()

    def _feed(self, data: bytes) -> None:
        if self._over:
            self._after += len(data)
            if self._after > AFTER_BYTES:
                self._unread = _NOTHING
                self.transport.abort()
                return
        super().data_received(data)
        if self.conn.handshake_exc is not None and not self.handshake_complete:
            self._refuse(self.conn.handshake_exc.__cause__)

    def _refuse(self, cause: BaseException | None) -> None:
        """Refuse a request that the HTTP parser took and the handshake's did not: uvicorn would leave it waiting."""
        body = f"the handshake cannot be read: {cause}\n".encode(errors="replace")
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
        self.handshake_complete = self.close_sent = True
        self.transport.write(f"{head}Content-Type: text/plain; charset=utf-8\r\n\r\n".encode() + body)
        self.transport.close()

    def _go_on(self) -> None:
        self._turn = None
        self._parse()
        self._let_go()

    @property
    def ready(self) -> bool:
        """The handshake is done, no close is under way, and nothing waits for the peer to read."""
        open_ = self.conn.state is State.OPEN and self.handshake_complete and not self.disconnected
        return open_ and self.writable.is_set()

    def say(self, text: bytes) -> None:
        """Send a text message (UTF-8), now: it goes straight into the socket, unless the client wants it compressed.

        What it costs to send a token is mostly what is around the system call; a frame object and a buffer for each
        are twice that.
        """
        conn = self.conn
        if conn.extensions:
            conn.send_text(text)
            self.transport.write(b"".join(conn.data_to_send()))
        else:
            self.transport.write(text_head(len(text)) + text)

    async def send(self, message: Any) -> None:
        """Send what the application says."""
        text = message.get("text")
        if text is not None and self.ready:
            self.say(text.encode())
        else:
            await super().send(message)

    async def receive(self) -> Any:
        """Give the next message, and parse the next slice once all of this one has been taken."""
        message = await super().receive()
        self._parse()
        self._let_go()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end; what the peer had sent before it still reaches the application."""
        self._lost = (exc,)
        if self._over:
            self._unread = _NOTHING
        if self._unread:
            self.disconnected = True
            self.writable.set()
        self._let_go()

    def _let_go(self) -> None:
        if self._lost is not None and not self._unread:
            (exc,), self._lost = self._lost, None
            self._lingering.clear()
            super().connection_lost(exc)
            self.conn.parser.close()  # a generator that knows the machine that knows it: garbage to be collected

    async def run_asgi(self) -> None:
        """Run the application; what it has not taken, nobody will.

        After a close of ours the rest is parsed all the same, and dropped: behind it comes the peer's answer.
        """
        try:
            await super().run_asgi()
        finally:
            self._over = True
            if self.close_timer is None or self._lost is not None:
                self._unread = _NOTHING
            self._let_go()
            if not self.disconnected:
                self._lingering.start(LINGER_S, self.transport)
            self._parse()

    def shutdown(self) -> None:
        """Leave with the server. Where a close is under way already, uvicorn's own would be one too many."""
        if self.handshake_complete and not self.close_sent and self.conn.state is not State.OPEN:
            self.transport.abort()  # what is left is for a peer that has gone, or does not read
            return
        super().shutdown()

    def handle_close(self, event: Frame) -> None:
        """Take the peer's close. Also one that is read when the connection is lost says whether it was meant."""
        close = self.conn.close_rcvd
        if self._lost is not None and close is not None:
            self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code, "reason": close.reason})
            return
        super().handle_close(event)

    def handle_cont(self, event: Frame) -> None:
        """Take a piece of a message."""
        if len(self.frames) >= MAX_PIECES:
            self.conn.fail(1009, "too many fragments")
            self.frames = []
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        """Answer a ping, unless earlier answers wait for a peer that does not read: then it is not heard."""
        if not self.writable.is_set():
            self.conn.data_to_send()
            return
        super().handle_ping()
