"""The page as a person meets it: open it, write, stop, look; and what it shows held against the server's transcript."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING, Any

from playwright.async_api import expect

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Error, Locator, Page, WebSocket

    from tests.e2e.fold import Frame
    from tests.e2e.support import Server

NETWORK = re.compile(r"WebSocket connection to|net::ERR_")
"""What Chromium itself writes to the console where a test takes the network away."""

READ = """() => {
    const text = (node) => node ? node.textContent : null;
    const shown = (node) => ({
        id: node.dataset.messageId,
        role: node.dataset.role,
        live: node.dataset.live === "true",
        local: node.dataset.local === "true",
        error: node.querySelector(":scope > [data-testid=message-error]")?.dataset.reason ?? null,
        parts: [...node.querySelectorAll("[data-part-type]")].map((part) => {
            const type = part.dataset.partType;
            if (type === "reasoning")
                return { type, state: part.dataset.state, text: text(part.querySelector(".thoughts")) };
            if (type === "tool")
                return {
                    type, state: part.dataset.state, outcome: part.dataset.outcome ?? null,
                    tool: text(part.querySelector(".name")),
                    output: [...part.querySelectorAll(".field")]
                        .filter((field) => text(field.querySelector(".label")) === "Output")
                        .map((field) => text(field.querySelector("pre")))[0] ?? null,
                };
            return {
                type, state: part.dataset.state ?? null, text: text(part),
                plain: part.querySelector(":scope > .plain") !== null,
            };
        }),
    });
    return [...document.querySelectorAll("[data-testid=message]")].map(shown);
}"""
"""Read the transcript off the page: only what a person sees, and the ids."""


class Desk:
    """A person in front of the page: a tab, its complaints, and its sockets."""

    def __init__(self, page: Page, origin: str, server: Server) -> None:
        self.page = page
        self.origin = origin
        self.server = server
        self.complaints: list[str] = []
        self.sockets: list[WebSocket] = []
        self.frames: list[str] = []
        self.network_may_fail = False
        page.on("console", self._said)
        page.on("pageerror", self._failed)
        page.on("websocket", self._opened)

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _failed(self, error: Error) -> None:
        self.complaints.append(str(error))

    def _opened(self, socket: WebSocket) -> None:
        self.sockets.append(socket)
        socket.on("framereceived", lambda data: self.frames.append(str(data)))

    @property
    def open_sockets(self) -> list[WebSocket]:
        return [s for s in self.sockets if not s.is_closed()]

    def no_complaints(self) -> None:
        """Nothing in the console, and no error that nobody caught."""
        found = [c for c in self.complaints if not (self.network_may_fail and NETWORK.search(c))]
        assert not found, found

    # What there is to see

    def by(self, testid: str) -> Locator:
        return self.page.get_by_test_id(testid)

    @property
    def composer(self) -> Locator:
        return self.by("composer")

    @property
    def stop(self) -> Locator:
        return self.by("stop")

    @property
    def resume(self) -> Locator:
        return self.by("resume")

    @property
    def answers(self) -> Locator:
        return self.page.locator("[data-testid=message][data-role=assistant]")

    @property
    def error(self) -> Locator:
        return self.answers.last.get_by_test_id("message-error")

    @property
    def session(self) -> str:
        return self.page.url.partition("#")[2]

    # What there is to do

    async def open(self, session: str = "") -> None:
        await self.page.goto(f"{self.origin}/{'#' + session if session else ''}")
        await self.connected()

    async def connected(self, patience: float = 15) -> None:
        await expect(self.by("connection")).to_have_attribute("data-state", "connected", timeout=1000 * patience)

    async def say(self, text: str) -> None:
        """Write and send, with the keyboard."""
        await self.composer.fill(text)
        await self.composer.press("Enter")

    async def begins(self, text: str) -> None:
        """Say something and wait until the answer to it streams."""
        before = await self.answers.count()
        await self.say(text)
        await expect(self.answers).to_have_count(before + 1)
        await self.grows(20)

    async def length(self) -> int:
        """How many characters of the last answer are on the page."""
        return len(await self.answers.last.inner_text())

    async def grows(self, by: int = 1) -> None:
        """Wait until the last answer has this many characters more than now."""
        now = await self.length()
        await self.page.wait_for_function(
            """(wanted) => {
                const all = document.querySelectorAll("[data-testid=message][data-role=assistant]");
                return all.length > 0 && all[all.length - 1].innerText.length >= wanted;
            }""",
            arg=now + by,
        )

    async def finished(self) -> None:
        """Wait until nothing runs."""
        await expect(self.stop).to_have_count(0)
        await expect(self.page.locator("[data-live=true]")).to_have_count(0)

    async def stopped(self) -> None:
        """Wait for the stop, marked as one, with a way on."""
        await expect(self.error).to_have_attribute("data-reason", "AbortError")
        await expect(self.error).to_have_text("Stopped")
        await expect(self.resume).to_be_visible()
        await self.finished()

    async def agrees(self, session: str | None = None) -> Frame:
        """What the page shows of the session is the server's transcript, to the letter; gives back the snapshot."""
        snapshot = await self.server.snapshot(session or self.session)
        assert not snapshot["has_more"]
        theirs = [expected(m) for m in snapshot["messages"]]
        mine: list[Frame] = []
        for _ in range(50):  # the last frames may be on their way: the page paints when it can
            mine = [comparable(m) for m in await self.page.evaluate(READ)]
            if mine == theirs:
                break
            await painted(self.page)
        assert mine == theirs, f"on the page: {mine}\nthe server: {theirs}"
        assert (await self.stop.count() == 0) == (snapshot["status"] == "idle"), snapshot["status"]
        return snapshot


async def painted(page: Page) -> None:
    await page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def words(text: str) -> str:
    """Markdown without its marks and the names of its code blocks' languages: every letter and digit, in order."""
    return re.sub(r"[\W_]+", "", re.sub(r"^```\w+$", "", text, flags=re.MULTILINE))


def expected(message: Frame) -> Frame:
    """A message of the server's, as the page has to show it."""
    error = message.get("error")
    return {
        "id": message["id"],
        "role": message["role"],
        "live": message["role"] == "assistant" and message["completed_at"] is None,
        "local": False,
        "error": error["reason"] if error else None,
        "parts": [_expected_part(p, message["role"]) for p in message["parts"]],
    }


def _expected_part(part: Frame, role: str) -> Frame:
    if part["type"] == "tool":
        output = part.get("output")
        return {
            "type": "tool",
            "state": part["state"],
            "outcome": part.get("outcome"),
            "tool": part["tool"],
            "output": None if "output" not in part else output if isinstance(output, str) else squeezed(output),
        }
    return {"type": part["type"], "state": part.get("state"), "text": part["text"]}


def squeezed(value: Any) -> str:
    return "".join(json.dumps(value, ensure_ascii=False).split())


def comparable(shown: Frame) -> Frame:
    """A message as the page shows it; marked-up text is compared by its letters and digits."""
    parts = []
    for part in shown["parts"]:
        part = dict(part)
        if part["type"] == "tool" and part["output"] is not None and part["output"][:1] in "[{":
            part["output"] = "".join(part["output"].split())
        if part["type"] == "text" and not part.pop("plain"):
            part["text"] = Letters(part["text"])
        parts.append(part)
    return {**shown, "parts": parts}


class Letters(str):
    """Equal to every text with the same letters and digits in the same order."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and words(self) == words(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(words(self))


class Proxy:
    """A way through the loopback that can be cut: every connection reset, and none taken until it is mended."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._down = False

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Reset what is open, and every new connection too."""
        self._down = True
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._down = False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._down:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        try:
            await asyncio.gather(self._pipe(reader, back), self._pipe(there, writer))
        finally:
            self._writers -= {writer, back}

    @staticmethod
    async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()


FORMS: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 390, "height": 844},
        "is_mobile": True,
        "has_touch": True,
        "device_scale_factor": 2,
    },
}


async def desk(context: BrowserContext, server: Server, origin: str | None = None) -> Desk:
    """Sit down at a new tab."""
    return Desk(await context.new_page(), origin or server.origin, server)
