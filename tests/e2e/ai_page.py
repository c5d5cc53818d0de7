"""A page's socket at `/ai`, frame by frame."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from tests.ai_sdk.page import Page
from tests.e2e.support import PATIENCE, Server, fresh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.fold import Frame


class Ai:
    """A page's socket: it keeps apart what each request was answered."""

    def __init__(self, ws: ClientConnection) -> None:
        self.ws = ws
        self.frames: list[Frame] = []
        self._next = 0

    async def raw(self, text: str | bytes) -> None:
        await self.ws.send(text)

    async def send(self, chat: str, text: str, *, message_id: str | None = None, **fields: Any) -> str:
        message = {"id": message_id or uuid4().hex, "role": "user", "parts": [{"type": "text", "text": text}]}
        return await self.request("send", id=chat, trigger="submit-message", messages=[message], **fields)

    async def request(self, kind: str, **fields: Any) -> str:
        request_id = fields.pop("requestId", None) or uuid4().hex
        await self.raw(self._written(kind, request_id, **fields))
        return str(request_id)

    def drop(self, kind: str, **fields: Any) -> None:
        """Make a request and abort it, both in one piece: the server has the two before it can answer the first."""
        request_id = uuid4().hex
        for text in (self._written(kind, request_id, **fields), self._written("abort", request_id)):
            self.ws.protocol.send_text(text.encode())
        self.ws.transport.write(b"".join(self.ws.protocol.data_to_send()))

    def _written(self, kind: str, request_id: str, **fields: Any) -> str:
        envelope: Frame = {} if kind == "abort" else {"headers": {}, "body": {}, "metadata": None}
        return json.dumps({"type": kind, "requestId": request_id, **envelope, **fields})

    async def frame(self) -> Frame:
        """The next frame, in the order of arrival."""
        while self._next == len(self.frames):
            self.frames.append(json.loads(await self.ws.recv()))
        self._next += 1
        return self.frames[self._next - 1]

    async def until(self, request_id: str, kind: str) -> Frame:
        async with asyncio.timeout(PATIENCE):
            while True:
                frame = await self.frame()
                if frame["requestId"] == request_id and frame["type"] == kind:
                    return frame

    async def until_chunk(self, request_id: str, kind: str) -> Frame:
        while True:
            chunk: Frame = (await self.until(request_id, "chunk"))["chunk"]
            if chunk["type"] == kind:
                return chunk

    def chunks(self, request_id: str) -> list[Frame]:
        """The chunks of an answer so far; their sequence has no gap."""
        mine = [f for f in self.frames if f["requestId"] == request_id and f["type"] == "chunk"]
        assert [f["sequence"] for f in mine] == list(range(len(mine)))
        return [f["chunk"] for f in mine]

    async def answer(self, request_id: str) -> Page:
        """The answer to its end."""
        await self.until(request_id, "end")
        return Page().take(self.chunks(request_id))

    async def quiet(self) -> list[Frame]:
        """What has come by the time that a request sent now is answered."""
        before = len(self.frames)
        marker = await self.request("resume", id=fresh())
        await self.until(marker, "no-active")
        return [f for f in self.frames[before:] if f["requestId"] not in (marker, "keep-alive")]

    async def closed(self) -> int:
        with suppress(ConnectionClosed):
            async with asyncio.timeout(PATIENCE):
                while True:
                    await self.frame()
        assert self.ws.close_code is not None
        return self.ws.close_code


@asynccontextmanager
async def page(server: Server, path: str = "/ai", **options: Any) -> AsyncIterator[Ai]:
    async with connect(f"ws://127.0.0.1:{server.port}{path}", proxy=None, **options) as ws:
        yield Ai(ws)
