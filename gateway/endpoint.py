"""The ASGI socket: for each connection a reader, and a worker for commands that wait.

The way in: a message → ``protocol.connection`` → an abort at once, anything else through the worker, in order. The way
out is the pump's: :mod:`gateway.pump`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any, assert_never

from gateway.audit import audit
from gateway.auth import cookie_token, host_allowed, is_loopback, origin_allowed, peer
from gateway.pump import Pump, Turns
from gateway.quota import Quota
from gateway.tasks import ended
from gateway.version import SERVER
from gateway.wakeup import Wakeup
from protocol import frames
from protocol.commands import Abort, Command, Hello, Ping, Prompt, Resume
from protocol.connection import Close, Connection, ConnectionLimits, Handle, Reply
from protocol.errors import CloseCode, CommandError, closed_on_purpose

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping

    from gateway.auth import Authenticator
    from gateway.config import Settings
    from gateway.hub import Hub
    from gateway.outbox import Outbox
    from gateway.parking import Parked
    from gateway.session import Session

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)

MAX_WAITING_COMMANDS = 256
"""Commands of one connection that may wait behind one that waits for the store; one more is refused, but no abort."""

MAX_WAITING_ABORTS = 2 * MAX_WAITING_COMMANDS
"""So many wait with the aborts that nobody refuses; from there on the connection is read as fast as they are done."""

MESSAGES_PER_TURN = 32
"""Messages of one connection until the others, and its own replies, get their turn: one read of a socket may bring
thousands, and taking the next of them does not wait."""


MAX_ABORTS = 16
"""Aborts of one connection that may be on their way to other nodes; a further one waits its turn."""


_REFUSALS: dict[str, CloseCode] = {
    "forbidden": CloseCode.FORBIDDEN,
    "internal": CloseCode.INTERNAL,  # nobody can say yet who it is: it may come back
    "rate_limited": CloseCode.RATE_LIMITED,
}
"""How a connection ends whose hello was refused; any other way with 4401."""

FLOOD_PAUSE_S = 0.02
"""How long a connection that does not heed its rate then waits: refusing takes the others' time, too."""


class Endpoint:
    """Serves ``/ws``. Owns every connection's tasks and the clock that watches them."""

    def __init__(self, hub: Hub, authenticator: Authenticator, settings: Settings) -> None:
        self.hub = hub
        self.authenticator = authenticator
        self.settings = settings
        self.links: set[Link] = set()
        self.turns = Turns()
        self.limits = ConnectionLimits(
            max_frame_bytes=settings.max_frame_bytes,
            commands_per_s=settings.commands_per_s,
            heartbeat_s=settings.heartbeat_s,
            hello_timeout=settings.hello_timeout,
            auth_required=authenticator.required,
        )
        self.origins = _listed(settings.origins)
        self._hosts = _listed(settings.hosts)
        self._clock: asyncio.Task[None] | None = None
        each = settings.max_connections_per_principal if authenticator.required else 0
        self.connections = Quota("connections", each=each)
        self._addresses = Quota("connections from one address", each=settings.max_connections_per_address)

    def start(self) -> None:
        """Start watching deadlines."""
        self._clock = asyncio.create_task(self._watch_clock(), name="connection clock")

    async def stop(self) -> None:
        """Stop watching deadlines."""
        if self._clock is not None:
            await ended([self._clock])

    def refusal(self, origin: str | None, host: str | None) -> str | None:
        """Say why a request may not use this gateway, from its ``Origin`` and ``Host``; None if it may."""
        if not host_allowed(host, self._hosts):
            return "this host name is not allowed; see --hosts"
        if not origin_allowed(origin, host, self.origins):
            return "this origin is not allowed; see --origins"
        return None

    def cookie_token(self, headers: Mapping[str, str], *, reads: bool) -> str | None:
        """Give the token that a request's cookie carries; see :func:`~gateway.auth.cookie_token`."""
        return cookie_token(
            headers.get("cookie"),
            self.settings.cookie_name,
            origin=headers.get("origin"),
            host=headers.get("host"),
            origins=self.origins,
            reads=reads,
        )

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one WebSocket (an ASGI application)."""
        await receive()  # websocket.connect
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        offered = scope.get("subprotocols") or []
        if self.hub.draining:
            await _deny(receive, send, 503, "the server is shutting down", {"retry-after": "1"})
        elif (refusal := self.refusal(headers.get("origin"), headers.get("host"))) is not None:
            audit(
                "origin-refused",
                address=peer(scope),
                origin=headers.get("origin"),
                host=headers.get("host"),
                why=refusal,
            )
            await _deny(receive, send, 403, refusal)
        elif offered and frames.SUBPROTOCOL not in offered:
            await _deny(receive, send, 400, f"unknown subprotocol; known are: {frames.SUBPROTOCOL}")
        else:
            cookie = self.cookie_token(headers, reads=False)
            await self._serve(scope, receive, send, frames.SUBPROTOCOL if offered else None, cookie)

    async def _serve(
        self,
        scope: MutableMapping[str, Any],
        receive: Receive,
        send: Send,
        subprotocol: str | None,
        cookie: str | None,
    ) -> None:
        """Serve a socket that may connect, unless its address has too many."""
        address = peer(scope)
        if address is not None and is_loopback(address):
            address = None  # where one's own proxy is, and everybody behind it
        try:
            if address is not None:
                self._addresses.check(address)
        except CommandError as exc:
            await _deny(receive, send, 429, exc.message, {"retry-after": "1"})
            return
        if address is not None:
            self._addresses.take(address)
        accept: Message = {"type": "websocket.accept"}
        if subprotocol is not None:
            accept["subprotocol"] = subprotocol
        link = None
        try:
            await send(accept)
            speak: type[Link] = scope.get("gateway.link", Link)  # or one that speaks another dialect
            link = speak(self, receive, send, cookie, peer(scope))
            self.links.add(link)
            await link.serve()
        finally:
            if address is not None:
                self._addresses.release(address)
            if link is not None:
                self.links.discard(link)
                if link.principal:
                    self.connections.release(link.principal)

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
        "_aborts",
        "_address",
        "_connection",
        "_cookie",
        "_current",
        "_endpoint",
        "_out",
        "_pump",
        "_receive",
        "_taken",
        "_waiting",
        "_worker",
        "outbox",
        "owned",
        "principal",
        "task",
    )

    def __init__(
        self, endpoint: Endpoint, receive: Receive, send: Send, cookie: str | None, address: str | None
    ) -> None:
        self.principal = ""
        self._address = address
        self._cookie = cookie
        self.owned: set[Session | Parked] = set()
        self.task = asyncio.current_task()
        self._endpoint = endpoint
        self._receive = receive
        self._taken = Wakeup()  # set for each command that the worker takes: fewer commands wait
        self._connection = Connection(endpoint.limits, asyncio.get_running_loop().time())
        timeout_s = endpoint.settings.send_timeout
        self._pump = Pump(endpoint.turns, self._connection, receive, send, timeout_s, self._translation())
        self._out = self._pump.outbox
        self.outbox: Outbox | None = self._out
        self._waiting: list[tuple[Command, list[dict[str, Any]]]] = []  # an abort with the runs it has stopped already
        self._current: Command | None = None
        self._aborts: set[asyncio.Task[None]] | None = None  # on their way to other nodes, where there are any
        self._worker: asyncio.Task[None] | None = None

    def _translation(self) -> Callable[[bytes], Iterable[bytes]] | None:
        """Give what turns a message of ours into those of another dialect, if the client speaks one."""
        return None

    def reply(self, frame: frames.Frame) -> None:
        """Send a frame before any event; see :class:`~gateway.services.Caller`."""
        self._out.reply(frame)

    def go_away(self, retry_after_s: float) -> None:
        """Say that the server leaves; who is not welcomed yet hears it right after its ``welcome``."""
        if self._connection.welcomed:
            self.reply(frames.build("goaway", reason="drain", retry_after_s=retry_after_s))

    def close(self, code: CloseCode, reason: str, *, flush: bool = False) -> None:
        """End the connection once its replies (with ``flush`` its events too) have been sent."""
        self._pump.close(code, reason, flush=flush)

    # -- the reader

    async def serve(self) -> None:
        """Run the connection to its end, then apply the disconnect rule."""
        code: int | None = CloseCode.ABNORMAL
        try:
            code = await self._read()
        finally:
            # In a task of its own: a cancelled reader must not leave the owned runs behind.
            finish = asyncio.create_task(self._finish(code))
            await _outlive(finish)

    async def _read(self) -> int | None:
        taken = 0
        while True:
            message = await self._receive()
            taken += 1
            if taken % MESSAGES_PER_TURN == 0:
                await asyncio.sleep(FLOOD_PAUSE_S if self._connection.flooding else 0)
            if message["type"] == "websocket.disconnect":
                code: int | None = message.get("code")
                if code == CloseCode.NO_STATUS and "reason" not in message:
                    # uvicorn reports a lost TCP connection as 1005 too, but only a close frame has a reason.
                    return CloseCode.ABNORMAL
                return code
            # Also where sending has failed already: what a client said before it left takes effect.
            text = message.get("text")
            data = text if text is not None else message.get("bytes") or b""
            self._heard(data)
            while len(self._waiting) >= MAX_WAITING_ABORTS:  # aborts are not refused: read on when some are done
                await self._taken.wait()

    def _heard(self, data: str | bytes) -> None:
        """Take one message from the client."""
        for action in self._connection.receive(data, asyncio.get_running_loop().time()):
            self._act(action)

    def _act(self, action: Reply | Handle | Close) -> None:
        match action:
            case Reply(frame):
                self.reply(frame)
            case Handle(command):
                self._take(command)
            case Close(code, reason):
                if code == CloseCode.AUTH_EXPIRED:
                    audit("authentication-expired", address=self._address, principal=self.principal)
                elif code in (CloseCode.NO_HELLO, CloseCode.UNAUTHENTICATED):
                    audit("authentication-failed", address=self._address, why=reason)
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
                if runs is None and self._goes_apart(command):
                    return
                stopped = runs or []
            if isinstance(command, Ping):
                self.reply(frames.pong(command.id))
                return
        if len(self._waiting) >= MAX_WAITING_COMMANDS and not isinstance(command, Abort):
            refusal = CommandError("rate_limited", "too many commands are waiting", retry_after_s=1.0)
            self.reply(frames.error(refusal, command.id))
            return
        self._waiting.append((command, stopped))
        if self._worker is None:
            self._worker = asyncio.create_task(self._work())

    def _goes_apart(self, abort: Abort) -> bool:
        """Send an abort on its way to another node at once, past the commands that wait; False: it has to wait, too."""
        if not self._endpoint.hub.clustered:
            return False
        aborts = self._aborts = self._aborts or set()
        if len(aborts) >= MAX_ABORTS or self._starting(abort, found=False):
            return False
        task = asyncio.create_task(self._abort_apart(abort))
        aborts.add(task)
        task.add_done_callback(aborts.discard)
        return True

    async def _abort_apart(self, abort: Abort) -> None:
        try:
            await self._endpoint.hub.abort(self, abort)
        except CommandError as exc:
            self.reply(frames.error(exc, abort.id, abort.session_id))
        except Exception:
            self._internal_error(abort)

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
                self._taken.set()
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
        while self._out.crowded and not self._pump.broken:
            await self._pump.room.wait()

    def _refuse(self, code: CloseCode, reason: str) -> None:
        """End a connection that has not been welcomed; nothing that it sent behind its hello is carried out."""
        self._waiting.clear()
        self._taken.set()
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
            token = hello.token if hello.token is not None else self._cookie
            principal = await endpoint.authenticator.authenticate(token)
            if not first and principal.id != self.principal:
                raise CommandError("forbidden", "token: it belongs to another principal")
            if first:
                endpoint.connections.check(principal.id)
        except CommandError as exc:
            who = self.principal or None
            audit("authentication-failed", address=self._address, principal=who, code=exc.code, why=exc.message)
            self.reply(frames.error(exc, hello.id))
            if first:
                self._refuse(_REFUSALS.get(exc.code, CloseCode.UNAUTHENTICATED), exc.code)
            return
        now = asyncio.get_running_loop().time()
        expires = principal.expires_at
        connection.welcome(None if expires is None else _seconds_until(expires), now)
        if not first:
            self.reply(frames.ack("hello", hello.id, auth_expires_at=expires))
            return
        self.principal = self._out.principal = principal.id
        endpoint.connections.take(principal.id)
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

    # -- the clock, and the end

    def tick(self, now: float) -> None:
        """Look at the clock."""
        if not self._pump.broken:
            self._pump.tick(now)
        if not self._pump.broken:
            for action in self._connection.tick(now):
                self._act(action)

    async def _finish(self, code: int | None) -> None:
        """Let received commands take effect, then the disconnect rule."""
        await self._pump.stop()
        for task in (self._worker, *(self._aborts or ())):
            if task is not None:
                await asyncio.wait([task])
        grace_s = None
        if self._pump.closing is not None:
            code = self._pump.closing[0]
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
