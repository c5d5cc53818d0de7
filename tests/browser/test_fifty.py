"""Fifty sessions stream into one page: it paints as often as when nothing happens, and renders only what changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.test_pages import MODULES, build
from tests.e2e.support import text_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from tests.browser.conftest import Launch

MEASURE = "() => measure(2000)"
ALL = "([status, n]) => states().every((state) => state.status === status && state.n === n)"


async def test_fifty_sessions_stream_and_every_frame_is_painted(
    elsewhere: tuple[Path, str], launch: Launch, context: BrowserContext
) -> None:
    if not MODULES.is_dir():
        pytest.skip("the packages are not installed: npm ci, in web/")
    folder, origin = elsewhere
    (folder / "main.tsx").write_text(Path(__file__).with_name("fifty.tsx").read_text())
    await build(folder)
    server = launch("talkative:stream", GATEWAY_ORIGINS=origin, GATEWAY_COMMANDS_PER_S="1000")
    page = await context.new_page()
    await page.goto(f"{origin}/?gateway=ws://127.0.0.1:{server.port}/ws")
    await page.evaluate("() => prompt('hello')")
    await page.wait_for_function(ALL, arg=["idle", 2])
    await page.evaluate("() => prompt('go on')")
    await page.wait_for_function(ALL, arg=["running", 4])

    busy: dict[str, Any] = await page.evaluate(MEASURE)
    live = await page.evaluate("() => live()")
    await page.evaluate("() => abort()")
    await page.wait_for_function(ALL, arg=["idle", 4])
    for _ in range(50):  # the last change is known before it is painted
        if (await page.evaluate("() => measure(100)"))["commits"] == 0:
            break
    idle: dict[str, Any] = await page.evaluate(MEASURE)
    events = sum(busy["events"])
    print(
        f"{events} events: {busy['frames']} frames, {busy['commits']} commits, {busy['long']} long tasks; "
        f"at rest {idle['frames']} frames, {idle['long']} long tasks"
    )
    assert min(busy["events"]) > 0, "every one of them streams"
    assert idle["commits"] == 0
    assert idle["rendered"] == []
    # All that came between two paints is rendered in one go: not once per event, not once per session.
    assert busy["commits"] <= busy["frames"] + 2
    # Only the fifty answers that grow, each at most once a frame; the hundred and fifty others never.
    assert {name for name, _ in busy["rendered"]} == set(live)
    assert max(n for _, n in busy["rendered"]) <= busy["frames"] + 2
    # Measured against the same page on the same machine, with the server's and the browser's work beside it.
    assert busy["frames"] >= 0.7 * idle["frames"]
    for n in (0, 49):
        answer = (await server.snapshot(f"fifty-{n}"))["messages"][-1]
        shown = await page.locator("section").nth(n).locator("p").last.inner_text()
        assert text_of(answer).rstrip().endswith(shown.strip())
