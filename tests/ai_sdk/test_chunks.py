"""A run told as chunks: however much of it comes as a snapshot, the page ends with the same answer."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from gateway.ai_sdk.chunks import Teller
from gateway.ai_sdk.pages import ui_messages
from protocol.transcript import Transcript
from tests.ai_sdk.page import Page, plain
from tests.protocol.streams import VECTORS

if TYPE_CHECKING:
    from pathlib import Path

Frame = dict[str, Any]


def frames_of(path: Path) -> tuple[list[Frame], Transcript]:
    """What of a vector applies, and where it ends."""
    transcript = Transcript()
    applied = []
    for frame in json.loads(path.read_text())["frames"]:
        if transcript.apply(copy.deepcopy(frame)) == "applied" and frame["type"] != "attached":
            applied.append(frame)
    return applied, transcript


def runs_of(transcript: Transcript) -> list[str]:
    return list(dict.fromkeys(m["run_id"] for m in transcript.messages if m["role"] == "assistant"))


def snapshot_at(frames: list[Frame]) -> Frame:
    transcript = Transcript()
    transcript.apply({"type": "attached", "seq": 0, "epoch": "e", "recovery": "live", "status": "idle"})
    for frame in copy.deepcopy(frames):
        transcript.apply(frame)
    return {**copy.deepcopy(transcript.state()), "type": "snapshot", "has_more": False}


def feed(teller: Teller, frame: Frame) -> list[Frame]:
    return list(teller.snapshot(frame) if frame["type"] == "snapshot" else teller.event(frame))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_the_page_ends_with_the_transcript(path: Path) -> None:
    frames, transcript = frames_of(path)
    answers = [m for m in ui_messages(transcript.messages) if m["role"] == "assistant"]
    for run_id, answer in zip(runs_of(transcript), answers, strict=True):
        page, teller = Page(), Teller(run_id, fresh=True)
        for frame in frames:
            page.take(feed(teller, frame))
        assert page.id == answer["id"]
        assert plain(page.parts) == plain(answer["parts"])
        assert (page.ending is not None) == (transcript.run_id != run_id)
        if page.ending is not None:
            assert not [part for part in page.parts if part.get("state") == "streaming"]


WHOLE = [path for path in VECTORS if not any(frame["type"] == "snapshot" for frame in frames_of(path)[0])]


@pytest.mark.parametrize("path", WHOLE, ids=lambda path: path.stem)
def test_a_snapshot_at_any_point_changes_nothing(path: Path) -> None:
    frames, transcript = frames_of(path)
    for run_id in runs_of(transcript):
        whole = [chunk for teller in [Teller(run_id, fresh=True)] for f in frames for chunk in feed(teller, f)]
        for cut in range(len(frames) + 1):
            if cut and frames[cut - 1]["type"] in ("message-added", "messages-removed"):
                continue  # a start is committed whole
            resumed, joined = Teller(run_id, fresh=True), Teller(run_id, fresh=True)
            late = feed(resumed, snapshot_at(frames[:cut]))
            again = [chunk for frame in frames[:cut] for chunk in feed(joined, frame)]
            if not joined.over:
                again += feed(joined, snapshot_at(frames[:cut]))
            for frame in frames[cut:]:
                late += feed(resumed, frame)
                again += feed(joined, frame)
            expected = Page().take(whole)
            assert Page().take(again).parts == expected.parts
            if resumed.over:  # else its messages were gone before it came
                assert plain(Page().take(late).parts) == plain(expected.parts)
                assert Page().take(late).ending == expected.ending


def test_an_aborted_run_ends_with_abort_and_its_parts_closed() -> None:
    frames, transcript = frames_of(next(p for p in VECTORS if p.stem.startswith("05")))
    page, teller = Page(), Teller(runs_of(transcript)[0], fresh=True)
    for frame in frames:
        page.take(feed(teller, frame))
    assert page.ending == {"type": "abort", "reason": "Aborted"}


RUN = {"run_id": "r", "session_id": "s", "time": 1}


def event(kind: str, **fields: Any) -> Frame:
    return {"type": kind, **RUN, **fields}


def asking() -> list[Frame]:
    call = {"call_id": "c", "tool": "rm", "input": {"at": "x"}}
    return [
        event("message-start", message_id="m", role="assistant"),
        event("text-start", message_id="m", part_id="p"),
        event("text-delta", message_id="m", part_id="p", text="May I?"),
        event("text-end", message_id="m", part_id="p"),
        event("tool-call", message_id="m", part_id="q", **call),
        event("approval-request", request_id="q1", **call),
    ]


def stamped(frames: list[Frame]) -> list[Frame]:
    start = event("run-start", mode="prompt")
    return [{**frame, "seq": n} for n, frame in enumerate([start, *frames], 1)]


def test_a_run_that_waits_for_a_person_ends_the_stream_and_goes_on_in_another() -> None:
    teller = Teller("r")
    before = Page()
    for frame in asking():
        before.take(teller.event(frame))
        assert not before.take(teller.pause()).ending or frame["type"] == "approval-request"
    assert before.ending == {"type": "finish", "finishReason": "tool-calls"}
    assert list(teller.event(event("tool-start", call_id="c"))) == []  # over is over

    # The person has decided; the page sends what it has back, and hears the rest.
    held = copy.deepcopy(before.parts)
    held[1].update(state="approval-responded", approval={"id": "q1", "approved": True})
    after = Page(held)
    goes_on = Teller("r", held=copy.deepcopy(held))
    assert after.take(goes_on.snapshot(snapshot_at(stamped(asking())))).ending is None
    for frame in (
        event("approval-resolved", request_id="q1", decision="allow"),
        event("tool-start", call_id="c"),
        event("tool-result", call_id="c", output="gone"),
        event("text-start", message_id="m", part_id="p2"),
        event("text-delta", message_id="m", part_id="p2", text="Done."),
        event("text-end", message_id="m", part_id="p2"),
        event("message-finish", message_id="m", finish_reason="stop", usage=None, error=None),
        event("run-finish", status="completed", reason=None, error=None, settled=True),
    ):
        after.take(goes_on.event(frame))
    assert [part.get("text") or part.get("output") for part in after.parts] == ["May I?", "gone", "Done."]


def test_a_tool_that_runs_holds_the_question_back() -> None:
    teller = Teller("r")
    running = [
        event("tool-call", message_id="m", part_id="o", call_id="d", tool="slow", input={}),
        event("tool-start", call_id="d"),
    ]
    for frame in [*asking(), *running]:
        list(teller.event(frame))
    assert list(teller.pause()) == []
    list(teller.event(event("tool-result", call_id="d", output=1)))
    assert [chunk["type"] for chunk in teller.pause()] == ["finish-step", "finish"]


def test_a_run_that_is_not_there_is_waited_for_once() -> None:
    nothing: Frame = {"type": "snapshot", "messages": [], "run_id": None, "queue": []}
    fresh, old = Teller("r", fresh=True), Teller("r")
    assert list(fresh.snapshot(nothing)) == []
    assert [chunk["type"] for chunk in fresh.snapshot(nothing)] == ["abort"]
    assert [chunk["type"] for chunk in old.snapshot(nothing)] == ["abort"]


def test_a_prompt_that_is_dequeued_is_aborted() -> None:
    teller = Teller("r", fresh=True)
    assert list(teller.event(event("queued", message={}))) == []
    assert list(teller.event(event("dequeued", reason="abort"))) == [{"type": "abort", "reason": "abort"}]
