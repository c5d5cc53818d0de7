"""What the black-box tests stand on: real server processes, a thin client, and checks of the contract's invariants.

Nothing here imports the product. The server is a process that can be killed, the client is a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import uuid4

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin, Subprotocol

from tests.e2e.fold import Fold, Frame, comparable, first_seq, is_event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
V1 = "agent-gateway.v1"
PATIENCE = 10.0
"""How long a test waits for a frame that must come."""

ABORT_ERROR = {"reason": "AbortError", "message": "Aborted", "code": None, "status_code": None, "retryable": None}
UNTIMED = frozenset({"text-delta", "reasoning-delta", "tool-input-delta", "tool-progress"})
CLOSING = {
    "approval-resolved": 0,
    "tool-result": 1,
    "tool-error": 1,
    "text-end": 2,
    "reasoning-end": 2,
    "step-finish": 3,
    "message-finish": 4,
    "run-finish": 5,
}
"""The closing order of invariant 3."""


def fresh(prefix: str = "s") -> str:
    """An id that no other test uses."""
    return f"{prefix}-{uuid4().hex}"


def spec(do: str, **options: Any) -> str:
    """The text of a prompt that makes `engines.director` play `do`."""
    return json.dumps({"do": do, **options})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Answer:
    """A reply to an HTTP request."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> str | None:
        """The error code in a JSON error."""
        found = self.body.get("code") or (self.body.get("error") or {}).get("code")
        return None if found is None else str(found)


class Process(Protocol):
    """What the tests need of a running server; `subprocess.Popen` is one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...

    def send_signal(self, sig: int) -> None: ...


class Server:
    """`gateway serve` as a process on its own port and database."""

    def __init__(
        self,
        folder: Path,
        engine: str = "director",
        *,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        port: int | None = None,
        cwd: Path = HERE,
        store: str | None = None,
    ) -> None:
        self.folder = folder
        self.store = store or f"sqlite:///{folder / 'g.db'}"
        self.cwd = cwd
        self.engine = engine
        self.args = list(args)
        self.env = dict(env or {})
        self.port = port or free_port()
        self.process: Process | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        if not self.engine:
            return [sys.executable, "-m", "gateway", "serve", "--port", str(self.port), *self.args]
        target = self.engine if ":" in self.engine or "-" in self.engine else f"engines:{self.engine}"
        base = [sys.executable, "-m", "gateway", "serve", target, "--port", str(self.port), "--store", self.store]
        return [*base, *self.args]

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("GATEWAY_")}
        return {**env, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "GATEWAY_COMMANDS_PER_S": "100000", **self.env}

    def spawn(self) -> Process:
        """Start the process and wait for nothing."""
        with (self.folder / "out.log").open("ab") as out, (self.folder / "err.log").open("ab") as err:
            self.process = subprocess.Popen(
                self.command(), cwd=self.cwd, env=self.environment(), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        return self.running

    def start(self) -> Self:
        """Start the process and wait until it serves."""
        self.spawn()
        return self.await_ready()

    def await_ready(self, patience: float = 90) -> Self:
        """Wait until the process serves."""
        process = self.running
        deadline = time.monotonic() + patience
        while not self.ready():
            if (code := process.poll()) is not None:
                raise AssertionError(f"the server ended with {code}:\n{self.logs()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the server did not become ready:\n{self.logs()}")
            time.sleep(0.02)
        return self

    def ready(self) -> bool:
        probe = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            probe.request("GET", "/readyz")
            return probe.getresponse().status == 200
        except OSError:
            return False
        finally:
            probe.close()

    def logs(self) -> str:
        names = ("out.log", "err.log")
        return "\n".join((self.folder / n).read_text(errors="replace") for n in names if (self.folder / n).exists())

    def stderr(self) -> str:
        return (self.folder / "err.log").read_text(errors="replace")

    @property
    def running(self) -> Process:
        assert self.process is not None, "not started"
        return self.process

    def kill(self) -> None:
        """`kill -9`."""
        self.running.kill()
        self.running.wait(PATIENCE)

    def terminate(self) -> None:
        """SIGTERM, and no wait."""
        self.running.send_signal(signal.SIGTERM)

    def exit_code(self, patience: float = 60) -> int:
        """Wait for the end of the process."""
        return self.running.wait(patience)

    async def exited(self, patience: float = 60) -> int:
        return await asyncio.to_thread(self.exit_code, patience)

    async def crash(self) -> None:
        """`kill -9`, then a new process on the same port and database."""
        self.kill()
        await self.restart()

    async def restart(self) -> None:
        await asyncio.to_thread(self.start)

    def close(self) -> None:
        """Leave nothing behind."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.kill()
        self.process.wait(PATIENCE)

    async def http(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with httpx.AsyncClient(base_url=self.origin, trust_env=False, verify=False, timeout=PATIENCE) as client:
            content = body if isinstance(body, str) or body is None else json.dumps(body)
            sent = {"content-type": "application/json", **(headers or {})} if body is not None else dict(headers or {})
            reply = await client.request(method, path, content=content, headers=sent)
        parsed = reply.json() if "json" in reply.headers.get("content-type", "") else reply.text
        return Answer(reply.status_code, parsed, reply.headers)

    async def snapshot(self, session: str, **headers: str) -> Frame:
        """`GET /api/sessions/{id}`."""
        answer = await self.http("GET", f"/api/sessions/{session}", headers=headers)
        assert answer.status == 200, answer
        body: Frame = answer.body
        return body

    def client(self, **options: Any) -> Client:
        return Client(self.port, **options)

    async def log(self, session: str) -> list[Frame]:
        """Every event of a session, one by one, as a fresh observer gets them from seq 0."""
        async with self.client() as reader:
            attached = await reader.ok("attach", session_id=session, seq=0, role="observer")
            if attached["seq"]:
                assert attached["recovery"] == "replay", attached
                await reader.caught_up(session, attached["seq"])
            return reader.events(session)


class View:
    """A conforming client's hold on one session: its cursor, its fold, and what went wrong."""

    def __init__(self) -> None:
        self.fold = Fold()
        self.attaching: set[str | None] = set()
        self.snapshot_due = False
        self.ignored = False
        """It left events out while it waited for an `attached`; where an error came instead, there is a hole."""
        self.applied: list[Frame] = []
        self.dropped: list[Frame] = []
        self.gaps: list[Frame] = []

    @property
    def seq(self) -> int:
        return self.fold.seq

    @property
    def epoch(self) -> str | None:
        return self.fold.epoch

    def feed(self, frame: Frame) -> bool:
        """Take a frame; true where the client has to attach again."""
        kind = frame["type"]
        if kind == "attached":
            self.attaching.discard(frame.get("id"))
            self.ignored = False
            self.snapshot_due = frame["recovery"] == "snapshot"
            if frame["recovery"] == "live" and frame["seq"] == 0:
                self.fold = Fold()
            self.fold.feed(frame)
            return False
        if kind == "snapshot":
            self.snapshot_due = False
            self.fold.feed(frame)
            return False
        if not is_event(frame):
            return False
        if self.attaching:
            self.ignored = True
            return False
        if self.snapshot_due:
            self.gaps.append(frame)
            return True
        verdict = self.fold.feed(frame)
        if verdict == "applied":
            self.applied.append(frame)
        elif verdict == "dropped":
            self.dropped.append(frame)
        elif not self.ignored:
            self.gaps.append(frame)
        return verdict == "gap"


class Client:
    """A thin client: it sends what it is told, records every frame, and keeps a view per session.

    `frames` is everything in the order of arrival. `until` reads on, in that order; `call` leaves what it is not
    waiting for to a later `until`.
    """

    def __init__(
        self,
        port: int,
        *,
        hello: bool = True,
        batch: bool = False,
        token: str | None = None,
        attach: list[Frame] | None = None,
        origin: str | None = None,
        subprotocols: Sequence[str] | None = (V1,),
        views: dict[str, View] | None = None,
        slow: bool = False,
    ) -> None:
        self.port = port
        self.hello = hello
        self.batch = batch
        self.token = token
        self.attach_first = attach
        self.origin = origin
        self.subprotocols = subprotocols
        self.slow = slow
        self.views: dict[str, View] = {} if views is None else views
        self.frames: list[Frame] = []
        self.messages: list[str | bytes] = []
        self.unread: deque[Frame] = deque()
        self.welcome: Frame = {}
        self._ws: ClientConnection | None = None

    @property
    def ws(self) -> ClientConnection:
        assert self._ws is not None, "not connected"
        return self._ws

    async def __aenter__(self) -> Self:
        await self.open()
        if self.hello:
            await self.greet()
        return self

    async def open(self) -> None:
        options: dict[str, Any] = {}
        if self.slow:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
            options = {"sock": sock, "max_queue": 1}
        self._ws = await connect(
            f"ws://127.0.0.1:{self.port}/ws",
            origin=None if self.origin is None else Origin(self.origin),
            subprotocols=None if self.subprotocols is None else [Subprotocol(s) for s in self.subprotocols],
            compression=None,
            proxy=None,
            ping_interval=None,
            open_timeout=PATIENCE,
            close_timeout=2,
            max_size=None,
            **options,
        )

    async def greet(self) -> None:
        fields: Frame = {"client": "blackbox"}
        if self.batch:
            fields["batch"] = True
        if self.token is not None:
            fields["token"] = self.token
        if self.attach_first is not None:
            fields["attach"] = self.attach_first
            for wanted in self.attach_first:
                self.view(wanted["session_id"]).attaching.add(None)
        self.welcome = await self.call("hello", **fields)
        assert self.welcome["type"] == "welcome", self.welcome

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self, code: int = 1000) -> None:
        """Close on purpose."""
        await self.ws.close(code)

    async def abandon(self) -> None:
        """Let go of the connection, if there is one, in whatever state it is."""
        if self._ws is not None:
            self._ws.transport.abort()
            await self._ws.wait_closed()

    async def close_without_code(self) -> None:
        """Send a close frame that bears no code (1005 at the other end)."""
        self.ws.protocol.send_close()
        self.ws.send_data()
        async with asyncio.timeout(PATIENCE):
            await self.ws.wait_closed()

    async def hang_up(self) -> None:
        """End the TCP connection in order (FIN), but without any close frame."""
        self.ws.transport.close()
        async with asyncio.timeout(PATIENCE):
            await self.ws.wait_closed()

    async def cut(self) -> None:
        """Reset the TCP connection: no close frame, no goodbye."""
        sock = self.ws.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.ws.transport.abort()
        async with asyncio.timeout(PATIENCE):
            await self.ws.wait_closed()

    # Sending

    async def send(self, frame: Frame) -> None:
        await self.ws.send(json.dumps(frame))

    async def send_raw(self, data: str | bytes) -> None:
        await self.ws.send(data)

    async def call(self, kind: str, *, timeout: float = PATIENCE, **fields: Any) -> Frame:
        """Send a command with an id and give back the reply to it."""
        command_id = fields.pop("id", None) or fresh("c")
        view = self.view(fields["session_id"]) if kind == "attach" and "session_id" in fields else None
        if view is not None:
            view.attaching.add(command_id)
        await self.send({"type": kind, "id": command_id, **fields})
        reply = await self.reply(command_id, timeout=timeout)
        if view is not None and reply["type"] == "error":
            view.attaching.discard(command_id)
        return reply

    async def reply(self, command_id: str, *, timeout: float = PATIENCE) -> Frame:
        kept: list[Frame] = []
        try:
            async with asyncio.timeout(timeout):
                while True:
                    frame = await self.next()
                    if frame.get("id") == command_id:
                        return frame
                    kept.append(frame)
        finally:
            self.unread.extendleft(reversed(kept))

    async def ok(self, kind: str, **fields: Any) -> Frame:
        reply = await self.call(kind, **fields)
        assert reply["type"] != "error", reply
        return reply

    async def fails(self, code: str, kind: str, **fields: Any) -> Frame:
        """Send a command that must be refused with this code."""
        reply = await self.call(kind, **fields)
        assert (reply["type"], reply.get("code")) == ("error", code), reply
        assert isinstance(reply["message"], str), reply
        assert isinstance(reply["retryable"], bool), reply
        return reply

    async def prompt(self, session: str | None, text: str = "Hi", **fields: Any) -> Frame:
        if session is not None:
            fields["session_id"] = session
        if "messages" not in fields:
            fields["text"] = text
        ack = await self.ok("prompt", **fields)
        assert (ack["type"], ack["command"]) == ("ack", "prompt"), ack
        return ack

    async def run(self, session: str, text: str = "Hi", **fields: Any) -> Frame:
        """Prompt and wait for the end of that run."""
        ack = await self.prompt(session, text, **fields)
        return await self.until("run-finish", run_id=ack["run_id"])

    async def holding(self, session: str, **options: Any) -> Frame:
        """Start a run that streams one word and then waits: for the abort, or for its gate file."""
        fields = options.pop("fields", {})
        ack = await self.prompt(session, spec("hold", **options), **fields)
        await self.until("text-delta", session_id=session, run_id=ack["run_id"])
        return ack

    async def barrier(self) -> None:
        """A round trip: what the server had sent before is here."""
        await self.ok("ping")

    # Receiving

    async def next(self) -> Frame:
        """The next frame; raises ConnectionClosed at the end."""
        if self.unread:
            return self.unread.popleft()
        message = await self.ws.recv()
        self.messages.append(message)
        parsed = json.loads(message)
        frames: list[Frame] = parsed if isinstance(parsed, list) else [parsed]
        for frame in frames:
            self.frames.append(frame)
            await self._take(frame)
        self.unread.extend(frames)
        return self.unread.popleft()

    async def _take(self, frame: Frame) -> None:
        session = frame.get("session_id")
        if session is None or frame["type"] in ("ack", "welcome", "pong", "goaway", "session-changed", "history"):
            return
        if frame["type"] == "error":
            self.view(session).attaching.discard(None)
            return
        view = self.view(session)
        if view.feed(frame):
            again = fresh("again")
            view.attaching.add(again)
            await self.send(
                {"type": "attach", "id": again, "session_id": session, "epoch": view.epoch, "seq": view.seq}
            )

    def view(self, session: str) -> View:
        return self.views.setdefault(session, View())

    def events(self, session: str) -> list[Frame]:
        return [f for f in self.frames if is_event(f) and f.get("session_id") == session]

    def tail(self) -> str:
        return "\n".join(["the last frames:", *(json.dumps(f)[:200] for f in self.frames[-12:])])

    async def until(self, kind: str, *, timeout: float = PATIENCE, **fields: Any) -> Frame:
        """Read on to the first frame of this type with these fields."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    frame = await self.next()
                    if frame["type"] == kind and all(frame.get(k) == v for k, v in fields.items()):
                        return frame
        except TimeoutError:
            raise AssertionError(f"no {kind} {fields} within {timeout} s; {self.tail()}") from None

    async def reach(self, done: Callable[[], bool], what: str, *, timeout: float = PATIENCE) -> None:
        """Read on until something holds."""
        try:
            async with asyncio.timeout(timeout):
                while not done():
                    await self.next()
        except TimeoutError:
            raise AssertionError(f"{what}: not within {timeout} s; {self.tail()}") from None

    async def caught_up(self, session: str, seq: int, *, timeout: float = PATIENCE) -> None:
        """Read on until the view of this session stands at `seq`."""
        await self.reach(lambda: self.view(session).seq >= seq, f"seq {seq}", timeout=timeout)

    async def idle(self, session: str, *, timeout: float = PATIENCE) -> None:
        """Read on until this session has been run, and is idle, as far as its view knows."""

        def done() -> bool:
            view = self.view(session)
            return view.seq > 0 and view.fold.status == "idle" and not view.attaching and not view.snapshot_due

        await self.reach(done, "idle", timeout=timeout)

    async def over(self, ack: Frame, *, timeout: float = PATIENCE) -> None:
        """Read on until an acked run has ended, as far as the view knows: by its events or by a snapshot."""
        view = self.view(ack["session_id"])

        def done() -> bool:
            ended = [m for m in view.fold.messages if m.get("run_id") == ack["run_id"] and m["completed_at"]]
            return bool(ended) and view.fold.run_id != ack["run_id"] and not view.snapshot_due

        await self.reach(done, "the end of the run", timeout=timeout)

    async def closed(self, *, timeout: float = PATIENCE) -> int:
        """Read on to the end of the connection and give back its close code."""
        async with asyncio.timeout(timeout):
            with contextlib.suppress(ConnectionClosed):
                while True:
                    await self.next()
        code = self.ws.close_code
        assert code is not None
        return code


async def agree(server: Server, client: Client, session: str, **headers: str) -> Frame:
    """The client's own fold and the server's snapshot are one transcript; gives back the snapshot."""
    snapshot = await server.snapshot(session, **headers)
    await client.caught_up(session, snapshot["seq"])
    view = client.view(session)
    mine = view.fold.state()
    keys = ("epoch", "seq", "status", "run_id", "pending", "queue")
    assert {k: mine[k] for k in keys} == {k: snapshot[k] for k in keys}
    theirs = comparable(snapshot["messages"])
    held = comparable(mine["messages"])
    if snapshot["has_more"]:
        held = held[-len(theirs) :]
    unlike = [(mine, its) for mine, its in zip(held, theirs, strict=False) if mine != its]
    assert held == theirs, (len(held), len(theirs), snapshot["has_more"], unlike[:1])
    assert not view.gaps, view.gaps
    return snapshot


def text_of(message: Frame, kind: str = "text") -> str:
    return "".join(p["text"] for p in message["parts"] if p["type"] == kind)


def types(events: Iterable[Frame]) -> list[str]:
    return [e["type"] for e in events]


def of_run(events: Iterable[Frame], run_id: str) -> list[Frame]:
    return [e for e in events if e["run_id"] == run_id]


def after_abort(events: Iterable[Frame], run_id: str) -> list[Frame]:
    """What a run still got after its abort-requested."""
    own = of_run(events, run_id)
    return own[types(own).index("abort-requested") + 1 :]


def check_log(events: list[Frame], *, finished: bool = True) -> None:
    """Hold a whole log, from its first event on, to invariants 1, 3 and 4."""
    expected = 1
    for e in events:
        assert first_seq(e) == expected, (expected, e)
        expected = e["seq"] + 1
        assert isinstance(e["session_id"], str), e
        assert isinstance(e["run_id"], str), e
        assert e["run_id"], e
        if e["type"] in UNTIMED:
            assert "time" not in e, e
        else:
            assert type(e["time"]) is int, e
            assert 1_500_000_000_000 < e["time"] < 5_000_000_000_000, e
    assert len({e["session_id"] for e in events}) <= 1
    started = [e["run_id"] for e in events if e["type"] == "run-start"]
    assert len(set(started)) == len(started), "a run starts once"
    for index, e in enumerate(events):
        if e["type"] == "run-start":
            assert e["mode"] in ("prompt", "resume"), e
            assert events[index + 1]["type"] == "message-start", "run-start and message-start are one commit"
            if e["mode"] == "prompt":
                assert events[index - 1]["type"] == "message-added", "message-added and run-start are one commit"
                assert events[index - 1]["run_id"] == e["run_id"]
    ids: dict[str, list[str]] = {"message_id": [], "part_id": [], "call_id": []}
    for run_id in started:
        _check_run(of_run(events, run_id), ids, finished=finished)
    for name, all_of in ids.items():
        assert len(set(all_of)) == len(all_of), f"{name} is unique in a session: {all_of}"


def _check_run(own: list[Frame], ids: dict[str, list[str]], *, finished: bool) -> None:
    open_messages: set[str] = set()
    open_parts: set[str] = set()
    open_calls: set[str] = set()
    open_steps: set[int] = set()
    known_calls: set[str] = set()
    rank: int | None = None
    finishes = 0
    for e in own:
        kind = e["type"]
        assert not finishes, f"after its run-finish: {e}"
        if rank is not None:
            assert kind in CLOSING, f"after abort-requested: {e}"
            assert CLOSING[kind] >= rank, f"closing order: {types(own)}"
            rank = CLOSING[kind]
        match kind:
            case "abort-requested":
                rank = 0
            case "message-start":
                ids["message_id"].append(e["message_id"])
                open_messages.add(e["message_id"])
            case "message-finish":
                open_messages.remove(e["message_id"])
            case "text-start" | "reasoning-start":
                assert e["message_id"] in open_messages, e
                ids["part_id"].append(e["part_id"])
                open_parts.add(e["part_id"])
            case "text-delta" | "reasoning-delta":
                assert e["part_id"] in open_parts, f"a delta of no open part: {e}"
            case "text-end" | "reasoning-end":
                open_parts.remove(e["part_id"])
            case "tool-input-start" | "tool-call":
                assert e["message_id"] in open_messages, e
                if e["call_id"] not in known_calls:
                    ids["part_id"].append(e["part_id"])
                    ids["call_id"].append(e["call_id"])
                    known_calls.add(e["call_id"])
                    open_calls.add(e["call_id"])
            case "tool-start" | "tool-progress" | "tool-input-delta":
                assert e["call_id"] in open_calls, e
            case "tool-result" | "tool-error":
                open_calls.remove(e["call_id"])
            case "step-start":
                open_steps.add(e["step"])
            case "step-finish":
                open_steps.remove(e["step"])
            case "run-finish":
                finishes += 1
    if finished:
        assert finishes == 1, f"exactly one run-finish: {types(own)}"
        assert ids["message_id"], "every run has at least one assistant message"
        assert not (open_messages | open_parts | open_calls), "a start without its end"
        assert not open_steps, "a step-start without its step-finish"
