"""Random clients and random faults on a cluster, and what has to hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from typing import TYPE_CHECKING, Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.cluster.support import LONG, check_single_runner, eventually
from tests.e2e.fold import first_seq
from tests.e2e.support import Client, View, agree, check_log, fresh, of_run

if TYPE_CHECKING:
    from tests.cluster.support import Cluster, Node

Frame = dict[str, Any]

_SHOWN = ("type", "seq", "from", "epoch", "recovery", "status", "id", "code", "command_id", "run_id")

GONE = (OSError, InvalidHandshake, ConnectionClosed, TimeoutError)
"""What a client sees of a node that is dead, frozen or leaving."""


class Person:
    """A conforming client with a few sessions, who prompts, stops, resumes, moves and loses connections."""

    def __init__(self, cluster: Cluster, sessions: list[str], rng: random.Random, *, batch: bool) -> None:
        self.sessions = sessions
        self.acks: dict[str, list[Frame]] = {}
        self.stopped: set[str] = set()
        self.seen: list[Client] = []
        self.count = 0
        self._cluster = cluster
        self._rng = rng
        self._batch = batch
        self._views: dict[str, View] = {}
        self._client: Client | None = None

    async def connect(self, node: Node | None = None) -> Client:
        """Open a socket at a node that takes one, and go on where the last one ended."""
        deadline = time.monotonic() + LONG
        while True:
            for view in self._views.values():
                view.attaching.clear()
            attach = [
                {"session_id": session, "epoch": view.epoch, "seq": view.seq}
                for session, view in self._views.items()
                if view.epoch is not None and not view.snapshot_due
            ]
            chosen = node or self._rng.choice(self._cluster.nodes)
            client = chosen.client(views=self._views, attach=attach, batch=self._batch)
            try:
                async with asyncio.timeout(3):
                    await client.open()
                    await client.greet()
            except GONE:
                await client.abandon()
                assert time.monotonic() < deadline, "no node takes a client"
                await asyncio.sleep(0.1)
                continue
            self._client = client
            self.seen.append(client)
            return client

    async def act(self, count: int) -> None:
        """Do so many things, whatever happens to the cluster meanwhile."""
        for _ in range(count):
            client = self._client or await self.connect()
            try:
                await self._something(client)
                client = self._client or await self.connect()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._rng.uniform(0.02, 0.4)):
                        while True:
                            client.unread.appendleft(await client.next())
                            client.unread.clear()
                if any(frame["type"] == "goaway" for frame in client.frames):
                    await self._leave(client, politely=True)
            except GONE:
                await self._leave(client, politely=False)
        if self._client is not None:
            await self._leave(self._client, politely=True)

    async def _leave(self, client: Client, *, politely: bool) -> None:
        if self._client is client:
            self._client = None
        with contextlib.suppress(*GONE):
            await (client.close(4000) if politely else client.cut())
        await client.abandon()

    async def _something(self, client: Client) -> None:
        rng, session = self._rng, self._rng.choice(self.sessions)
        match rng.choices(["prompt", "abort", "resume", "history", "attach", "move", "cut"], [8, 3, 2, 1, 2, 1, 1])[0]:
            case "prompt":
                await self._prompt(session)
            case "abort":
                reply = await client.call("abort", session_id=session, timeout=8)
                if reply["type"] == "ack":
                    self.stopped |= {run["run_id"] for run in reply["runs"] if run["state"] == "requested"}
            case "resume":
                command = fresh("c")
                reply = await client.call("resume", session_id=session, id=command, on_disconnect="continue", timeout=8)
                if reply["type"] == "ack":
                    self.acks.setdefault(command, []).append(reply)
            case "history":
                await client.call("history", session_id=session, timeout=8)
            case "attach":
                view = self._views.get(session)
                place = {} if view is None or view.epoch is None else {"epoch": view.epoch, "seq": view.seq}
                await client.call("attach", session_id=session, timeout=8, **place)
            case "move":
                await self._leave(client, politely=True)
            case "cut":
                await self._leave(client, politely=False)

    async def _prompt(self, session: str) -> None:
        """Send a prompt, again with the same id as long as nobody knows whether it arrived."""
        rng, command = self._rng, fresh("c")
        self.count += 1
        body = {
            "session_id": session,
            "text": json.dumps({"steps": rng.randint(1, 25), "pause": rng.choice([0, 0.01, 0.03])}),
            "on_busy": rng.choice(["reject", "queue", "queue", "interrupt"]),
            "on_lost": rng.choice(["seal", "resume"]),
            "on_disconnect": "continue",
        }
        for _ in range(rng.randint(1, 4)):
            client = self._client or await self.connect()
            try:
                reply = await client.call("prompt", id=command, timeout=rng.choice([0.3, 5]), **body)
            except GONE:
                await self._leave(client, politely=False)
                continue
            if reply["type"] == "ack":
                self.acks.setdefault(command, []).append(reply)
                if rng.random() < 0.8:
                    return  # else once more, although it is known
            elif not reply["retryable"]:
                raise AssertionError(reply)
            else:
                await asyncio.sleep(0.05)

    # -- afterwards

    def check_acks(self, logs: dict[str, list[Frame]]) -> None:
        """Each command had one effect, and what was acked is in the log, whatever happened since."""
        for command, acks in self.acks.items():
            assert len({(ack["session_id"], ack["run_id"]) for ack in acks}) == 1, acks
            assert sum(not ack.get("duplicate", False) for ack in acks) <= 1, acks
            log = logs[acks[0]["session_id"]]
            started = [e for e in log if e["type"] == "run-start" and e.get("command_id") == command]
            queued = [e for e in log if e["type"] == "queued" and e.get("command_id") == command]
            assert len(started) <= 1, started
            assert started or queued, f"acked and gone: {acks}"
            own = of_run(log, acks[0]["run_id"])
            assert own[-1]["type"] in ("run-finish", "dequeued"), own[-1]

    def check_frames(self, logs: dict[str, list[Frame]]) -> None:
        """What any of the sockets got, in its order: nothing that the log has not, acks before events, no gaps."""
        for client in self.seen:
            place: dict[str, int] = {}
            acked: set[str] = set()
            for frame in client.frames:
                session = frame.get("session_id", "")
                if frame["type"] == "ack" and "run_id" in frame:
                    acked.add(frame["run_id"])
                if session not in logs:
                    continue
                if frame["type"] in ("attached", "snapshot"):
                    place[session] = -1
                elif "seq" in frame and "run_id" in frame:
                    self._check_event(frame, logs[session])
                    if place.get(session, -1) >= 0:
                        assert first_seq(frame) == place[session] + 1, f"a hole before {frame}\n{self._story(session)}"
                    place[session] = frame["seq"]

    def _check_event(self, frame: Frame, log: list[Frame]) -> None:
        same = log[first_seq(frame) - 1 : frame["seq"]]
        assert same, f"seen, and not in the log: {frame}"
        if len(same) == 1:
            assert {k: v for k, v in frame.items() if k != "from"} == same[0]
        else:
            assert frame["text"] == "".join(e["text"] for e in same)
            assert {(e["type"], e["run_id"], e["part_id"]) for e in same} == {
                (frame["type"], frame["run_id"], frame["part_id"])
            }

    async def check_agreement(self, node: Node) -> None:
        """After all that, this client's transcript is the server's."""
        client = await self.connect(node)
        for session, view in self._views.items():
            if view.epoch is not None:
                try:
                    await agree(node, client, session)
                except AssertionError as exc:
                    exc.add_note(self._story(session))
                    raise
        await client.close()

    def _story(self, session: str) -> str:
        """What the sockets of this client got of a session, a line each, the last of it."""
        lines = []
        for number, client in enumerate(self.seen):
            port = client.port
            for frame in client.frames:
                if frame.get("session_id") == session:
                    shown = {k: v for k, v in frame.items() if k in _SHOWN}
                    lines.append(f"socket {number} to {port}: {json.dumps(shown)}")
        return "\n".join(lines[-400:])


class Chaos:
    """Breaks one thing after the other, and mends it."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.done: list[str] = []
        self._cluster = cluster
        self._rng = rng
        self._lease = float(cluster.nodes[0].env["GATEWAY_LEASE_S"])

    async def act(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
            name = self._rng.choice(
                [
                    "kill",
                    "kill",
                    "freeze",
                    "freeze",
                    "redis",
                    "cut redis",
                    "mute redis",
                    "cut store",
                    "mute store",
                    "roll",
                ]
            )
            node = self._rng.choice(self._cluster.nodes)
            self.done.append(f"{name} {self._cluster.nodes.index(node)}")
            await self._break(name, node, self._rng.uniform(0.2, 1.6) * self._lease)

    async def _break(self, name: str, node: Node, seconds: float) -> None:
        match name:
            case "kill":
                node.kill()
                await asyncio.sleep(seconds / 2)
                await asyncio.to_thread(node.start)
            case "freeze":
                node.freeze()
                await asyncio.sleep(seconds)
                node.thaw()
            case "redis":
                self._cluster.redis.stop()
                await asyncio.sleep(seconds / 2)
                await asyncio.to_thread(self._cluster.redis.start)
            case "roll":
                node.terminate()
                await node.left()
                await asyncio.to_thread(node.start)
            case _:
                what, which = name.split()
                line = node.to_redis if which == "redis" else node.to_database
                (line.cut if what == "cut" else line.silence)()
                await asyncio.sleep(seconds)
                line.mend()


async def at_rest(cluster: Cluster, session: str) -> list[Frame]:
    """Wait until every node serves and agrees that a session is idle; gives its log."""
    answers: list[Any] = []

    async def same() -> list[Frame] | None:
        answers.clear()
        for node in cluster.nodes:
            answers.append(await node.http("GET", f"/api/sessions/{session}"))
        snapshots = [answer.body for answer in answers if answer.status == 200]
        if len(snapshots) < len(answers) or any(snapshot != snapshots[0] for snapshot in snapshots):
            return None
        if snapshots[0]["status"] != "idle" or snapshots[0]["queue"]:
            return None
        return await cluster.nodes[0].log(session) or None

    try:
        found: list[Frame] = await eventually(same, f"all nodes agree on {session}", timeout=2 * LONG)
    except AssertionError as exc:
        for node, answer in zip(cluster.nodes, answers, strict=False):
            body = dict(answer.body)
            messages = json.dumps(body.pop("messages", None))
            exc.add_note(f"node {cluster.nodes.index(node)}: {answer.status} {body} {messages[-1500:]}")
            exc.add_note(node.logs()[-3000:])
        raise
    return found


async def play(cluster: Cluster, seed: int, *, people: int, actions: int, faults: int) -> int:
    """One round: people act while things break; then all of it is checked. Gives how many prompts there were."""
    rng = random.Random(seed)
    sessions = [fresh() for _ in range(3)]
    for session in sessions:
        async with cluster.nodes[rng.randrange(len(cluster.nodes))].client() as first:
            await first.run(session, "hello")
    crowd = [Person(cluster, sessions, random.Random(rng.random()), batch=bool(n % 2)) for n in range(people)]
    chaos = Chaos(cluster, random.Random(rng.random()))
    try:
        async with asyncio.TaskGroup() as tasks:
            for person in crowd:
                tasks.create_task(person.act(actions))
            tasks.create_task(chaos.act(faults))
        logs = {session: await at_rest(cluster, session) for session in sessions}
        for log in logs.values():
            check_log(log)
            commands = [e["command_id"] for e in log if e["type"] == "run-start" and "command_id" in e]
            assert len(commands) == len(set(commands)), "a command ran twice"
        for person in crowd:
            person.check_acks(logs)
            person.check_frames(logs)
            await person.check_agreement(rng.choice(cluster.nodes))
        check_single_runner(cluster)
        starts = [session for what, session, mode, *_ in cluster.executed() if what == "start" and mode == "prompt"]
        for session, log in logs.items():
            begun = sum(e["type"] == "run-start" and e["mode"] == "prompt" for e in log)
            assert starts.count(session) <= begun, "an engine ran what no log has"
    except BaseException as exc:
        exc.add_note(f"seed {seed}; faults: {', '.join(chaos.done)}")
        raise
    return sum(person.count for person in crowd)
