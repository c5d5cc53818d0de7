"""The page is loaded again in every phase of a run, and each time is where the run is; then it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.page import painted
from tests.browser.test_main_job import both
from tests.e2e.support import check_log, text_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.browser.conftest import Launch, Sit


@both
async def test_a_reload_in_every_phase_of_a_run(
    launch: Launch, sit: Sit, form: str, tmp_path: Path, album: Path
) -> None:
    permits = tmp_path / "permits"
    permits.mkdir()
    # However long a reload takes here, it is no end of the run.
    server = launch("phases:engine", PHASES=str(permits), GATEWAY_DISCONNECT_GRACE="60", GATEWAY_ABORT_GRACE="60")
    me = await sit(server)
    await me.open()
    tool = me.by("tool")
    seen: list[str] = []

    async def again(phase: str, shown: Callable[[], Awaitable[None]]) -> None:
        """It is so, it is so after a reload, and then the run may go on."""
        await shown()
        before = await me.agrees()
        await painted(me.page)
        await me.page.screenshot(path=album / f"phase-{form}-{len(seen)}-{phase}.png")
        await me.page.reload()
        await me.connected()
        await shown()
        assert await me.agrees() == before, "nothing happened meanwhile"
        seen.append(phase)
        (permits / phase).touch()

    async def queued() -> None:
        await expect(me.by("queued-message")).to_contain_text("hello")
        await expect(me.stop).to_be_visible()

    async def started() -> None:
        await queued()
        await expect(me.answers).to_have_count(1)
        await expect(me.answers.locator(".dots")).to_be_visible()

    async def reasoning() -> None:
        await expect(me.page.locator(".thoughts")).to_have_text("Let me th")
        await expect(me.page.locator("[data-part-type=reasoning]")).to_have_attribute("open", "")

    async def text() -> None:
        await expect(me.answers.locator("[data-part-type=text]")).to_have_text("Half of a sen")
        await expect(me.page.locator("[data-part-type=reasoning]")).to_have_attribute("data-state", "done")

    async def argument() -> None:
        await expect(tool).to_have_attribute("data-state", "input-streaming")
        await expect(tool).to_contain_text('{"path": "a')

    async def approval() -> None:
        await expect(tool).to_have_attribute("data-state", "approval-requested")
        await expect(me.by("approval")).to_contain_text("Allow delete?")
        await expect(me.by("allow")).to_be_enabled()

    async def running() -> None:
        await expect(tool).to_have_attribute("data-state", "running")
        await expect(tool.locator("progress")).to_have_attribute("value", "0.5")

    async def finished() -> None:
        await expect(tool).to_have_attribute("data-state", "output-available")
        await expect(me.by("decision")).to_have_text("Approval: allowed")
        await expect(me.answers).to_have_count(2)
        await expect(me.answers.last).to_contain_text("You said hello.")
        await expect(me.resume).to_have_count(0)
        await me.finished()

    async def aborting() -> None:
        await expect(me.answers.last).to_contain_text("I go on.")
        await expect(me.stop).to_have_text("Stopping…")
        await expect(me.stop).to_be_disabled()

    await me.say("everything")
    await expect(me.stop).to_be_visible()
    await me.say("hello")
    await again("queued", queued)
    await again("started", started)
    await again("reasoning", reasoning)
    await again("text", text)
    await again("argument", argument)
    await again("approval", approval)
    await (me.by("allow").tap() if form == "phone" else me.by("allow").click())
    await again("running", running)
    await again("finished", finished)
    await me.say("stubborn")
    await expect(me.answers).to_have_count(3)
    await me.stop.click()
    await again("aborting", aborting)
    await me.stopped()
    await again("stopped", me.stopped)

    snapshot = await me.agrees()
    assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant"] * 3
    assert text_of(snapshot["messages"][1]) == "Half of a sentence.Done."
    log = await server.log(me.session)
    check_log(log)
    assert [e["type"] for e in log].count("run-start") == 3
    assert len(me.sockets) == len(seen) + 1, "one for each time the page was loaded"
