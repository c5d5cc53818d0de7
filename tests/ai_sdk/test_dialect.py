"""One connection, translated, without a loop: which commands a page's frames become, and whose answers come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.ai_sdk.dialect import Dialect
from gateway.ai_sdk.requests import BadRequest

Frame = dict[str, Any]
ATTACHED = {"type": "attached", "session_id": "c", "seq": 0, "recovery": "live"}


class Peer:
    """Both ends of a dialect."""

    def __init__(self) -> None:
        self.dialect = Dialect(max_frame_bytes=10_000)

    def hear(self, kind: str, request_id: str, **fields: Any) -> list[Frame]:
        """What a frame of the page is answered at once."""
        return list(self.dialect.hear(json.dumps({"type": kind, "requestId": request_id, **fields})))

    def say(self, request_id: str, text: str = "hi", token: str | None = None, **fields: Any) -> None:
        message = {"id": f"m-{request_id}", "role": "user", "parts": [{"type": "text", "text": text}]}
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        frame = {"id": "c", "trigger": "submit-message", "messages": [message], "headers": headers, **fields}
        assert self.hear("send", request_id, **frame) == []

    def commands(self, *kinds: str) -> list[Frame]:
        """What was asked for since the last look."""
        taken, self.dialect.commands[:] = list(self.dialect.commands), []
        return [command for command in taken if not kinds or command["type"] in kinds]

    def told(self, *frames: Frame) -> list[Frame]:
        return list(self.dialect.told(frames))


def event(seq: int, kind: str, run_id: str = "r", **fields: Any) -> Frame:
    return {"type": kind, "session_id": "c", "seq": seq, "run_id": run_id, **fields}


def ack(prompt: Frame, run_id: str = "r", **fields: Any) -> Frame:
    return {"type": "ack", "id": prompt["id"], "command": "prompt", "session_id": "c", "run_id": run_id, **fields}


def run(first: int, run_id: str = "r") -> list[Frame]:
    return [
        event(first, "message-start", run_id, message_id=f"a-{run_id}", role="assistant"),
        event(first + 1, "message-finish", run_id, finish_reason="stop", usage=None, error=None),
        event(first + 2, "run-finish", run_id, status="completed"),
    ]


def test_the_first_frame_opens_the_connection_and_only_the_first() -> None:
    peer = Peer()
    peer.say("1", token="t")
    hello, prompt = peer.commands()
    assert (hello["type"], hello["token"], hello["batch"]) == ("hello", "t", True)
    assert (prompt["type"], prompt["on_busy"], prompt["messages"][0]["id"]) == ("prompt", "queue", "m-1")
    peer.say("2", token="t")
    assert [command["type"] for command in peer.commands()] == ["prompt"]


def test_another_token_is_looked_at_before_anything_is_done_for_it() -> None:
    peer = Peer()
    peer.say("1", token="t")
    peer.commands()
    peer.say("2", token="u")
    peer.say("3", token="t")
    assert [(command["type"], command["token"]) for command in peer.commands()] == [("hello", "u")]
    refusal = {"type": "error", "id": "hello", "code": "forbidden", "message": "another principal"}
    assert peer.told(refusal) == [{"type": "error", "requestId": "2", "errorText": "another principal"}]
    assert [command["messages"][0]["id"] for command in peer.commands()] == ["m-3"]
    peer.say("4", token="v")
    peer.commands()
    assert peer.told({"type": "ack", "id": "hello", "command": "hello"}) == []
    assert [command["messages"][0]["id"] for command in peer.commands()] == ["m-4"]


def test_a_session_is_left_with_its_last_request_and_what_is_left_over_says_nothing() -> None:
    peer = Peer()
    peer.say("1")
    (prompt,) = peer.commands("prompt")
    answers = peer.told(ack(prompt), ATTACHED, *run(1))
    assert [answer["type"] for answer in answers] == ["chunk"] * 4 + ["end"]
    assert peer.commands() == [{"type": "detach", "session_id": "c"}]
    peer.say("2")
    (second,) = peer.commands("prompt")
    assert peer.told(*run(4, "other")) == []  # from before the detach
    answers = peer.told(ack(second, "s"), {**ATTACHED, "seq": 6}, *run(7, "s"))
    assert answers[0]["chunk"]["messageId"] == "a-s"


def test_a_duplicate_is_told_from_a_snapshot() -> None:
    peer = Peer()
    peer.say("1")
    (prompt,) = peer.commands("prompt")
    assert peer.told(ack(prompt, duplicate=True)) == []
    assert [command["type"] for command in peer.commands()] == ["attach"]


def test_an_event_that_came_before_says_nothing() -> None:
    peer = Peer()
    peer.say("1")
    (prompt,) = peer.commands("prompt")
    text = {"message_id": "a-r", "part_id": "p"}
    delta = event(3, "text-delta", **text, text="once")
    assert len(peer.told(ack(prompt), ATTACHED, run(1)[0], event(2, "text-start", **text), delta)) == 4
    assert peer.told(delta) == []


def test_abort_is_by_command_until_the_end_and_nobody_elses_after_it() -> None:
    peer = Peer()
    peer.say("1")
    (prompt,) = peer.commands("prompt")
    assert peer.hear("abort", "2") == []
    assert peer.commands() == []
    assert peer.hear("abort", "1") == []
    assert peer.hear("abort", "1") == []
    assert peer.commands() == [{"type": "abort", "session_id": "c", "command_id": prompt["id"]}]
    peer.told(ack(prompt), ATTACHED, *run(1))
    peer.commands()
    peer.hear("abort", "1")
    assert peer.commands() == []


def test_an_edit_that_is_aborted_before_the_session_is_known_is_never_sent() -> None:
    peer = Peer()
    peer.say("1", messageId="m-1")
    assert [command["type"] for command in peer.commands()] == ["hello", "attach"]
    peer.hear("abort", "1")
    snapshot = event(3, "snapshot", messages=[], queue=[], pending=[], has_more=False)
    answers = peer.told({**ATTACHED, "recovery": "snapshot"}, {**snapshot, "run_id": None})
    assert [answer.get("chunk", answer)["type"] for answer in answers] == ["abort", "end"]
    assert [command["type"] for command in peer.commands()] == ["detach"]


def test_a_resume_with_a_sequence_is_refused() -> None:
    with pytest.raises(BadRequest, match="lastSequence"):
        Peer().hear("resume", "1", id="c", lastSequence=3)


def test_a_heartbeat_says_something_that_no_page_waits_for() -> None:
    assert Peer().told({"type": "pong"}) == [{"type": "start", "requestId": "keep-alive"}]
