"""The socket side of the client: connect, read, come back, leave."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never

import orjson
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as websocket_connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI

from gateway.client.backoff import Backoff
from gateway.client.errors import Closed, Unreachable
from gateway.client.session import Session
from gateway.client.state import Again, Answered, ClientState, Frame, Leave, Send, Updated, Welcomed
from protocol.codec import MAX_MESSAGE_BYTES, decode_message
from protocol.errors import CommandError, GatewayError, should_reconnect
from protocol.frames import SUBPROTOCOL

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

Token: TypeAlias = "str | Callable[[], Awaitable[str]] | None"
Status: TypeAlias = Literal["connecting", "open", "reconnecting", "closed"]

FIRST_HEARTBEAT_S = 15.0
"""The heartbeat to expect until the first welcome names one; from then on its own holds, on the next sockets too."""


def connect(
    url: str,
    token: Token = None,
    *,
    batch: bool = True,
    client: Any = None,
    on_status: Callable[[Status], None] | None = None,
    backoff: Backoff | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Gateway:
    """Give a gateway to enter with ``async with``.

    ``url``: ``ws://host:port/ws``. ``token``: a string, or an async function that gives a fresh one per connection.
    ``on_status`` hears of ``connecting``, ``open``, ``reconnecting`` and ``closed``. Entering raises
    :exc:`~gateway.client.Unreachable` where the first connection fails, :exc:`~gateway.client.Closed` where the server
    refuses it.
    """
    return Gateway(url, token, ClientState(batch=batch, client=client), on_status, backoff or Backoff(), sleep)


class Gateway:
    """A connection to a gateway that mends itself; made by :func:`connect`."""

    def __init__(
        self,
        url: str,
        token: Token,
        state: ClientState,
        on_status: Callable[[Status], None] | None,
        backoff: Backoff,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        self.closed: Closed | None = None
        """Why the connection is over for good, where it is."""
        self.status: Status = "connecting"
        self._url = url
        self._token = token
        self._state = state
        self._on_status = on_status
        self._backoff = backoff
        self._sleep = sleep
        self._socket: ClientConnection | None = None
        self._ready = False  # the hello and all that was unanswered are out
        self._heartbeat_s = FIRST_HEARTBEAT_S
        self._answers: dict[str, asyncio.Future[Frame]] = {}
        self._sessions: dict[str, Session] = {}
        self._news: dict[str, asyncio.Event] = {}
        self._later: set[asyncio.Task[None]] = set()  # attaches of the present socket that wait for their time
        self._opened: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Gateway:
        self._opened = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name="gateway client")
        try:
            await asyncio.shield(self._opened)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the socket (1000: on purpose, which ends runs that die with their owner) and wait for it."""
        task = self._task
        if task is None:
            return
        if self._opened is not None:
            self._opened.cancel()
        self._end(Closed(1000, "closed by this client"))
        task.cancel()
        await asyncio.wait([task])
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def session(self, session_id: str | None = None) -> Session:
        """Give the session ``session_id``, or one that its first prompt will make. No I/O."""
        session_id = session_id or f"ses_{uuid.uuid4().hex}"
        if session_id not in self._sessions:
            news = self._news[session_id] = asyncio.Event()
            self._sessions[session_id] = Session(self, self._state.session(session_id), news)
        return self._sessions[session_id]

    async def command(self, type_: str, *, id: str | None = None, **fields: Any) -> Frame:
        """Send a command (fields that are None stay out) and give its reply.

        It is sent again under the same id after every reconnect until it is answered. Raises
        :exc:`~protocol.errors.CommandError`, :exc:`~gateway.client.Closed`.
        """
        if self.closed is not None:
            raise Closed(self.closed.code, self.closed.reason)
        id_ = id or uuid.uuid4().hex
        frame = {"type": type_, "id": id_} | {name: value for name, value in fields.items() if value is not None}
        if id_ in self._answers:
            raise GatewayError(f"the command {id_} is on its way already")
        self._state.command(frame)
        answer = self._answers[id_] = asyncio.get_running_loop().create_future()
        try:
            await self._flush()
            reply: Frame = await answer
        finally:
            self._state.forget(id_)
            del self._answers[id_]
        if reply["type"] == "error":
            raise CommandError(reply["code"], reply["message"], retry_after_s=reply.get("retry_after_s"))
        return reply

    # -- inside: one task that reads and reconnects

    async def _run(self) -> None:
        socket: ClientConnection | None = None
        try:
            while True:
                if socket is None:
                    socket = await self._come_back()
                self._socket = socket
                closed = await self._serve(socket)
                self._ready = False
                if self._socket is not socket:
                    socket = self._socket  # the one that was opened after a goaway
                    continue
                socket = self._socket = None
                if not should_reconnect(closed.code):
                    self._end(closed)
                    return
                self._say("reconnecting")
                await self._sleep(self._backoff.next())
        except GatewayError as exc:
            self._end(exc if isinstance(exc, Closed) else Closed(1006, str(exc)), exc)
        except BaseException as exc:
            self._end(Closed(1006, "the client failed"), None if isinstance(exc, asyncio.CancelledError) else exc)
            raise
        finally:
            for open_socket in {socket, self._socket} - {None}:
                assert open_socket is not None
                await open_socket.close()

    async def _come_back(self) -> ClientConnection:
        while True:
            try:
                return await self._open()
            except (OSError, InvalidHandshake) as exc:
                if self._opened is not None and not self._opened.done():
                    raise Unreachable(f"no gateway at {self._url}: {_why(exc)}") from exc
                wait = self._backoff.next(_retry_after(exc))
            except InvalidURI as exc:
                raise Unreachable(f"{self._url} is no WebSocket address, such as ws://127.0.0.1:8000/ws") from exc
            await self._sleep(wait)

    async def _open(self) -> ClientConnection:
        return await websocket_connect(
            self._url,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]  # a NewType of str
            compression=None,
            open_timeout=10,
            close_timeout=2,
            ping_interval=None,  # the protocol has its own heartbeat
            max_size=2 * MAX_MESSAGE_BYTES,
        )

    async def _serve(self, socket: ClientConnection) -> Closed:
        """Say hello and read until the socket ends; a goaway opens the next one beside it."""
        leaving: asyncio.Task[None] | None = None
        try:
            token = self._token if self._token is None or isinstance(self._token, str) else await self._token()
            await socket.send(_text(self._state.hello(token)))
            self._ready = True
            await self._flush()
            while True:
                async with asyncio.timeout(2 * self._heartbeat_s):
                    message = await socket.recv()
                for frame in decode_message(message):
                    wait = await self._take(frame, socket)
                    if wait is not None and leaving is None:
                        leaving = asyncio.create_task(self._replace(socket, wait))
        except orjson.JSONDecodeError:
            return Closed(1007, "the server sent something that is not JSON")
        except TimeoutError:
            socket.transport.abort()
            return Closed(1006, "nothing heard for two heartbeats")
        except ConnectionClosed as exc:
            received = exc.rcvd
            if received is None:
                return Closed(1006, "connection lost")
            refusal = self._state.refusal
            return Closed(received.code, refusal["message"] if refusal is not None else received.reason)
        finally:
            helpers, self._later = self._later, set()
            if leaving is not None:
                helpers.add(leaving)
            for helper in helpers:
                helper.cancel()
            if helpers:
                await asyncio.wait(helpers)
            for helper in helpers:
                if not helper.cancelled() and (failure := helper.exception()) is not None:
                    raise failure

    async def _take(self, frame: Frame, socket: ClientConnection) -> float | None:
        """Carry out what a frame asks for; gives the seconds to wait after a goaway."""
        wait: float | None = None
        for action in self._state.receive(frame, current=socket is self._socket):
            match action:
                case Answered():
                    answer = self._answers.get(action.id)
                    if answer is not None and not answer.done():
                        answer.set_result(action.frame)
                case Updated():
                    self._wake(action.session_id)
                case Send():
                    await socket.send(_text(action.frame))
                case Welcomed():
                    self._heartbeat_s = action.heartbeat_s
                    self._backoff.reset()
                    self._say("open")
                    if self._opened is not None and not self._opened.done():
                        self._opened.set_result(None)
                case Leave():
                    wait = action.retry_after_s
                case Again():
                    self._later = {task for task in self._later if not _went_well(task)}
                    self._later.add(asyncio.create_task(self._attach_again(socket, action)))
                case _:
                    assert_never(action)
        return wait

    async def _attach_again(self, socket: ClientConnection, action: Again) -> None:
        await self._sleep(self._backoff.delay(action.attempt, action.retry_after_s))
        if socket is not self._socket:
            return  # the next socket's hello attaches
        frame = self._state.attach_again(action.session_id, action.id)
        if frame is not None:
            with suppress(ConnectionClosed):
                await socket.send(_text(frame))

    async def _replace(self, old: ClientConnection, wait: float) -> None:
        """Open the next socket while the old one still serves, then leave the old one."""
        while True:
            await self._sleep(self._backoff.next(wait))  # with jitter: everybody was told the same moment
            try:
                fresh = await self._open()
            except (OSError, InvalidHandshake) as exc:
                wait = _retry_after(exc)
                continue
            # From here on the old socket's events do not count: the new one starts where they end.
            self._socket, self._ready = fresh, False
            await old.close()
            return

    async def _flush(self) -> None:
        socket = self._socket
        if not self._ready or socket is None:
            return
        try:
            for frame in self._state.unsent():
                await socket.send(_text(frame))
        except ConnectionClosed:
            return  # the reader notices, and all goes out again on the next socket

    def _end(self, closed: Closed, error: BaseException | None = None) -> None:
        if self.closed is None:
            self.closed = closed
            self._say("closed")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Closed(self.closed.code, self.closed.reason))
        for session_id in self._news:
            self._wake(session_id)
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(error or self.closed)

    def _wake(self, session_id: str) -> None:
        news = self._news.get(session_id)
        if news is not None:
            news.set()

    def _say(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            if self._on_status is not None:
                self._on_status(status)


def _text(frame: Frame) -> str:
    return orjson.dumps(frame).decode()


def _went_well(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _why(exc: Exception) -> str:
    """Say in few words why a socket did not open."""
    if isinstance(exc, ConnectionRefusedError):
        return "connection refused"
    if isinstance(exc, TimeoutError):
        return "no answer in time"
    return str(exc) or type(exc).__name__


def _retry_after(exc: Exception) -> float:
    """Read Retry-After (seconds) of a refused handshake."""
    if isinstance(exc, InvalidStatus):
        value = exc.response.headers.get("Retry-After", "")
        if value.isdecimal():
            return min(float(value), 60.0)
    return 0.0
