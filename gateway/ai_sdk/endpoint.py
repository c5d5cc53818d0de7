"""``/ai``: the gateway's own connection with a dialect in front, and a chat's messages for a page to start with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from gateway.ai_sdk import requests as r
from gateway.ai_sdk.dialect import SAID, Dialect
from gateway.ai_sdk.pages import ui_messages
from gateway.auth import bearer
from gateway.endpoint import Endpoint, Link
from gateway.http import Api, RestCaller, not_a_socket
from protocol.codec import decode_command, decode_message, encode
from protocol.errors import CloseCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping

    from starlette.requests import Request

    from gateway.hub import Hub

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

logger = logging.getLogger(__name__)


class AiSdk:
    """What the AI SDK is served with. ``endpoint`` checks, counts and watches its sockets like all others."""

    def __init__(self, hub: Hub, endpoint: Endpoint, api: Api) -> None:
        self._hub = hub
        self._endpoint = endpoint
        self._api = api

    def routes(self) -> list[BaseRoute]:
        """Give the socket's route and that of a chat's messages."""
        return [
            WebSocketRoute("/ai", self),
            Route("/ai", not_a_socket, methods=["GET"]),
            Route("/ai/{session_id}", self._api.guarded(self._messages), methods=["GET"]),
        ]

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one WebSocket (an ASGI application)."""
        offered = scope.get("subprotocols") or []

        async def accept(message: Message) -> None:
            if message["type"] == "websocket.accept" and offered:
                message["subprotocol"] = offered[0]  # the page's own choice: a browser wants one of its list back
            await send(message)

        headers = {name.lower(): value for name, value in scope["headers"]}
        token = bearer(headers.get(b"authorization", b"").decode("latin-1"))

        def link(*args: Any) -> AiLink:
            return AiLink(*args, token=token)

        await self._endpoint({**scope, "subprotocols": [], "gateway.link": link}, receive, accept)

    async def _messages(self, request: Request, principal: str) -> Response:
        """``{"messages": UIMessage[], "has_more"}``, the newest 200 or those before ``?before=``."""
        asked = {"type": "history", "session_id": request.path_params["session_id"], "limit": 200}
        if (before := request.query_params.get("before")) is not None:
            asked["before"] = before
        caller = RestCaller(principal)
        await self._hub.handle(caller, decode_command(encode(asked)))
        body = {"messages": ui_messages(caller.answer["messages"]), "has_more": caller.answer["has_more"]}
        return Response(encode(body), headers={"cache-control": "no-store"}, media_type="application/json")


class AiLink(Link):
    """A connection that speaks the AI SDK's protocol."""

    __slots__ = ("_dialect",)

    def __init__(self, *args: Any, token: str | None) -> None:
        super().__init__(*args)
        self._dialect = Dialect(max_frame_bytes=self._endpoint.settings.max_frame_bytes, token=token)

    def _heard(self, data: str | bytes) -> None:
        if self._connection.closing:
            return
        if isinstance(data, bytes):
            super()._heard(b"")
            return
        try:
            for answer in self._dialect.hear(data):
                self.reply({"type": SAID, "frame": answer})
        except r.BadRequest as exc:
            if exc.is_frame:
                self.reply({"type": SAID, "frame": r.error(exc.request_id, str(exc))})
            else:
                super()._heard("")  # one more that is none
        self._carry_out()

    def _translation(self) -> Callable[[bytes], Iterable[bytes]]:
        return self._told

    def _told(self, message: bytes) -> Iterator[bytes]:
        answers = self._dialect.told(decode_message(message))
        while True:
            try:
                answer = next(answers, None)
            except Exception:
                # A fault of ours: end the connection, or the page would wait for ever.
                logger.exception("a frame could not be translated")
                self.close(CloseCode.INTERNAL, "internal error")
                return
            if answer is None:
                break
            yield encode(answer)
        self._carry_out()

    def _carry_out(self) -> None:
        commands = self._dialect.commands
        while commands:
            super()._heard(encode(commands.pop(0)).decode())
