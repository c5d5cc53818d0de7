"""It fits: nothing sticks out sideways, everything to press is big enough; and pictures of it, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.browser.page import painted
from tests.browser.test_main_job import STORY

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.async_api import BrowserContext

    from tests.browser.conftest import Sit
    from tests.browser.page import Desk
    from tests.e2e.support import Server

SIDEWAYS = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
SMALL = """() => [...document.querySelectorAll("button, summary, textarea")]
    .filter((e) => e.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
    .map((e) => [e.getAttribute("aria-label") || e.dataset.testid || e.textContent, e.getBoundingClientRect()])
    .filter(([, box]) => box.right > 0 && box.left < innerWidth && (box.height < 24 || box.width < 24))
    .map(([name, box]) => `${name}: ${Math.round(box.width)} x ${Math.round(box.height)}`)"""


async def take(me: Desk, album: Path, name: str) -> None:
    await painted(me.page)
    await me.page.screenshot(path=album / f"{name}.png")
    assert await me.page.evaluate(SIDEWAYS) <= 0, f"{name} scrolls sideways"
    assert await me.page.evaluate(SMALL) == [], f"{name}: too small to hit"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("form", ["desktop", "phone"], indirect=True)
async def test_it_fits(shared: Server, sit: Sit, context: BrowserContext, album: Path, form: str, scheme: str) -> None:
    me = await sit(shared)
    await me.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    await me.open()
    await expect(me.by("example").first).to_be_visible()
    await take(me, album, f"{form}-{scheme}-1-new")
    await me.begins(STORY)
    await take(me, album, f"{form}-{scheme}-2-streaming")
    await me.page.keyboard.press("Escape")
    await me.stopped()
    await take(me, album, f"{form}-{scheme}-3-stopped")
    await me.say("Show me a table and some code")
    await expect(me.answers).to_have_count(2)
    await me.finished()
    await take(me, album, f"{form}-{scheme}-4-table")
    await me.say("Show me some code")
    await expect(me.answers).to_have_count(3)
    await me.finished()
    await take(me, album, f"{form}-{scheme}-5-code")
    await me.say("Think and count to 100")
    await expect(me.by("tool-progress")).to_be_visible()
    await take(me, album, f"{form}-{scheme}-6-tool")
    await me.page.keyboard.press("Escape")
    await me.stopped()
    await me.say("fail")
    await expect(me.error).to_have_attribute("data-reason", "APIError")
    await me.finished()
    await take(me, album, f"{form}-{scheme}-7-failed")
    if form == "phone":
        await me.page.get_by_role("button", name="Conversations").tap()
        await expect(me.by("session-item").first).to_be_in_viewport()
        await me.page.wait_for_function(
            "() => document.getAnimations().every((animation) => animation.playState !== 'running')"
        )
        await take(me, album, f"{form}-{scheme}-8-drawer")
    await me.agrees()
