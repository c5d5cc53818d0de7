"""What a model says is text, whatever it says; and the page does nothing that its own policy forbids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser.evil import PAYLOADS
from tests.browser.payloads import VECTORS
from tests.e2e.support import Server, text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.async_api import Request

    from tests.browser.conftest import Launch, Sit

HACKED = "() => window.hacked"

UNSAFE = """() => {
    const found = [];
    const forbidden = "script[src^=http],script:not([src]),iframe,object,embed,form[action],base,link[href*=evil],"
        + "img,image,video,audio,style,foreignObject,animate,set,math,template,meta[http-equiv]";
    const safe = new Set(["http:", "https:", "mailto:"]);
    for (const node of document.body.querySelectorAll("*")) {
        if (node.matches(forbidden)) found.push(node.outerHTML.slice(0, 200));
        for (const { name, value } of node.attributes) {
            if (name.startsWith("on") || name === "srcdoc") found.push(name + "=" + value);
            if (["href", "src", "action", "formaction", "xlink:href", "data", "poster"].includes(name)) {
                const protocol = new URL(value, document.baseURI).protocol;
                if (!safe.has(protocol)) found.push(name + "=" + value);
            }
            if (name === "style" && /url|expression|@import/i.test(value)) found.push(name + "=" + value);
        }
        if (node.matches("a[target=_blank]") && node.rel !== "noopener noreferrer") found.push("rel=" + node.rel);
    }
    return found;
}"""
"""All on the page that could run, load or lead to what it should not."""


async def test_the_policy_is_there_and_forbids_foreign_script(shared: Server, sit: Sit) -> None:
    me = await sit(shared)
    reply = await me.page.goto(shared.origin)
    assert reply is not None
    policy = (await reply.all_headers())["content-security-policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in policy
    assert "*" not in policy
    here = shared.origin.removeprefix("http://")
    assert rules["connect-src"] == f"'self' ws://{here} wss://{here}"
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


async def test_an_attackers_list_is_words_wherever_it_is_said(launch: Launch, sit: Sit) -> None:
    server = launch("evil:vectors")
    me = await sit(server)
    foreign: list[str] = []
    dialogs: list[str] = []
    me.page.on("request", lambda r: None if r.url.startswith((server.origin, "data:")) else foreign.append(r.url))
    me.page.on("dialog", lambda d: dialogs.append(d.message))
    await me.open()

    async def harmless() -> None:
        await me.page.evaluate("() => document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert await me.page.evaluate(UNSAFE) == []
        assert await me.page.evaluate(HACKED) is None
        assert not foreign
        assert not dialogs
        assert me.page.url.startswith(server.origin)

    await me.say("\n".join(VECTORS[:40]))  # a title of them, too
    await expect(me.answers.last).to_contain_text("the end", timeout=60_000)
    await me.finished()
    await harmless()
    await me.say("fail")
    await expect(me.error).to_have_attribute("data-reason", "APIError")
    await harmless()
    await me.say("ask")
    await expect(me.page.locator("[data-state=approval-requested]").first).to_be_visible()
    await harmless()
    await me.page.reload()  # the same by a snapshot
    await me.connected()
    await expect(me.page.locator("[data-state=approval-requested]").first).to_be_visible()
    await harmless()
    await me.stop.click()
    await me.stopped()
    title = await server.http("PATCH", f"/api/sessions/{me.session}", {"title": "".join(VECTORS[:5])})
    assert title.status == 200
    await expect(me.by("title")).to_contain_text("<script>window.hacked=1</script>")
    await harmless()
    await me.page.evaluate(
        """() => {
            const planted = document.createElement("a");
            planted.href = "javascript:window.hacked=1";
            document.body.append(planted);
        }"""
    )
    assert await me.page.evaluate(UNSAFE) == ["href=javascript:window.hacked=1"], "what is there is found"
