"""Event streams for tests: the shared vectors, and plausible sessions drawn by hypothesis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

Frame = dict[str, Any]
VECTORS = sorted((Path(__file__).parent.parent / "vectors").glob("*.json"))
DELTAS = {"text-delta", "reasoning-delta", "tool-input-delta"}


def load_vector(path: Path) -> dict[str, Any]:
    """Read one vector: name, about, frames, state."""
    vector: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return vector


def attached(seq: int = 0, **fields: Any) -> Frame:
    """Build an ``attached`` frame; live at an idle session's head unless told otherwise."""
    frame = {
        "type": "attached",
        "session_id": "s",
        "epoch": "e",
        "seq": seq,
        "recovery": "live",
        "status": "idle",
        "role": "owner",
    }
    return frame | fields


def merge(events: list[Frame], cuts: AbstractSet[int] = frozenset()) -> list[Frame]:
    """Merge neighbouring deltas of one part as a server may at send; never across a seq in ``cuts``."""
    out: list[Frame] = []
    for event in events:
        last = out[-1] if out else None
        if (
            last is not None
            and event["type"] in DELTAS
            and last["type"] == event["type"]
            and last["part_id"] == event["part_id"]
            and last["seq"] + 1 == event["seq"]
            and last["seq"] not in cuts
            and "truncated" not in last
            and "truncated" not in event
        ):
            out[-1] = {
                **last,
                "from": last.get("from", last["seq"]),
                "seq": event["seq"],
                "text": last["text"] + event["text"],
            }
        else:
            out.append(event)
    return out


_text = st.text(max_size=8)
_json = st.none() | st.integers(0, 9) | _text | st.dictionaries(st.sampled_from("ab"), st.integers(0, 9))
_usage = st.none() | st.fixed_dictionaries({"input_tokens": st.integers(0, 99), "output_tokens": st.integers(0, 99)})


class _Session:
    """Writes one session's log, event by event, obeying the contract's order."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.events: list[Frame] = []
        self.ids = 0

    def new(self, kind: str) -> str:
        self.ids += 1
        return f"{kind}_{self.ids}"

    def add(self, type_: str, run_id: str, **fields: Any) -> None:
        event = {"type": type_, "session_id": "s", "seq": len(self.events) + 1, "run_id": run_id, **fields}
        if type_ not in DELTAS and type_ != "tool-progress":
            event["time"] = 1000 + event["seq"]
        self.events.append(event)

    def message(self) -> Frame:
        parts = [{"type": "text", "text": self.draw(_text)}]
        return {"id": self.new("msg"), "role": "user", "parts": parts, "created_at": 1000}

    def run(self) -> None:
        run = self.new("run")
        draw = self.draw
        waiting = [self.new("run") for _ in range(draw(st.integers(0, 2)))]
        self.add("message-added", run, message=self.message(), command_id=run + "_c")
        self.add("run-start", run, mode="prompt", command_id=run + "_c")
        self.open_message(run)
        for queued in waiting:
            self.add("queued", queued, message=self.message())
        for step in range(1, draw(st.integers(0, 2)) + 1):
            self.add("step-start", run, message_id=self.message_id, step=step)
            for _ in range(draw(st.integers(0, 3))):
                draw(st.sampled_from([self.text, self.text, self.tool, self.custom, self.retry]))(run)
            self.add(
                "step-finish",
                run,
                message_id=self.message_id,
                step=step,
                finish_reason="stop",
                usage=draw(_usage),
            )
            if draw(st.booleans()):
                self.close_message(run, "steered")
                self.add("message-added", run, message=self.message())
                self.open_message(run)
        aborted = draw(st.booleans())
        if aborted:
            self.add("abort-requested", run, reason="user")
        for queued in waiting:
            self.add("dequeued", queued, reason="abort")
        self.close_message(run, "aborted" if aborted else "stop")
        self.add(
            "run-finish",
            run,
            status="aborted" if aborted else "completed",
            reason="user" if aborted else None,
            error=None,
            settled=True,
        )

    def open_message(self, run: str) -> None:
        self.message_id = self.new("msg")
        self.add("message-start", run, message_id=self.message_id, role="assistant")

    def close_message(self, run: str, reason: str) -> None:
        self.add(
            "message-finish",
            run,
            message_id=self.message_id,
            finish_reason=reason,
            usage=self.draw(_usage),
            error=None,
        )

    def text(self, run: str) -> None:
        kind = self.draw(st.sampled_from(["text", "reasoning"]))
        ids = {"message_id": self.message_id, "part_id": self.new("prt")}
        self.add(f"{kind}-start", run, **ids)
        for text in self.draw(st.lists(_text, max_size=5)):
            cut = {"truncated": True} if self.draw(st.integers(0, 9)) == 9 else {}
            self.add(f"{kind}-delta", run, **ids, text=text, **cut)
        self.add(f"{kind}-end", run, **ids)

    def tool(self, run: str) -> None:
        draw = self.draw
        call = {"call_id": self.new("call")}
        ids = {"message_id": self.message_id, "part_id": self.new("prt"), **call, "tool": "t"}
        if draw(st.booleans()):
            self.add("tool-input-start", run, **ids)
            for text in draw(st.lists(_text, max_size=3)):
                self.add("tool-input-delta", run, **ids, text=text)
            if draw(st.booleans()):
                self.add("tool-error", run, **call, error="cut", interrupted=True, outcome="not_run")
                return
        value = draw(_json)
        self.add("tool-call", run, **ids, input=value)
        if draw(st.booleans()):
            request = self.new("req")
            self.add("approval-request", run, request_id=request, **call, tool="t", input=value)
            decision = draw(st.sampled_from(["allow", "deny", "withdrawn", "expired"]))
            self.add("approval-resolved", run, request_id=request, decision=decision)
        self.add("tool-start", run, **call)
        for data in draw(st.lists(_json, max_size=2)):
            self.add("tool-progress", run, **call, data=data)
        if draw(st.booleans()):
            self.add("tool-result", run, **call, output=draw(_json))
        else:
            self.add("tool-error", run, **call, error="no", interrupted=False, outcome="failed")

    def custom(self, run: str) -> None:
        self.add("custom", run, message_id=self.message_id, name="c", data=self.draw(_json))

    def retry(self, run: str) -> None:
        self.add("retry", run, attempt=1, delay_s=0.5, error=None)


@st.composite
def logs(draw: st.DrawFn) -> list[Frame]:
    """Draw the log of a session with one or two runs, seq 1 … n."""
    session = _Session(draw)
    for _ in range(draw(st.integers(1, 2))):
        session.run()
    return session.events
