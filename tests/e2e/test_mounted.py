"""The gateway as a part of somebody else's application, under plain uvicorn: below a path, with all it has."""

from __future__ import annotations

import http.client
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin

import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from tests.e2e.ai_page import page
from tests.e2e.support import ABORT_ERROR, V1, Client, Server, agree, check_log, fresh, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
STARLETTE = """\
import contextlib
import os

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from gateway import Agent, Gateway, ScriptedModel

gateway = Gateway(Agent(ScriptedModel()), store=os.environ["GATEWAY_STORE"])


@contextlib.asynccontextmanager
async def lifespan(app):
    async with gateway.lifespan(app):
        yield


async def home(request):
    return PlainTextResponse("home")


app = Starlette(routes=[Mount("/agent", gateway.asgi), Route("/", home)], lifespan=lifespan)
"""


class MountedClient(Client):
    """The thin client, at `/agent/ws`."""

    async def open(self) -> None:
        self._ws = await connect(
            f"ws://127.0.0.1:{self.port}/agent/ws",
            subprotocols=[Subprotocol(V1)],
            compression=None,
            proxy=None,
            ping_interval=None,
        )


class Mounted(Server):
    """uvicorn with an application that has a gateway at `/agent`."""

    def command(self) -> list[str]:
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "warning", "--no-access-log"]
        return [sys.executable, "-W", "error::DeprecationWarning:gateway", "-m", "uvicorn", self.engine, *options]

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "PYTHONPATH": f"{ROOT}:{self.folder}",
            "GATEWAY_STORE": f"sqlite:///{self.folder / 'g.db'}",
        }

    def ready(self) -> bool:
        probe = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            probe.request("GET", "/agent/readyz")
            return probe.getresponse().status == 200
        except OSError:
            return False
        finally:
            probe.close()

    def client(self, **options: object) -> Client:
        return MountedClient(self.port, **options)  # type: ignore[arg-type]

    async def snapshot(self, session: str, **headers: str) -> dict[str, object]:
        answer = await self.http("GET", f"/agent/api/sessions/{session}", headers=headers)
        assert answer.status == 200, answer
        body: dict[str, object] = answer.body
        return body


@pytest.fixture(params=["gateway.examples.fastapi_app:app", "starlette_app:app"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    (tmp_path / "starlette_app.py").write_text(STARLETTE)
    server = Mounted(tmp_path, request.param, env={"GATEWAY_SCRIPTED_PACE": "0.01"}, cwd=tmp_path)
    try:
        yield server.start()
    finally:
        server.close()


async def test_the_socket_and_rest_work_below_the_path(mounted: Mounted) -> None:
    session = fresh()
    async with mounted.client(batch=True) as c:
        ack = await c.prompt(session, "Tell me a story")
        await c.until("text-delta", session_id=session)
        await c.ok("abort", session_id=session)
        finish = await c.until("run-finish", run_id=ack["run_id"])
        assert (finish["status"], finish["error"]) == ("aborted", ABORT_ERROR)
        assert (await c.run(session, "a table"))["status"] == "completed"
        await agree(mounted, c, session)
    listed = await mounted.http("GET", "/agent/api/sessions")
    assert [row["session_id"] for row in listed.body["sessions"]] == [session]
    assert (await mounted.http("GET", "/agent/healthz")).status == 200
    assert (await mounted.http("GET", "/")).status == 200, "the application's own"
    assert (await mounted.http("GET", "/api/sessions")).status == 404, "nothing of ours outside"
    unknown = await mounted.http("GET", "/agent/api/sessions/none")
    assert (unknown.status, unknown.code) == (404, "session_not_found")


async def test_the_ai_sdk_is_served_below_the_path_too(mounted: Mounted) -> None:
    chat = fresh()
    async with page(mounted, "/agent/ai") as ai:
        request = await ai.send(chat, "Tell me a story")
        await ai.until_chunk(request, "text-delta")
        await ai.request("abort", requestId=request)
        assert (await ai.answer(request)).ending == {"type": "abort", "reason": "Aborted"}
    loaded = await mounted.http("GET", f"/agent/ai/{chat}")
    assert [message["role"] for message in loaded.body["messages"]] == ["user", "assistant"]


async def test_the_page_and_its_files_are_below_the_path(mounted: Mounted) -> None:
    if not (ROOT / "gateway" / "static").is_dir():
        pytest.skip("the page is not built")
    bare = await mounted.http("GET", "/agent")
    assert bare.status in (307, 308)
    assert urljoin(f"{mounted.origin}/agent", bare.headers["location"]) == f"{mounted.origin}/agent/"
    page = await mounted.http("GET", "/agent/")
    assert page.status == 200
    assert "script-src 'self';" in page.headers["content-security-policy"]
    links = re.findall(r'(?:src|href)="([^"]+)"', page.body)
    assert len(links) >= 3
    for link in links:
        assert not link.startswith(("/", "http")), "relative"
        found = await mounted.http("GET", urljoin("/agent/", link))
        assert found.status == 200, link


async def test_sigterm_seals_the_runs(mounted: Mounted) -> None:
    sessions = [fresh() for _ in range(3)]
    async with mounted.client() as c:
        for session in sessions:
            await c.prompt(session, "Tell me a story")
            await c.until("text-delta", session_id=session)
        mounted.terminate()
        await c.closed(timeout=20)
        # uvicorn raises the signal again once it is done: that it came so far says that it ended in order.
        assert await mounted.exited() in (0, -15)
    await mounted.restart()
    for session in sessions:
        log = await mounted.log(session)
        check_log(log)
        assert log[-1]["type"] == "run-finish"
        assert log[-1]["status"] in ("aborted", "completed"), "sealed by the gateway, not found lost"
        answer = (await mounted.snapshot(session))["messages"][-1]  # type: ignore[index]
        assert text_of(answer).startswith("Once")


async def test_kill_9_is_recovered_from_below_the_path_too(mounted: Mounted) -> None:
    session = fresh()
    async with mounted.client() as c:
        await c.prompt(session, "Tell me a story")
        await c.until("text-delta", session_id=session)
        await mounted.crash()
    async with mounted.client() as c:
        attached = await c.ok("attach", session_id=session, seq=0)
        assert attached["recovery"] == "replay"
        await c.caught_up(session, attached["seq"])
        assert c.events(session)[-1]["status"] == "lost"
        ack = await c.ok("resume", session_id=session)
        assert (await c.until("run-finish", run_id=ack["run_id"], timeout=20))["status"] == "completed"
        await agree(mounted, c, session)
    check_log(await mounted.log(session))
