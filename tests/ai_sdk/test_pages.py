"""Messages as a page keeps them: into a prompt, and whose place one takes."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.ai_sdk.pages import prompt_message, replaced
from gateway.ai_sdk.requests import UIMessage


def said(id_: str, role: Any = "user", *parts: dict[str, Any]) -> UIMessage:
    return UIMessage(id=id_, role=role, parts=list(parts))


def session(*ids: str, has_more: bool = False) -> dict[str, Any]:
    """Users begin with ``u``."""
    return {"messages": [{"id": i, "role": "user" if i[0] == "u" else "assistant"} for i in ids], "has_more": has_more}


def test_texts_and_files_become_a_prompt() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "look"},
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAA=", "filename": "a.png"},
        {"type": "file", "mediaType": "image/png", "url": "https://example.com/b.png"},
        {"type": "data-mine", "data": 1},
    ]
    assert prompt_message(said("u1", "user", *parts)) == {
        "role": "user",
        "id": "u1",
        "parts": [
            {"type": "text", "text": "look"},
            {"type": "file", "media_type": "image/png", "name": "a.png", "data": "AAA="},
            {"type": "file", "media_type": "image/png", "url": "https://example.com/b.png"},
        ],
    }


@pytest.mark.parametrize("regenerate", [True, False])
@pytest.mark.parametrize(
    ("held", "page", "expected"),
    [
        (session("u1", "a1", "u2", "a2"), ["u1", "a1", "u2"], "u2"),  # known by its id
        (session("u1", "a1", "u-other", "a2"), ["u1", "a1", "u2"], "u-other"),  # by its place
        (session("u-other", "a2"), ["u2"], "u-other"),  # the only one
        (session("u1", "a1"), ["u1", "a1", "u2"], None),  # it never arrived: nothing is replaced
        (session(), ["u1"], None),
    ],
)
def test_what_a_message_takes_the_place_of(
    held: dict[str, Any], page: list[str], expected: str | None, regenerate: bool
) -> None:
    messages = [said(i, "user" if i[0] == "u" else "assistant") for i in page]
    assert replaced(held, messages, regenerate=regenerate) == expected


def test_a_message_without_a_place_never_takes_more_than_the_last_turn() -> None:
    held = session("u1", "a1", "u2", "a2")
    assert replaced(held, [said("u9")], regenerate=True) == "u2"
    assert replaced(held, [said("u9")], regenerate=False) == "u9"  # the session says that there is none
    assert replaced(session("u1", has_more=True), [said("u9")], regenerate=False) == "u9"
