"""Another site's page in the same browser, with the person's cookie at hand: it gets no socket and changes nothing.

The worst neighbour is the same site on another port: browsers send it even a ``SameSite=Strict`` cookie.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.e2e.support import Server, fresh
from tests.e2e.test_secrets import trail

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.async_api import BrowserContext, Page

    from tests.browser.conftest import Launch, Sit

TOKEN = "known-token"
COOKIE = "gateway-session"

SOCKET = """(url) => new Promise((done) => {
    const ws = new WebSocket(url, ["agent-gateway.v1"]);
    ws.onopen = () => ws.send(JSON.stringify({ type: "hello" }));
    ws.onmessage = (message) => done(JSON.parse(message.data).type);
    ws.onclose = (event) => done(`closed ${event.code}`);
})"""

ASK = """async ([url, options]) => {
    try {
        const answer = await fetch(url, { credentials: "include", ...options });
        return answer.type === "opaque" ? "opaque" : `${answer.status} ${(await answer.text()).slice(0, 80)}`;
    } catch (error) {
        return error.name;
    }
}"""


class Elsewhere(BaseHTTPRequestHandler):
    """A page that holds nothing of ours."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title>")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    """Another server of this machine: the browser would keep pages of the internet from loopback by itself."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


async def served(context: BrowserContext, origin: str) -> Page:
    """A tab that shows the other page."""
    page = await context.new_page()
    await page.goto(f"{origin}/")
    return page


@pytest.fixture
def server(launch: Launch) -> Server:
    return launch(GATEWAY_TOKEN=TOKEN, GATEWAY_COOKIE_NAME=COOKIE)


async def signed_in(server: Server, context: BrowserContext) -> None:
    cookie: Any = {"name": COOKIE, "value": TOKEN, "url": server.origin, "httpOnly": True, "sameSite": "Strict"}
    await context.add_cookies([cookie])


async def test_our_own_page_works_by_its_cookie_alone(server: Server, context: BrowserContext, sit: Sit) -> None:
    await signed_in(server, context)
    me = await sit(server)
    await me.open()
    await me.say("Hello")
    await expect(me.answers).to_have_count(1)
    await me.finished()
    assert await me.page.evaluate(SOCKET, f"{server.origin.replace('http', 'ws')}/ws") == "welcome"
    assert TOKEN not in await me.page.evaluate("() => document.cookie")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_another_page_gets_no_socket(server: Server, context: BrowserContext, host: str, port: int) -> None:
    await signed_in(server, context)
    origin = f"http://{host}:{port}"
    page = await served(context, origin)
    assert await page.evaluate(SOCKET, f"ws://127.0.0.1:{server.port}/ws") == "closed 1006"
    refusals = [entry for entry in trail(server) if entry["event"] == "origin-refused"]
    assert refusals[-1]["origin"] == origin


async def test_a_sandboxed_frame_of_our_own_host_gets_none_either(
    server: Server, context: BrowserContext, port: int
) -> None:
    await signed_in(server, context)
    page = await served(context, f"http://127.0.0.1:{port}")
    ended = await page.evaluate(
        """([script, url]) => new Promise((done) => {
            addEventListener("message", (event) => done(event.data));
            const frame = document.createElement("iframe");
            frame.sandbox = "allow-scripts";
            frame.srcdoc = `<script>(${script})("${url}").then((said) => parent.postMessage(said, "*"))</script>`;
            document.body.append(frame);
        })""",
        [SOCKET, f"ws://127.0.0.1:{server.port}/ws"],
    )
    assert ended == "closed 1006"
    assert [entry["origin"] for entry in trail(server) if entry["event"] == "origin-refused"][-1] == "null"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_another_page_reads_and_changes_nothing(
    server: Server, context: BrowserContext, host: str, port: int
) -> None:
    await signed_in(server, context)
    session = fresh()
    bearer = {"authorization": f"Bearer {TOKEN}"}
    async with server.client(token=TOKEN) as c:
        await c.run(session, "Hello")
    before = await server.snapshot(session, **bearer)
    origin = f"http://{host}:{port}"
    page = await served(context, origin)
    where = f"{server.origin}/api/sessions/{session}"
    simple = {"method": "POST", "mode": "no-cors", "headers": {"content-type": "text/plain"}}
    for url, options in (
        (where, {}),
        (where, {"mode": "no-cors"}),
        (f"{where}/prompt", simple | {"body": '{"text": "forged"}'}),
        (f"{where}/abort", simple | {"body": "{}"}),
        (where, {"method": "DELETE"}),
        (where, {"method": "PATCH", "body": '{"title": "forged"}'}),
        (f"{where}/shares/mallory", {"method": "PUT", "body": "{}"}),
    ):
        assert await page.evaluate(ASK, [url, options]) in ("TypeError", "opaque"), (url, options)
    await page.evaluate(
        """(url) => new Promise((done) => {
            const frame = document.createElement("iframe");
            frame.name = "sink";
            document.body.append(frame);
            const form = document.createElement("form");
            Object.assign(form, { action: url, method: "post", target: "sink", enctype: "text/plain" });
            form.innerHTML = `<input name='{"text":"forged","x":"' value='"}'>`;
            document.body.append(form);
            frame.onload = () => done();
            form.submit();
        })""",
        f"{where}/prompt",
    )
    refused = [entry for entry in trail(server) if entry["event"] == "origin-refused"]
    assert {entry["origin"] for entry in refused} == {origin}, "they did arrive"
    assert await server.snapshot(session, **bearer) == before
    rows = await server.http("GET", "/api/sessions", headers=bearer)
    assert [row["session_id"] for row in rows.body["sessions"]] == [session]


async def test_no_page_can_frame_ours(server: Server, context: BrowserContext, port: int) -> None:
    page = await served(context, f"http://127.0.0.1:{port}")
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    await page.evaluate(
        """(url) => new Promise((done) => {
            const frame = document.createElement("iframe");
            frame.src = url;
            frame.onload = () => done();
            document.body.append(frame);
        })""",
        f"{server.origin}/",
    )
    assert not [frame for frame in page.frames[1:] if await frame.query_selector("#root")]
    assert any("frame" in text.lower() for text in said), said
