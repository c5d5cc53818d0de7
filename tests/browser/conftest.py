"""A real browser in front of a real server with the default agent."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
import pytest_asyncio
from playwright.async_api import async_playwright, expect

from tests.browser.page import FORMS, Desk, Proxy, desk
from tests.e2e.support import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from playwright.async_api import Browser, BrowserContext

STATIC = Path(__file__).parents[2] / "gateway" / "static"
expect.set_options(timeout=20_000)

PACE = {"GATEWAY_SCRIPTED_PACE": "0.015", "GATEWAY_LOG_LEVEL": "warning"}


class Launch(Protocol):
    """Start a server of one's own."""

    def __call__(self, engine: str = "", **env: str) -> Server: ...


class Sit(Protocol):
    """Open a tab, by default in the test's own browser window."""

    async def __call__(
        self, server: Server, *, origin: str | None = None, context: BrowserContext | None = None
    ) -> Desk: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One browser for all of these tests, so one event loop; and a build of the page, or a reason."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in here:
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
        if not STATIC.is_dir():
            item.add_marker(pytest.mark.skip(reason="the page is not built: npm run build --workspaces, in web/"))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = await playwright.chromium.launch(executable_path=path if Path(path).exists() else None)
        yield browser
        await browser.close()


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Where the pictures go: `SCREENSHOTS` names a folder for people to look at."""
    album = Path(os.environ.get("SCREENSHOTS", tmp_path / "screenshots"))
    album.mkdir(parents=True, exist_ok=True)
    return album


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """A factory of servers that end with the test; without an engine, the default agent."""
    started: list[Server] = []

    def start_one(engine: str = "", **env: str) -> Server:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        one = Server(folder, engine, env=PACE | env, cwd=Path(__file__).parent if engine else folder)
        started.append(one)
        return one.start()

    yield start_one
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the tests that leave it alone."""
    folder = tmp_path_factory.mktemp("browser")
    server = Server(folder, "", cwd=folder, env=PACE)
    try:
        yield server.start()
    finally:
        server.close()


@pytest.fixture(params=["desktop"])
def form(request: pytest.FixtureRequest) -> str:
    """What the person holds; a test that is for more than a desktop parametrizes it."""
    name: str = request.param
    return name


@pytest_asyncio.fixture(loop_scope="session")
async def context(chromium: Browser, form: str) -> AsyncIterator[BrowserContext]:
    context = await chromium.new_context(**FORMS[form])
    context.set_default_timeout(15_000)
    yield context
    await context.close()


@pytest_asyncio.fixture(loop_scope="session")
async def sit(context: BrowserContext) -> AsyncIterator[Sit]:
    """Tabs, each of which must not have complained by the end of the test."""
    desks: list[Desk] = []

    async def one(server: Server, *, origin: str | None = None, context: BrowserContext = context) -> Desk:
        desks.append(await desk(context, server, origin))
        return desks[-1]

    yield one  # type: ignore[misc]
    for held in desks:
        held.no_complaints()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder that another origin serves."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder / "dist"))
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest_asyncio.fixture(loop_scope="session")
async def proxied(launch: Launch) -> AsyncIterator[tuple[Server, Proxy]]:
    """A server behind a connection that can be cut."""
    server = launch()
    proxy = Proxy(server.port)
    await proxy.start()
    yield server, proxy
    await proxy.close()
