"""The main job, as a person does it: ask, watch, stop, go on; on a desktop and on a phone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.e2e.support import text_of

if TYPE_CHECKING:
    from tests.browser.conftest import Launch, Sit
    from tests.e2e.support import Server

both = pytest.mark.parametrize("form", ["desktop", "phone"], indirect=True)

STORY = "Tell me a long story"
THE_END = "has nothing left to do.\n"


@both
async def test_a_question_is_answered_word_by_word_and_stopped_with_the_button(
    shared: Server, sit: Sit, form: str
) -> None:
    me = await sit(shared)
    await me.open()
    await me.say(STORY)
    await expect(me.page.locator("[data-testid=message][data-role=user]")).to_have_text(STORY)
    await expect(me.answers).to_have_count(1)
    for _ in range(3):
        await me.grows(10)
    await expect(me.answers.last).to_have_attribute("data-live", "true")
    await expect(me.resume).to_have_count(0)

    await (me.stop.tap() if form == "phone" else me.stop.click())

    await me.stopped()
    snapshot = await me.agrees()
    assert snapshot["resumable"] is True
    said = text_of(snapshot["messages"][-1])
    assert said.startswith("Once there was a lighthouse keeper")
    assert THE_END not in said


async def test_escape_stops_too(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins(STORY)
    await me.page.keyboard.press("Escape")
    await me.stopped()
    await me.agrees()


@both
async def test_a_stopped_turn_is_resumed_where_it_stopped(shared: Server, sit: Sit, form: str) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins(STORY)
    await me.stop.click()
    await me.stopped()
    first = text_of((await me.agrees())["messages"][-1])

    await (me.resume.tap() if form == "phone" else me.resume.click())

    await expect(me.answers).to_have_count(2)
    await expect(me.resume).to_have_count(0)
    await me.grows(20)
    await me.finished()
    snapshot = await me.agrees()
    assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant", "assistant"]
    whole = first + text_of(snapshot["messages"][-1])
    assert whole.endswith(THE_END)
    assert whole.count("Once there was a lighthouse keeper") == 1


@both
async def test_after_a_stop_the_next_question_is_answered(shared: Server, sit: Sit, form: str) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins(STORY)
    await me.stop.click()
    await me.stopped()
    await me.say("Show me a table")
    await expect(me.answers).to_have_count(2)
    await me.finished()
    await expect(me.answers.last.locator("table")).to_be_visible()
    await expect(me.resume).to_have_count(0)
    await me.agrees()


@both
async def test_a_reload_in_the_middle_goes_on_without_loss_or_repetition(shared: Server, sit: Sit, form: str) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins(STORY)
    for _ in range(2):
        await me.page.reload()
        await me.connected()
        await expect(me.answers).to_have_count(1)
        await me.grows(10)
        await expect(me.answers.last).to_have_attribute("data-live", "true")
    await me.finished()
    snapshot = await me.agrees()
    assert snapshot["messages"][-1]["finish_reason"] == "stop"
    text = text_of(snapshot["messages"][-1])
    assert text.startswith("Once there was")
    assert text.endswith(THE_END)
    assert len(me.sockets) == 3, "one for each time the page was loaded"


async def test_two_tabs_are_in_step(shared: Server, sit: Sit) -> None:
    me, other = await sit(shared), await sit(shared)
    await me.open()
    await me.begins(STORY)
    await other.open(me.session)
    await expect(other.answers).to_have_count(1)
    await other.grows(20)
    await me.grows(20)
    await other.stop.click()
    await me.stopped()
    await other.stopped()
    assert await me.agrees() == await other.agrees()
    await me.resume.click()
    await expect(other.answers).to_have_count(2)
    await expect(other.resume).to_have_count(0)
    await other.grows(20)
    await other.page.close()
    await me.grows(20)
    await me.stop.click()
    await me.stopped()
    await me.agrees()


@both
async def test_a_slow_tool_is_shown_while_it_runs_and_stopped(shared: Server, sit: Sit, form: str) -> None:
    me = await sit(shared)
    await me.open()
    await me.say("Count to 500")
    tool = me.by("tool")
    await expect(tool).to_have_attribute("data-state", "running")
    await expect(tool.locator("progress")).to_be_visible()
    first = await tool.locator("progress").get_attribute("value")
    assert first is not None
    await expect(tool.locator("progress")).not_to_have_attribute("value", first)
    await me.stop.click()
    await me.stopped()
    await expect(tool).to_have_attribute("data-outcome", "interrupted")
    await expect(tool).to_contain_text("Interrupted")
    await me.agrees()


async def test_a_tool_that_ends_shows_its_result(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.say("Count to 2")
    await expect(me.by("tool")).to_have_attribute("data-state", "output-available")
    await me.finished()
    snapshot = await me.agrees()
    assert [p["output"] for p in snapshot["messages"][-1]["parts"] if p["type"] == "tool"] == [[1, 2]]


async def test_thinking_is_shown_apart_and_folds_away(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.say("Think, then answer")
    thoughts = me.page.locator("[data-part-type=reasoning]")
    await expect(thoughts).to_have_attribute("open", "")
    await me.finished()
    await expect(thoughts).not_to_have_attribute("open", "")
    await me.agrees()


async def test_a_failed_turn_says_why_and_can_be_resumed(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.say("fail please")
    await expect(me.error).to_have_attribute("data-reason", "APIError")
    await expect(me.error).to_contain_text("The scripted model was asked to fail")
    await me.resume.click()
    await expect(me.answers).to_have_count(2)
    await me.finished()
    await me.agrees()
    await expect(me.resume).to_have_count(0)


async def test_what_is_said_while_it_talks_is_queued_and_its_turn_comes(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins("Think, then answer")
    await me.say("Count to 1")
    await expect(me.by("queued-message")).to_contain_text("Count to 1")
    await expect(me.by("tool")).to_have_attribute("data-state", "output-available")
    await expect(me.by("queued-message")).to_have_count(0)
    await me.finished()
    snapshot = await me.agrees()
    assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant"] * 2


async def test_several_sessions_stream_on_one_socket(launch: Launch, sit: Sit) -> None:
    me = await sit(launch(GATEWAY_SCRIPTED_PACE="0.03"))
    await me.open()
    sessions = []
    for _ in range(3):
        await me.begins(STORY)
        sessions.append(me.session)
        await me.by("new-session").click()
        await expect(me.answers).to_have_count(0)
    assert len(set(sessions)) == 3
    for session in sessions:
        row = me.page.locator(f"[data-testid=session-item][data-session-id='{session}']")
        await expect(row).to_have_attribute("data-status", "running")
        await row.click()
        await expect(me.answers).to_have_count(1)
        await expect(me.stop).to_be_visible()
        await me.grows(10)
    assert len(me.sockets) == 1, "one WebSocket for the whole page"
    seen = set(re.findall(r'"session_id":\s*"([^"]+)"', "".join(me.frames)))
    assert set(sessions) <= seen, "all of them came over it"
    await me.stop.click()
    await me.stopped()
    await me.agrees()
    for session in sessions[:2]:
        await me.page.locator(f"[data-testid=session-item][data-session-id='{session}']").click()
        await expect(me.page).to_have_url(re.compile(session))
        await me.finished()
        snapshot = await me.agrees(session)
        assert text_of(snapshot["messages"][-1]).endswith(THE_END), "the others were not stopped"
    assert len(me.sockets) == 1


@both
async def test_the_examples_do_what_they_say(shared: Server, sit: Sit, form: str) -> None:
    me = await sit(shared)
    await me.open()
    example = me.by("example").filter(has_text="table and code")
    await (example.tap() if form == "phone" else example.click())
    await expect(me.answers).to_have_count(1)
    await me.finished()
    await expect(me.answers.locator("table")).to_be_visible()
    await expect(me.answers.locator("pre code")).to_be_visible()
    assert me.session
    await me.agrees()


async def test_the_address_is_the_conversation(shared: Server, sit: Sit) -> None:
    """Back, forward and a bookmark lead to what was on screen."""
    me = await sit(shared)
    await me.open()
    await me.say("Show me some code")
    await expect(me.answers).to_have_count(1)
    await me.finished()
    first = me.session
    await me.by("new-session").click()
    await me.say("What time is it?")
    await expect(me.by("tool")).to_be_visible()
    await me.finished()
    second = me.session
    assert first != second
    await me.page.go_back()
    await expect(me.page.locator("pre code")).to_be_visible()
    assert me.session == first
    await me.agrees()
    await me.open(second)
    await expect(me.by("tool")).to_be_visible()
    await me.agrees()


async def test_what_waited_when_it_was_stopped_comes_back_to_be_sent_again(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.begins("Tell me a long story")
    await me.say("Count to 1")
    await expect(me.by("queued-message")).to_contain_text("Count to 1")
    await me.stop.click()
    await expect(me.by("queued-message")).to_have_count(0)
    await expect(me.composer).to_have_value("Count to 1")
    await me.composer.press("Enter")
    await expect(me.by("tool")).to_have_attribute("data-state", "output-available")
