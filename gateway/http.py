"""HTTP beside the socket: the session list, a session, prompt and abort, health, and the page."""

from __future__ import annotations

import logging
import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from gateway.audit import audit
from gateway.auth import bearer, peer
from protocol import frames
from protocol.codec import BadCommand, decode_command, encode
from protocol.errors import HTTP_STATUS, CommandError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from gateway.endpoint import Endpoint
    from gateway.hub import Hub
    from gateway.outbox import Outbox
    from gateway.parking import Parked
    from gateway.session import Session
    from gateway.stores.base import SessionRow, ShareRow

    Handler = Callable[[Request], Awaitable[Response]]

logger = logging.getLogger(__name__)

STATIC = Path(__file__).parent / "static"
MAX_TITLE = 500


class RestCaller:
    """A REST request as the hub's caller: it takes the one reply, owns and attaches nothing."""

    outbox: Outbox | None = None

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.owned: set[Session | Parked] = set()
        self.answer: frames.Frame = {}

    def reply(self, frame: frames.Frame) -> None:
        """Keep the first reply."""
        if not self.answer:
            self.answer = frame


class Api:
    """The REST routes and the page."""

    def __init__(self, hub: Hub, endpoint: Endpoint) -> None:
        self._hub = hub
        self._endpoint = endpoint

    def routes(self) -> list[BaseRoute]:
        """Give all routes but the socket's."""
        guard = self.guarded
        session = "/api/sessions/{session_id}"
        routes: list[BaseRoute] = [
            Route("/api/sessions", guard(self._list), methods=["GET"]),
            Route(session, guard(self._get), methods=["GET"]),
            Route(session, guard(self._patch), methods=["PATCH"]),
            Route(session, guard(self._delete), methods=["DELETE"]),
            Route(f"{session}/prompt", guard(self._prompt), methods=["POST"]),
            Route(f"{session}/abort", guard(self._abort), methods=["POST"]),
            Route(f"{session}/shares", guard(self._shares), methods=["GET"]),
            Route(f"{session}/shares/{{principal:path}}", guard(self._share), methods=["PUT"]),
            Route(f"{session}/shares/{{principal:path}}", guard(self._unshare), methods=["DELETE"]),
            Route("/api/shared", guard(self._shared), methods=["GET"]),
            Route("/api/me", guard(self._me), methods=["GET"]),
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/ws", not_a_socket, methods=["GET"]),
            Route("/", self._page, methods=["GET"]),
        ]
        if STATIC.is_dir():
            routes.append(Mount("/", app=_Assets(directory=STATIC)))
        return routes

    # -- guards

    def guarded(self, handler: Callable[[Request, str], Awaitable[Response]]) -> Handler:
        """Check origin and token, and turn every error into JSON with the protocol's code."""

        async def guarded(request: Request) -> Response:
            try:
                principal = await self._principal(request)
                return await handler(request, principal)
            except CommandError as exc:
                return _error(exc)
            except ClientDisconnect:
                return Response(
                    status_code=400
                )  # it left within its own body, which is no fault here; nobody hears this
            except Exception:
                reference = secrets.token_hex(4)
                logger.exception("reference %s: %s %s failed", reference, request.method, request.scope["path"])
                text = f"internal error; reference {reference} in the server's log"
                return _error(CommandError("internal", text))

        return guarded

    async def _principal(self, request: Request) -> str:
        headers = request.headers
        origin, host = headers.get("origin"), headers.get("host")
        refusal = self._endpoint.refusal(origin, host)
        if refusal is not None:
            audit("origin-refused", address=peer(request.scope), origin=origin, host=host, why=refusal)
            raise CommandError("forbidden", refusal)
        token = bearer(headers.get("authorization", ""))
        if token is None:
            token = self._endpoint.cookie_token(headers, reads=request.method in ("GET", "HEAD"))
        try:
            principal = await self._endpoint.authenticator.authenticate(token)
        except CommandError as exc:
            audit("authentication-failed", address=peer(request.scope), code=exc.code, why=exc.message)
            raise
        return principal.id

    # -- sessions

    async def _list(self, request: Request, principal: str) -> Response:
        limit = _limit(request.query_params.get("limit"))
        before = request.query_params.get("before")
        rows = await self._hub.list_sessions(principal, before, limit + 1)
        return _json({"sessions": [_line(row) for row in rows[:limit]], "has_more": len(rows) > limit})

    async def _get(self, request: Request, principal: str) -> Response:
        log = await self._hub.view(principal, _session_id(request))
        data = log.archive.snapshot(log.session_id)
        return Response(data, media_type="application/json", headers={"cache-control": "no-store"})

    async def _patch(self, request: Request, principal: str) -> Response:
        body = await self._body(request)
        title = body.get("title")
        if not isinstance(title, str) or not 1 <= len(title) <= MAX_TITLE:
            raise CommandError("invalid", f"title: a string of 1 to {MAX_TITLE} characters")
        return _json(_line(await self._hub.rename(principal, _session_id(request), title)))

    async def _delete(self, request: Request, principal: str) -> Response:
        session_id = _session_id(request)
        await self._hub.delete(principal, session_id)
        audit("session-deleted", address=peer(request.scope), principal=principal, session_id=session_id)
        return Response(status_code=204)

    # -- sharing

    async def _shares(self, request: Request, principal: str) -> Response:
        rows = await self._hub.sharing.shares(principal, _session_id(request))
        return _json({"shares": [_share_line(row) for row in rows]})

    async def _share(self, request: Request, principal: str) -> Response:
        session_id, other = _session_id(request), str(request.path_params["principal"])
        role = (await self._body(request)).get("role", "observer")
        if role not in ("owner", "observer"):
            raise CommandError("invalid", "role: owner or observer")
        row = await self._hub.sharing.share(principal, session_id, other, role)
        who = {"address": peer(request.scope), "principal": principal}
        audit("session-shared", **who, session_id=session_id, shared_with=other, role=role)
        return _json(_share_line(row))

    async def _unshare(self, request: Request, principal: str) -> Response:
        session_id, other = _session_id(request), str(request.path_params["principal"])
        await self._hub.sharing.unshare(principal, session_id, other)
        who = {"address": peer(request.scope), "principal": principal}
        audit("session-unshared", **who, session_id=session_id, shared_with=other)
        return Response(status_code=204)

    async def _shared(self, request: Request, principal: str) -> Response:
        rows = await self._hub.sharing.shared_with(principal)
        return _json({"sessions": [_share_line(row) | {"owner": row.owner} for row in rows]})

    async def _me(self, request: Request, principal: str) -> Response:
        return _json({"principal": principal})

    # -- commands

    async def _prompt(self, request: Request, principal: str) -> Response:
        return await self._command(request, principal, "prompt", 202)

    async def _abort(self, request: Request, principal: str) -> Response:
        return await self._command(request, principal, "abort", 200)

    async def _command(self, request: Request, principal: str, kind: str, status: int) -> Response:
        body = await self._body(request) | {"type": kind, "session_id": _session_id(request)}
        try:
            data = orjson.dumps(body)
        except orjson.JSONEncodeError:
            raise BadCommand("bad_frame", "the body is nested too deeply") from None
        command = decode_command(data)
        caller = RestCaller(principal)
        await self._hub.handle(caller, command)
        return _json(caller.answer, status)

    async def _body(self, request: Request) -> dict[str, Any]:
        limit = self._hub.settings.max_frame_bytes
        data = bytearray()
        async for chunk in request.stream():
            data += chunk
            if len(data) > limit:
                raise CommandError("too_large", f"a body has at most {limit} bytes")
        if not data.strip():
            return {}
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError as exc:
            raise BadCommand("bad_frame", f"not JSON: {exc}") from None
        if not isinstance(body, dict):
            raise BadCommand("bad_frame", "a body is one JSON object")
        return body

    # -- health

    async def _health(self, request: Request) -> Response:
        return _json({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        status, serves = await self._hub.condition()
        if not serves:
            return Response(encode({"status": status}), 503, {"retry-after": "1"}, media_type="application/json")
        return _json({"status": status})

    # -- the page

    async def _page(self, request: Request) -> Response:
        if request.scope.get("root_path") and not request.scope["path"].endswith("/"):
            return RedirectResponse(request.scope["path"] + "/")
        index = STATIC / "index.html"
        if not index.is_file():
            return PlainTextResponse(
                "the page has not been built; install the package, or run the build in web/\n", 404
            )
        return FileResponse(index, headers={"cache-control": "no-cache"})


async def not_a_socket(request: Request) -> Response:
    """Answer a plain request to a socket's address."""
    return PlainTextResponse("this address speaks WebSocket\n", 426, {"upgrade": "websocket"})


async def http_error(request: Request, exc: HTTPException) -> Response:
    """Answer what no route answers (404, 405) as JSON, like everything else here."""
    problem: dict[str, Any] = {"type": "error", "code": "invalid", "message": exc.detail, "retryable": False}
    return Response(encode(problem), exc.status_code, exc.headers, media_type="application/json")


class _Assets(StaticFiles):
    """Built assets: what has a hash or a version in its name may be kept for ever.

    The SDK's module is for pages of any origin: that lets them load it, not connect (`--origins` does).
    """

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        path = Path(args[0])
        kept = path.parent.name == "assets" or path.name.startswith("sdk-")
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if kept else "no-cache"
        if path.name.startswith(("sdk.", "sdk-")):
            response.headers["access-control-allow-origin"] = "*"
            response.headers["cross-origin-resource-policy"] = "cross-origin"
        return response


def _session_id(request: Request) -> str:
    session_id: str = request.path_params["session_id"]
    if not re.fullmatch(r"[A-Za-z0-9_.:\-]{1,128}", session_id):
        raise CommandError("session_not_found", "there is no such session")
    return session_id


def _limit(text: str | None) -> int:
    if text is None:
        return 50
    if not text.isascii() or not text.isdigit() or len(text) > 6 or not 1 <= int(text) <= 200:
        raise CommandError("invalid", "limit: a whole number from 1 to 200")
    return int(text)


def _line(row: SessionRow) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "title": row.title,
        "status": row.status,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "message_count": row.message_count,
    }


def _share_line(row: ShareRow) -> dict[str, Any]:
    return {
        "session_id": row.session_id,
        "principal": row.principal,
        "role": row.role,
        "created_at": row.created_at,
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode(value), status, {"cache-control": "no-store"}, media_type="application/json")


def _error(exc: CommandError) -> Response:
    headers = {"cache-control": "no-store"}
    if exc.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(exc.retry_after_s)))
    if exc.code == "unauthorized":
        headers["www-authenticate"] = "Bearer"
    id_ = exc.id if isinstance(exc, BadCommand) else None
    body = encode(frames.error(exc, id_))
    status = HTTP_STATUS[exc.code]
    if status == 500 and exc.retryable:
        status = 503
    return Response(body, status, headers, media_type="application/json")
