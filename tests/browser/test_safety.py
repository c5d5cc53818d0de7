"""What a model says is text, whatever it says; and the page does nothing that its own policy forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.evil import PAYLOADS
from tests.e2e.support import Server, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import Request

    from tests.browser.conftest import Launch, Sit

HACKED = "() => window.hacked"


async def test_the_policy_is_there_and_forbids_foreign_script(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    reply = await me.page.goto(shared.origin)
    assert reply is not None
    policy = (await reply.all_headers())["content-security-policy"]
    assert "script-src" in policy or "default-src 'self'" in policy
    assert "unsafe-inline" not in policy.replace("style-src 'self' 'unsafe-inline'", "")
    assert "unsafe-eval" not in policy
    await me.connected()
    ran = await me.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.hacked = 1";
            document.body.append(script);
            return window.hacked;
        }"""
    )
    assert ran is None, "the browser enforces it"
    assert any("Content Security Policy" in c for c in me.complaints)
    me.complaints.clear()


async def test_no_payload_runs_and_nothing_is_fetched_from_elsewhere(launch: Launch, sit: Sit) -> None:
    server = launch("evil:stream")
    me = await sit(server)
    foreign: list[str] = []
    note: Callable[[Request], None] = lambda r: None if r.url.startswith(server.origin) else foreign.append(r.url)  # noqa: E731
    me.page.on("request", note)
    await me.open()
    await me.say(PAYLOADS[0] + PAYLOADS[1] + PAYLOADS[4])
    await expect(me.answers).to_have_count(1)
    await expect(me.answers.last).to_contain_text("the end")
    await me.finished()
    for reload in (False, True):  # as it streamed in, and as a snapshot brings it
        if reload:
            await me.page.reload()
            await me.connected()
            await expect(me.answers.last).to_contain_text("the end")
        assert await me.page.evaluate(HACKED) is None
        log = me.by("transcript")
        for forbidden in ("script", "img", "iframe", "form", "style", "base", "meta", "svg[onload]", "[onerror]"):
            assert await log.locator(forbidden).count() == 0, forbidden
        for link in await log.locator("a").all():
            href = await link.get_attribute("href")
            assert href is not None
            assert href.startswith(("https://", "http://", "#")), href
            assert await link.get_attribute("rel") == "noopener noreferrer"
        for words in await log.get_by_text("a link", exact=True).all():
            await words.click()
        assert await me.page.evaluate(HACKED) is None
    assert not foreign
    snapshot = await server.snapshot(me.session)
    answer = snapshot["messages"][-1]
    assert [p["type"] for p in answer["parts"]].count("tool") == len(PAYLOADS)
    assert text_of(answer).startswith(PAYLOADS[0])
    assert await me.by("tool").locator(".name").all_inner_texts() == [
        " ".join(p["tool"].split()) if "\n" in p["tool"] else p["tool"] for p in answer["parts"] if p["type"] == "tool"
    ]
    assert await me.page.locator("[data-part-type=reasoning] .thoughts").text_content() == "".join(PAYLOADS)


async def test_a_title_is_text_too(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    await me.open()
    await me.say(PAYLOADS[1])
    await expect(me.answers).to_have_count(1)
    await expect(me.by("title")).to_contain_text("<img src=x")
    await expect(me.by("session-item").first).to_contain_text("<img src=x")
    await me.finished()
    assert await me.page.evaluate(HACKED) is None
    await me.agrees()
