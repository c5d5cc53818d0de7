"""The README's pages, as their readers run them: from an origin of their own, in a real browser, on a real server."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.browser.test_main_job import STORY, THE_END
from tests.e2e.support import check_log, text_of

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext

    from tests.browser.conftest import Launch

ROOT = Path(__file__).parents[2]
MODULES = ROOT / "web" / "node_modules"
SHOWN = dict(
    re.findall(
        r"<!-- file: (web/examples/\S+) -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL
    )
)
DOCUMENTED = "127.0.0.1:8000"
"""Where the README's gateway listens; a test's listens elsewhere."""

INDEX = '<!doctype html><title>Chat</title><div id="root"></div><script type="module" src="./main.tsx"></script>'
CONFIG = """
import react from "@vitejs/plugin-react";
import { defaultClientConditions } from "vite";

export default {
  plugins: [react()],
  // The SDK as it is now, not as it was last built.
  resolve: { conditions: ["agent-gateway-source", ...defaultClientConditions] },
  build: { target: "es2022" },
  logLevel: "warn",
};
"""


TWICE = re.compile("Once there was a lighthouse.*Once there was a lighthouse", re.DOTALL)


async def build(folder: Path) -> None:
    """Bundle `main.tsx`, with the packages of the workspace."""
    (folder / "node_modules").symlink_to(MODULES)
    (folder / "index.html").write_text(INDEX)
    (folder / "vite.config.mjs").write_text(CONFIG)
    process = await asyncio.create_subprocess_exec(
        *("npm", "exec", "--offline", "--", "vite", "build"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def test_all_three_ways_are_in_the_readme() -> None:
    assert sorted(SHOWN) == ["web/examples/plain.html", "web/examples/react.tsx", "web/examples/useChat.tsx"]


@pytest.mark.parametrize("path", sorted(SHOWN))
async def test_a_page_of_the_readme_asks_streams_stops_and_survives_a_reload(
    path: str, elsewhere: tuple[Path, str], launch: Launch, context: BrowserContext
) -> None:
    folder, origin = elsewhere
    server = launch(GATEWAY_ORIGINS=origin)
    code = SHOWN[path]
    assert DOCUMENTED in code
    code = code.replace(DOCUMENTED, f"127.0.0.1:{server.port}")
    if path.endswith(".html"):
        (folder / "dist").mkdir()
        (folder / "dist" / "index.html").write_text(code)
    else:
        if not MODULES.is_dir():
            pytest.skip("the packages are not installed: npm ci, in web/")
        (folder / "main.tsx").write_text(code)
        await build(folder)

    page = await context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    await page.goto(origin)
    field, stop, body = page.locator("input"), page.get_by_role("button", name="Stop"), page.locator("body")
    await expect(stop).to_be_disabled()

    async def ask(text: str) -> None:
        await field.fill(text)
        await field.press("Enter")

    await ask(STORY)
    await expect(body).to_contain_text(f"user: {STORY}")
    await expect(body).to_contain_text("Once there was a lighthouse")
    await expect(body).not_to_contain_text("nothing left to do")
    await stop.click()
    await expect(stop).to_be_disabled()
    session = page.url.partition("#")[2]
    snapshot = await server.snapshot(session)
    assert snapshot["messages"][-1]["error"]["reason"] == "AbortError"

    await ask(STORY)
    await expect(body).to_contain_text(TWICE)
    await page.reload()
    await expect(stop).to_be_enabled()
    await expect(stop).to_be_disabled()
    snapshot = await server.snapshot(session)
    assert [m["role"] for m in snapshot["messages"]] == ["user", "assistant"] * 2
    assert text_of(snapshot["messages"][-1]).endswith(THE_END)
    shown = "".join((await body.inner_text()).split())
    for message in snapshot["messages"]:
        assert "".join(f"{message['role']}: {text_of(message)}".split()) in shown
    check_log(await server.log(session))
    assert not [c for c in complaints if "favicon" not in c and "404" not in c]


async def test_the_module_is_served_to_every_origin_and_kept_as_it_should_be(launch: Launch) -> None:
    server = launch()
    version = re.search(r'"version": "([^"]+)"', (ROOT / "web/sdk/package.json").read_text())
    assert version is not None
    newest = await server.http("GET", "/sdk.js")
    kept = await server.http("GET", f"/sdk-{version[1]}.js")
    assert newest.status == kept.status == 200
    assert newest.body == kept.body
    assert f"@agent-gateway/sdk {version[1]}" in newest.body[:60]
    for answer in (newest, kept):
        assert answer.headers["content-type"].startswith("text/javascript")
        assert answer.headers["access-control-allow-origin"] == "*"
        assert answer.headers["cross-origin-resource-policy"] == "cross-origin"
    assert newest.headers["cache-control"] == "no-cache"
    assert "immutable" in kept.headers["cache-control"]
    again = await server.http("GET", "/sdk.js", headers={"if-none-match": newest.headers["etag"]})
    assert again.status == 304
    assert again.headers["access-control-allow-origin"] == "*"
    assert (await server.http("GET", "/sdk-0.0.0.js")).status == 404
    assert "access-control-allow-origin" not in (await server.http("GET", "/favicon.svg")).headers


async def test_a_page_of_another_origin_uses_what_goes_over_http(
    elsewhere: tuple[Path, str], launch: Launch, context: BrowserContext
) -> None:
    """What a page starts `useChat` with, and the SDK's session list, renaming and deleting."""
    folder, origin = elsewhere
    server = launch(GATEWAY_ORIGINS=origin)
    (folder / "dist").mkdir()
    (folder / "dist" / "index.html").write_text("<!doctype html><title>Elsewhere</title>")
    async with server.client() as c:
        await c.run("one", "Hello")
    page = await context.new_page()
    await page.goto(origin)
    seen = await page.evaluate(
        """async (where) => {
            const { connect } = await import(`http://${where}/sdk.js`);
            const gateway = connect(`ws://${where}/ws`);
            const { messages } = await (await fetch(`http://${where}/ai/one`)).json();
            await gateway.rename("one", "Renamed");
            const titles = (await gateway.sessions()).sessions.map(({ title }) => title);
            await gateway.remove("one");
            return { roles: messages.map(({ role }) => role), titles };
        }""",
        f"127.0.0.1:{server.port}",
    )
    assert seen == {"roles": ["user", "assistant"], "titles": ["Renamed"]}
