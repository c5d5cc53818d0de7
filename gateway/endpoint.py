"""The ASGI socket: for each connection a reader, a worker for commands that wait, and a pump.

The way in: a message → ``protocol.connection`` → an abort at once, anything else through the worker, in order. The way
out: the pump asks the outbox for the next message whenever the socket took the last one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from gateway.auth import host_allowed, origin_allowed
from gateway.outbox import Outbox
from gateway.version import SERVER
from gateway.wakeup import Wakeup
from protocol import frames
from protocol.commands import Abort, Command, Hello, Ping, Prompt, Resume
from protocol.connection import Close, Connection, ConnectionLimits, Handle, Reply
from protocol.errors import CloseCode, CommandError, closed_on_purpose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from gateway.auth import Authenticator
    from gateway.config import Settings
    from gateway.hub import Hub
    from gateway.session import Session

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

MAX_WAITING_COMMANDS = 256
"""Commands of one connection that may wait behind one that waits for the store."""


class Endpoint:
    """Serves ``/ws``. Owns every connection's tasks and the clock that watches them."""

    def __init__(self, hub: Hub, authenticator: Authenticator, settings: Settings) -> None:
        self.hub = hub
        self.authenticator = authenticator
        self.settings = settings
        self.links: set[Link] = set()
        self.limits = ConnectionLimits(
            max_frame_bytes=settings.max_frame_bytes,
            commands_per_s=settings.commands_per_s,
            heartbeat_s=settings.heartbeat_s,
            hello_timeout=settings.hello_timeout,
            auth_required=authenticator.required,
        )
        self._origins = _listed(settings.origins)
        self._hosts = _listed(settings.hosts)
        self._clock: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching deadlines."""
        self._clock = asyncio.create_task(self._watch_clock(), name="connection clock")

    async def stop(self) -> None:
        """Stop watching deadlines."""
        if self._clock is not None:
            self._clock.cancel()
            await asyncio.gather(self._clock, return_exceptions=True)

    def refusal(self, origin: str | None, host: str | None) -> str | None:
        """Say why a request may not use this gateway, from its ``Origin`` and ``Host``; None if it may."""
        if not host_allowed(host, self._hosts):
            return "this host name is not allowed; see --hosts"
        if not origin_allowed(origin, host, self._origins):
            return "this origin is not allowed; see --origins"
        return None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one WebSocket (an ASGI application)."""
        await receive()  # websocket.connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        offered = scope.get("subprotocols") or []
        if self.hub.draining:
            await _deny(receive, send, 503, "the server is shutting down", {"retry-after": "1"})
        elif (refusal := self.refusal(headers.get("origin"), headers.get("host"))) is not None:
            await _deny(receive, send, 403, refusal)
        elif offered and frames.SUBPROTOCOL not in offered:
            await _deny(receive, send, 400, f"unknown subprotocol; known are: {frames.SUBPROTOCOL}")
        else:
            accept: Message = {"type": "websocket.accept"}
            if offered:
                accept["subprotocol"] = frames.SUBPROTOCOL
            await send(accept)
            link = Link(self, receive, send)
            self.links.add(link)
            try:
                await link.serve()
            finally:
                self.links.discard(link)

    # -- leaving

    def goaway(self, retry_after_s: float) -> None:
        """Tell every client to open another socket."""
        for link in self.links:
            link.go_away(retry_after_s)

    async def close_all(self, timeout: float) -> None:
        """Close every socket with 4100, after all that was for it has been sent."""
        for link in self.links:
            link.close(CloseCode.DRAIN, "drain", flush=True)
        tasks = [link.task for link in self.links if link.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def _watch_clock(self) -> None:
        settings = self.settings
        every = min(1.0, settings.heartbeat_s / 5, settings.send_timeout / 4, settings.hello_timeout / 4)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every)
            now = loop.time()
            for link in list(self.links):
                link.tick(now)


class Link:
    """One connection: the hub's caller, the socket's owner."""

    __slots__ = (
        "_broken",
        "_closing",
        "_connection",
        "_current",
        "_endpoint",
        "_out",
        "_pump_task",
        "_receive",
        "_room",
        "_send",
        "_sending_since",
        "_waiting",
        "_wake",
        "_worker",
        "outbox",
        "owned",
        "principal",
        "task",
    )

    def __init__(self, endpoint: Endpoint, receive: Receive, send: Send) -> None:
        self.principal = ""
        self.owned: set[Session] = set()
        self.task = asyncio.current_task()
        self._endpoint = endpoint
        self._receive = receive
        self._send = send
        self._wake = Wakeup()
        self._room = Wakeup()  # set after each message sent: fewer replies wait
        self.outbox: Outbox | None = Outbox(self._wake.set)
        self._out: Outbox = self.outbox
        now = asyncio.get_running_loop().time()
        self._connection = Connection(endpoint.limits, now)
        self._waiting: list[tuple[Command, list[dict[str, Any]]]] = []  # an abort with the runs it has stopped already
        self._current: Command | None = None
        self._worker: asyncio.Task[None] | None = None
        self._pump_task: asyncio.Task[None] | None = None
        self._sending_since: float | None = None
        self._closing: tuple[CloseCode, str, bool] | None = None
        self._broken = False

    def reply(self, frame: frames.Frame) -> None:
        """Send a frame before any event; see :class:`~gateway.services.Caller`."""
        self._out.reply(frame)

    def go_away(self, retry_after_s: float) -> None:
        """Say that the server leaves; who is not welcomed yet hears it right after its ``welcome``."""
        if self._connection.welcomed:
            self.reply(frames.build("goaway", reason="drain", retry_after_s=retry_after_s))

    def close(self, code: CloseCode, reason: str, *, flush: bool = False) -> None:
        """End the connection once its replies (with ``flush`` its events too) have been sent."""
        if self._closing is None:
            self._connection.closing = True
            self._closing = (code, reason, flush)
            self._wake.set()

    # -- the reader

    async def serve(self) -> None:
        """Run the connection to its end, then apply the disconnect rule."""
        self._pump_task = asyncio.create_task(self._pump())
        code: int | None = CloseCode.ABNORMAL
        try:
            code = await self._read()
        finally:
            self._pump_task.cancel()
            # In a task of its own: a cancelled reader must not leave the owned runs behind.
            finish = asyncio.create_task(self._finish(code))
            await _outlive(finish)

    async def _read(self) -> int | None:
        loop = asyncio.get_running_loop()
        while True:
            message = await self._receive()
            if message["type"] == "websocket.disconnect":
                code: int | None = message.get("code")
                if code == CloseCode.NO_STATUS and "reason" not in message:
                    # uvicorn reports a lost TCP connection as 1005 too, but only a close frame has a reason.
                    return CloseCode.ABNORMAL
                return code
            # Also where sending has failed already: what a client said before it left takes effect.
            text = message.get("text")
            data = text if text is not None else message.get("bytes") or b""
            for action in self._connection.receive(data, loop.time()):
                self._act(action)

    def _act(self, action: Reply | Handle | Close) -> None:
        match action:
            case Reply(frame):
                self.reply(frame)
            case Handle(command):
                self._take(command)
            case Close(code, reason):
                self.close(code, reason)
            case _:
                assert_never(action)

    def _take(self, command: Command) -> None:
        """Carry a command out: abort and ping overtake, the others wait their turn in the worker."""
        stopped: list[dict[str, Any]] = []
        if self._connection.welcomed:
            if isinstance(command, Abort):
                runs = self._endpoint.hub.abort_now(self, command)
                full = len(self._waiting) >= MAX_WAITING_COMMANDS
                if runs is not None and (full or not self._starting(command, found=bool(runs))):
                    self.reply(frames.ack("abort", command.id, session_id=command.session_id, runs=runs))
                    return
                stopped = runs or []
            if isinstance(command, Ping):
                self.reply(frames.pong(command.id))
                return
        if len(self._waiting) >= MAX_WAITING_COMMANDS:
            refusal = CommandError("rate_limited", "too many commands are waiting", retry_after_s=1.0)
            self.reply(frames.error(refusal, command.id))
            return
        self._waiting.append((command, stopped))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def _starting(self, abort: Abort, *, found: bool) -> bool:
        """A prompt or resume that came first has not started its run: an abort that means it stops that, too.

        ``found``: the abort has stopped a run; if it named the session, that may be the run of the command being
        carried out.
        """
        may_be_it = found and abort.session_id is not None
        if not may_be_it and _means(abort, self._current):
            return True
        return any(_means(abort, command) for command, _ in self._waiting)

    # -- the worker

    async def _work(self) -> None:
        """Carry out the commands that have to wait, in order, until none is left."""
        try:
            while self._waiting:
                command, stopped = self._waiting.pop(0)
                self._current = command
                await self._uncrowded()
                try:
                    if isinstance(command, Hello):
                        await self._hello(command)
                    elif not self._connection.welcomed:  # its hello failed: nobody is there to act for
                        raise CommandError("unauthorized", "the hello was not accepted")
                    elif isinstance(command, Abort):
                        await self._endpoint.hub.abort(self, command, stopped)
                    else:
                        await self._endpoint.hub.handle(self, command)
                except CommandError as exc:
                    self.reply(frames.error(exc, command.id, getattr(command, "session_id", None)))
                except Exception:
                    self._internal_error(command)
                    if not self._connection.welcomed:
                        self._refuse(CloseCode.INTERNAL, "internal")  # nobody knows who this is
        finally:
            self._current = None
            self._worker = None

    async def _uncrowded(self) -> None:
        """Wait until so few replies wait that another one may be added."""
        while self._out.crowded and not self._broken:
            await self._room.wait()

    def _refuse(self, code: CloseCode, reason: str) -> None:
        """End a connection that has not been welcomed; nothing that it sent behind its hello is carried out."""
        self._waiting.clear()
        self.close(code, reason)

    def _internal_error(self, command: Command) -> None:
        reference = secrets.token_hex(4)
        logger.exception("reference %s: %s failed", reference, command.type)
        if not self._connection.welcomed:
            self.close(CloseCode.INTERNAL, "internal error")
        problem = CommandError("internal", f"internal error; reference {reference} in the server's log")
        self.reply(frames.error(problem, command.id, getattr(command, "session_id", None)))

    async def _hello(self, hello: Hello) -> None:
        endpoint, connection = self._endpoint, self._connection
        first = not connection.welcomed
        try:
            if not first and hello.token is None:
                raise CommandError("invalid", "token: a second hello only brings a new token")
            principal = await endpoint.authenticator.authenticate(hello.token)
            if not first and principal.id != self.principal:
                raise CommandError("forbidden", "token: it belongs to another principal")
        except CommandError as exc:
            self.reply(frames.error(exc, hello.id))
            if first:
                self._refuse(CloseCode.FORBIDDEN if exc.code == "forbidden" else CloseCode.UNAUTHENTICATED, exc.code)
            return
        now = asyncio.get_running_loop().time()
        expires = principal.expires_at
        connection.welcome(None if expires is None else _seconds_until(expires), now)
        if not first:
            self.reply(frames.ack("hello", hello.id, auth_expires_at=expires))
            return
        self.principal = principal.id
        self._out.batch = hello.batch
        self.reply(
            frames.build(
                "welcome",
                hello.id,
                protocol=frames.PROTOCOL_VERSION,
                connection_id=f"con_{secrets.token_hex(8)}",
                server=SERVER,
                heartbeat_s=endpoint.settings.heartbeat_s,
                limits=endpoint.hub.limits(),
                auth_expires_at=expires,
            )
        )
        if endpoint.hub.draining:
            self.go_away(1.0)
        for target in hello.attach:
            await self._uncrowded()
            try:
                await endpoint.hub.attach(self, target, None)
            except CommandError as exc:
                self.reply(frames.error(exc, None, target.session_id))

    # -- the pump

    async def _pump(self) -> None:
        """Send what the outbox has, one message at a time, until the connection closes."""
        outbox, send, wake, connection = self._out, self._send, self._wake, self._connection
        clock = asyncio.get_running_loop().time
        try:
            while True:
                closing = self._closing
                message = outbox.next_message(events=closing is None or closing[2])
                if message is None:
                    if closing is not None:
                        self._sending_since = clock()
                        await send({"type": "websocket.close", "code": int(closing[0]), "reason": closing[1]})
                        return
                    await wake.wait()
                    continue
                if outbox.overflowed:
                    self._give_up()
                    return
                self._sending_since = clock()
                await send({"type": "websocket.send", "text": message})
                self._sending_since = None
                connection.sent(clock())
                self._room.set()
        except Exception as exc:
            # The reader learns of the end by itself; what was not sent stays in the logs.
            logger.debug("a connection ended while something was being sent: %r", exc)
        finally:
            self._sending_since = None
            self._broken = True
            self._room.set()

    def tick(self, now: float) -> None:
        """Look at the clock."""
        if self._broken:
            return
        since = self._sending_since
        if self._out.overflowed or (since is not None and now - since > self._endpoint.settings.send_timeout):
            self._give_up()
            return
        for action in self._connection.tick(now):
            self._act(action)

    def _give_up(self) -> None:
        """The client is too slow: end with 4102 past the blocked send, and let go of what it costs at once."""
        self._broken = True
        self._connection.closing = True
        code, reason = CloseCode.TOO_SLOW, "too slow"
        if self._closing is not None:
            code, reason = self._closing[0], self._closing[1]
        self._closing = (code, reason, False)
        self._out.clear()
        if self._pump_task is not None:
            self._pump_task.cancel()
        _force_close(self._receive, code, reason, self._endpoint.settings.send_timeout)

    async def _finish(self, code: int | None) -> None:
        """Let received commands take effect, then the disconnect rule."""
        if self._pump_task is not None:
            await asyncio.wait([self._pump_task])
        if self._worker is not None:
            await asyncio.wait([self._worker])
        grace_s = None
        if self._closing is not None:
            code = self._closing[0]
            if code == CloseCode.AUTH_EXPIRED:
                grace_s = self._endpoint.settings.auth_grace
        self._endpoint.hub.disconnected(self, on_purpose=closed_on_purpose(code), grace_s=grace_s)


def _means(abort: Abort, command: Command | None) -> bool:
    """Say whether an abort is for the run that a command is about to start."""
    if not isinstance(command, Prompt | Resume) or abort.run_id is not None:
        return False
    if abort.command_id is not None:
        return abort.command_id == command.id
    return abort.session_id is None or abort.session_id == command.session_id


async def _outlive(task: asyncio.Task[None]) -> None:
    """Wait for a task to the end even if cancelled meanwhile; the cancellation is raised afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            if task.cancelled():
                raise
            cancelled = exc
    if cancelled is not None:
        raise cancelled
    task.result()


def _listed(text: str) -> frozenset[str]:
    """Read a comma separated setting."""
    items = (item.strip().rstrip("/").lower() for item in text.split(","))
    return frozenset(item for item in items if item)


def _seconds_until(time_ms: int) -> float:
    from gateway.ids import now_ms

    return max(0.0, (time_ms - now_ms()) / 1000)


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


async def _deny(receive: Receive, send: Send, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    """Refuse a handshake with an HTTP response."""
    fields = {"content-type": "text/plain; charset=utf-8"} | (headers or {})
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "websocket.http.response.start", "status": status, "headers": raw})
    await send({"type": "websocket.http.response.body", "body": text.encode() + b"\n"})
    # uvicorn takes an application that returns before the connection is gone for one that forgot to answer.
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await receive()
            await receive()
