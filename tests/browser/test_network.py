"""Networks fail and servers die: the page says so, comes back by itself, and has lost and repeated nothing."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.test_main_job import STORY, THE_END, both
from tests.e2e.support import check_log, text_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from tests.browser.conftest import Launch, Sit
    from tests.browser.page import Proxy
    from tests.e2e.support import Server

TROUBLE = re.compile("reconnecting|offline")


@both
async def test_after_kill_9_the_page_comes_back_by_itself_and_resume_goes_on(
    launch: Launch, sit: Sit, form: str
) -> None:
    server = launch()
    me = await sit(server)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    server.kill()
    await expect(me.by("connection")).to_have_attribute("data-state", TROUBLE)
    seen = await me.answers.last.locator("[data-part-type=text]").inner_text()
    await server.restart()
    await me.connected()
    await expect(me.error).to_have_attribute("data-reason", "InterruptedError")
    await expect(me.error).to_contain_text("Interrupted")
    await me.finished()
    snapshot = await me.agrees()
    kept = text_of(snapshot["messages"][-1])
    assert "".join(kept.split()).startswith("".join(seen.split())), "what was on the page is still there"

    await (me.resume.tap() if form == "phone" else me.resume.click())

    await expect(me.answers).to_have_count(2)
    await me.grows(20)
    await me.finished()
    snapshot = await me.agrees()
    assert (kept + text_of(snapshot["messages"][-1])).endswith(THE_END)
    check_log(await server.log(me.session))


async def test_kill_9_again_and_again(launch: Launch, sit: Sit) -> None:
    server = launch()
    me = await sit(server)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    for turn in range(1, 4):
        server.kill()
        await expect(me.by("connection")).to_have_attribute("data-state", TROUBLE)
        await server.restart()
        await me.connected()
        await expect(me.error).to_have_attribute("data-reason", "InterruptedError")
        await me.finished()
        await me.agrees()
        await me.resume.click()
        await expect(me.answers).to_have_count(turn + 1)
        await me.grows(20)
    await me.stop.click()
    await me.stopped()
    await me.agrees()


async def test_what_is_said_without_a_server_is_sent_when_it_is_back_once(launch: Launch, sit: Sit) -> None:
    server = launch()
    me = await sit(server)
    me.network_may_fail = True
    await me.open()
    await me.say("Count to 1")
    await expect(me.by("tool")).to_have_attribute("data-state", "output-available")
    await me.finished()
    server.kill()
    await expect(me.by("connection")).to_have_attribute("data-state", TROUBLE)
    await me.say("Count to 2")
    await expect(me.page.locator("[data-local=true]")).to_have_text("Count to 2")
    await server.restart()
    await me.connected()
    await expect(me.answers).to_have_count(2)
    await expect(me.by("tool").last).to_have_attribute("data-state", "output-available")
    await me.finished()
    snapshot = await me.agrees()
    assert [text_of(m) for m in snapshot["messages"] if m["role"] == "user"] == ["Count to 1", "Count to 2"]


WATCH = """() => {
    window.shown = [];
    const watched = document.querySelector("[data-testid=connection]");
    const look = () => shown.push([watched.dataset.state, watched.textContent]);
    const all = { attributes: true, characterData: true, childList: true, subtree: true };
    new MutationObserver(look).observe(watched, all);
}"""
"""Note all that the page says of its connection, however short."""


@both
async def test_the_network_goes_and_comes_back(shared: Server, sit: Sit, context: BrowserContext, form: str) -> None:
    me = await sit(shared)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    await me.page.evaluate(WATCH)
    await context.set_offline(True)
    # Chromium says that it is offline, and only then cuts its sockets; one that lives on is rightly shown as connected.
    await me.page.wait_for_function("shown.some(([state, text]) => state === 'offline' && text.includes('Offline'))")
    await context.set_offline(False)
    await me.connected()
    await me.grows(20)
    await me.finished()
    snapshot = await me.agrees()
    assert text_of(snapshot["messages"][-1]).endswith(THE_END), "the run outlived the gap"


async def test_a_cut_connection_is_made_anew_and_nothing_is_lost(proxied: tuple[Server, Proxy], sit: Sit) -> None:
    server, proxy = proxied
    me = await sit(server, origin=proxy.origin)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    for _ in range(3):
        proxy.cut()
        await expect(me.by("connection")).to_have_attribute("data-state", TROUBLE)
        proxy.mend()
        await me.connected()
        await me.grows(10)
    await me.finished()
    snapshot = await me.agrees()
    assert text_of(snapshot["messages"][-1]).endswith(THE_END)
    assert len(me.open_sockets) == 1
    assert len(me.sockets) >= 4
    check_log(await server.log(me.session))


async def test_stop_pressed_without_a_connection_stops_when_it_is_back(proxied: tuple[Server, Proxy], sit: Sit) -> None:
    server, proxy = proxied
    me = await sit(server, origin=proxy.origin)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    proxy.cut()
    await expect(me.by("connection")).to_have_attribute("data-state", TROUBLE)
    await me.stop.click()
    await expect(me.stop).to_have_text("Stopping…")
    proxy.mend()
    await me.connected()
    await me.stopped()
    await me.agrees()


async def test_a_drained_server_is_followed_to_its_successor(launch: Launch, sit: Sit) -> None:
    """SIGTERM and a new start: what a deployment does."""
    server = launch(GATEWAY_DRAIN="0.2")
    me = await sit(server)
    me.network_may_fail = True
    await me.open()
    await me.begins(STORY)
    server.terminate()
    assert await server.exited() == 0
    await server.restart()
    await me.connected()
    await me.stopped()
    snapshot = await me.agrees()
    log = await server.log(me.session)
    check_log(log)
    assert log[-1]["reason"] == "shutdown"
    await me.resume.click()
    await expect(me.answers).to_have_count(2)
    await me.finished()
    assert len((await me.agrees())["messages"]) == len(snapshot["messages"]) + 1
