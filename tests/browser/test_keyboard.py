"""Everything that matters, with the keyboard alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.test_main_job import STORY

if TYPE_CHECKING:
    from tests.browser.conftest import Sit
    from tests.browser.page import Desk
    from tests.e2e.support import Server

FOCUSED = """() => {
    const { dataset, textContent } = document.activeElement;
    return dataset.testid ?? textContent;
}"""
RING = """() => {
    const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
}"""


async def tab_to(me: Desk, testid: str, key: str = "Tab") -> None:
    """Press Tab until the element has the focus; it must then show it."""
    for _ in range(600):  # past every session of the list, and the server is shared with other tests
        await me.page.keyboard.press(key)
        if await me.page.evaluate(FOCUSED) == testid:
            assert await me.page.evaluate(RING), f"{testid} does not show its focus"
            return
    raise AssertionError(f"no way to {testid} with {key}")


async def test_ask_stop_resume_and_change_the_conversation_without_a_mouse(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    keys = me.page.keyboard
    await expect(me.composer).to_be_focused()
    await keys.type("Tell me")
    await keys.press("Shift+Enter")
    await keys.type("a long story")
    await expect(me.composer).to_have_value("Tell me\na long story")
    await expect(me.answers).to_have_count(0)
    await keys.press("Enter")
    await expect(me.answers).to_have_count(1)
    await me.grows(20)
    await expect(me.composer).to_be_focused()

    await tab_to(me, "stop")
    await keys.press("Enter")
    await me.stopped()
    first = me.session

    await tab_to(me, "resume", "Shift+Tab")
    await keys.press("Space")
    await expect(me.answers).to_have_count(2)
    await me.grows(20)
    await keys.press("Escape")
    await me.stopped()
    await me.agrees()

    await tab_to(me, "new-session", "Shift+Tab")
    await keys.press("Enter")
    await expect(me.answers).to_have_count(0)
    await expect(me.composer).to_be_focused()
    await tab_to(me, "session-item", "Shift+Tab")
    while await me.page.evaluate("() => document.activeElement.dataset.sessionId") != first:
        await tab_to(me, "session-item", "Shift+Tab")
    await keys.press("Enter")
    await expect(me.answers).to_have_count(2)
    await me.agrees()


async def test_enter_in_an_empty_field_sends_nothing(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.composer.fill("   ")
    await me.composer.press("Enter")
    await expect(me.by("send")).to_be_disabled()
    await me.begins(STORY)
    assert len((await me.server.snapshot(me.session))["messages"]) == 2
    await me.page.keyboard.press("Escape")
    await me.stopped()


async def test_a_screen_reader_hears_what_goes_on(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    live = me.page.locator("[role=status][aria-live=polite]")
    await me.begins(STORY)
    await expect(live).to_have_text("The assistant is working")
    await me.page.keyboard.press("Escape")
    await expect(live).to_have_text("Stopped")
    await me.agrees()
