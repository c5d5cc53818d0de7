"""A crowd on a server that is killed under it: what its clients do by the dice, and what all of them hold it to.

What any client has seen is there after the restart, no prompt runs twice, none that was acknowledged is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed, WebSocketException

from tests.e2e.fold import Fold, Frame, comparable, first_seq, is_event
from tests.e2e.support import check_log, fresh, spec

if TYPE_CHECKING:
    import random

    from tests.e2e.support import Client, Server, View

SESSIONS = 5
"""Sessions in use at a time."""
LIFE = 6
"""Rounds until a session is left for a new one: a log that is read whole after each crash should stay short."""

JOBS = (
    {"do": "words", "words": 100_000, "delay": 0.002},
    {"do": "words", "words": 8},
    {"do": "tools"},
    {"do": "tool_running", "text": True},
    {"do": "tool_called"},
    {"do": "tool_input"},
    {"do": "hold"},
    {"do": "stubborn"},
    {"do": "late"},
)


@dataclass(slots=True)
class Prompt:
    """A prompt as it was sent, and what came of it."""

    body: Frame
    acks: list[Frame] = field(default_factory=list)


@dataclass(slots=True)
class Viewer:
    """One client over all its connections: its views go with it, and so does everything it ever saw."""

    batch: bool
    views: dict[str, View] = field(default_factory=dict)
    client: Client | None = None
    reading: asyncio.Task[None] | None = None
    read: int = 0
    """Frames of this connection that are in `World.seen`."""


class World:
    """What the clients together know."""

    def __init__(self, server: Server, dice: random.Random) -> None:
        self.server = server
        self.dice = dice
        self.viewers = [Viewer(batch=True), Viewer(batch=False), Viewer(batch=True)]
        self.sessions = {fresh(): LIFE * (n + 1) // SESSIONS for n in range(SESSIONS)}
        self.prompts: dict[str, Prompt] = {}
        self.epochs: dict[str, str] = {}
        self.seen: dict[str, list[Frame]] = {}
        self.resumed: set[str] = set()
        self.counted: dict[str, int] = dict.fromkeys(
            ("events seen", "runs", "lost", "aborted", "resumed", "sent again", "duplicates", "dequeued", "cuts"), 0
        )

    # Clients

    async def connect(self, viewer: Viewer) -> None:
        """Come back with every cursor, as owner or as observer."""
        attach = [
            {"session_id": s, "epoch": v.epoch, "seq": v.seq, "role": self.dice.choice(("owner", "owner", "observer"))}
            for s, v in viewer.views.items()
            if s in self.sessions and v.epoch is not None
        ]
        viewer.client = self.server.client(batch=viewer.batch, views=viewer.views, attach=attach or None)
        viewer.read, viewer.reading = 0, None
        await viewer.client.__aenter__()
        viewer.reading = asyncio.create_task(self.read_on(viewer.client))

    @staticmethod
    async def read_on(client: Client) -> None:
        with contextlib.suppress(ConnectionClosed):
            while True:
                await client.next()

    async def cut(self, viewer: Viewer) -> None:
        """Lose the connection and come back, while everything runs."""
        assert viewer.client is not None
        assert viewer.reading is not None
        await viewer.client.cut()
        await viewer.reading
        self.take(viewer)
        await self.connect(viewer)
        self.counted["cuts"] += 1

    def take(self, viewer: Viewer) -> None:
        """Enter what a viewer has received since the last time."""
        if viewer.client is None:  # the kill came before it
            return
        for frame in viewer.client.frames[viewer.read :]:
            if is_event(frame):
                self.seen.setdefault(frame["session_id"], []).append(frame)
                self.counted["events seen"] += 1
            elif frame["type"] == "ack" and frame["command"] == "prompt":
                self.prompts[frame["id"]].acks.append(frame)
            elif frame["type"] in ("attached", "snapshot"):
                session = frame["session_id"]
                assert self.epochs.setdefault(session, frame["epoch"]) == frame["epoch"], "the epoch stays"
            elif frame["type"] == "error":
                assert frame["code"] in ("session_busy", "not_resumable", "session_not_found", "queue_full"), frame
        viewer.read = len(viewer.client.frames)

    # Doings

    async def act(self) -> None:
        """One thing that somebody does."""
        viewer = self.dice.choice(self.viewers)
        session = self.dice.choice(list(self.sessions))
        assert viewer.client is not None
        match self.dice.choices(("prompt", "queue", "abort", "resume", "again", "cut"), (6, 4, 3, 3, 2, 1))[0]:
            case "prompt" | "queue" as how:
                later = {"do": "words", "words": 100_000, "delay": 0.002}
                body: Frame = {"type": "prompt", "id": fresh("p"), "session_id": session}
                body["text"] = spec(**(self.dice.choice(JOBS) | {"resume": later}))
                if how == "queue":
                    body["on_busy"] = self.dice.choice(("queue", "queue", "interrupt"))
                self.prompts[body["id"]] = Prompt(body)
                await viewer.client.send(body)
            case "abort":
                await viewer.client.send({"type": "abort", "id": fresh("a"), "session_id": session})
            case "resume":
                command = fresh("r")
                self.resumed.add(command)
                await viewer.client.send({"type": "resume", "id": command, "session_id": session})
            case "again":
                known = [p for p in self.prompts.values() if p.body["session_id"] in self.sessions]
                if known:
                    self.counted["sent again"] += 1
                    await viewer.client.send(self.dice.choice(known).body)
            case "cut":
                await self.cut(viewer)

    async def crowd(self) -> None:
        """Connect, then act until the server is gone."""
        with contextlib.suppress(OSError, WebSocketException):
            for viewer in self.viewers:
                await self.connect(viewer)
            while True:
                await self.act()
                await asyncio.sleep(self.dice.uniform(0, 0.01))

    async def live(self, seconds: float) -> None:
        """All the clients, busy, until the kill: after so long, unless the server ends itself before."""
        loop = asyncio.get_running_loop()
        killing = loop.call_later(seconds, self.server.running.kill)
        try:
            async with asyncio.timeout(20):
                await self.crowd()
                for viewer in self.viewers:
                    if viewer.reading is not None:  # else the kill came into its handshake
                        await viewer.reading
        finally:
            killing.cancel()
        self.server.exit_code(10)
        for viewer in self.viewers:
            self.take(viewer)

    # After the restart

    async def check(self) -> None:
        """Hold the log and the snapshot of each session in use against everything that was seen of it."""
        async with self.server.client() as reader, self.server.client(batch=True) as other:
            logs: dict[str, list[Frame]] = {}
            for session in self.sessions:
                attached = await reader.call("attach", session_id=session, seq=0, role="observer")
                if attached["type"] == "error":
                    assert attached["code"] == "session_not_found", attached
                    assert not self.seen.get(session), "seen, and forgotten"
                    assert not any(p.acks for p in self.prompts.values() if p.body["session_id"] == session)
                    continue
                assert (attached["recovery"], attached["status"]) == ("replay", "idle"), attached
                assert attached["epoch"] == self.epochs.setdefault(session, attached["epoch"]), "the epoch stays"
                await reader.caught_up(session, attached["seq"])
                logs[session] = reader.events(session)
                await other.call("attach", session_id=session, role="observer")
                snapshot = await other.until("snapshot", session_id=session)
                self.check_snapshot(logs[session], snapshot)
            assert not any(view.gaps or view.dropped for view in reader.views.values())
        for session, log in logs.items():
            check_log(log)
            self.check_seen(session, log)
            self.check_prompts(session, log)

    @staticmethod
    def check_snapshot(log: list[Frame], snapshot: Frame) -> None:
        fold = Fold()
        for event in log:
            assert fold.feed(event) == "applied"
        assert snapshot["seq"] == fold.seq
        assert (snapshot["status"], snapshot["run_id"], snapshot["queue"]) == ("idle", None, [])
        theirs, mine = comparable(snapshot["messages"]), comparable(fold.messages)
        assert (mine[-len(theirs) :] if snapshot["has_more"] else mine) == theirs
        ends = [e["status"] for e in log if e["type"] == "run-finish"]
        assert snapshot["resumable"] == bool(ends and ends[-1] != "completed")

    def check_seen(self, session: str, log: list[Frame]) -> None:
        """Every event that anybody got is in the log with the same content."""
        for frame in self.seen.pop(session, []):
            first = first_seq(frame)
            assert frame["seq"] <= len(log), f"seen, and lost: {frame}"
            kept = log[first - 1 : frame["seq"]]
            if first == frame["seq"]:
                assert kept == [{k: v for k, v in frame.items() if k != "from"}]
            else:
                assert "".join(e["text"] for e in kept) == frame["text"]
                assert {(e["type"], e["part_id"]) for e in kept} == {(frame["type"], frame["part_id"])}

    def check_prompts(self, session: str, log: list[Frame]) -> None:
        """A prompt runs once at most, however often it was sent; one that was acknowledged is not forgotten."""
        starts: dict[str, list[str]] = {}
        for e in log:
            if e["type"] == "run-start" and e["mode"] == "prompt":
                starts.setdefault(e["command_id"], []).append(e["run_id"])
        gone = {e["run_id"] for e in log if e["type"] == "dequeued"}
        for command_id, prompt in self.prompts.items():
            if prompt.body["session_id"] != session:
                continue
            runs = {ack["run_id"] for ack in prompt.acks}
            assert len(runs) <= 1, "every ack names the same run"
            assert sum("duplicate" not in ack for ack in prompt.acks) <= 1, "only the first ack is no duplicate"
            started = starts.get(command_id, [])
            assert len(started) <= 1, f"run twice: {prompt.body}"
            for run in runs:
                assert started == [run] or (not started and run in gone), f"acknowledged, and lost: {prompt}"

    def renew(self) -> None:
        """Leave sessions behind whose time is over, and begin new ones."""
        for session in list(self.sessions):
            self.sessions[session] -= 1
            if self.sessions[session] > 0:
                continue
            del self.sessions[session]
            self.sessions[fresh()] = LIFE

    def count(self, logs: list[list[Frame]]) -> None:
        for log in logs:
            for e in log:
                if e["type"] == "run-finish":
                    self.counted["runs"] += 1
                    if e["status"] in self.counted:
                        self.counted[e["status"]] += 1
                self.counted["resumed"] += e["type"] == "run-start" and e["mode"] == "resume"
                self.counted["dequeued"] += e["type"] == "dequeued"
        self.counted["duplicates"] = sum("duplicate" in ack for p in self.prompts.values() for ack in p.acks)
