"""What a browser is told not to do with our answers (after OWASP's advice on headers)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_FEATURES = ("camera", "display-capture", "geolocation", "microphone", "midi", "payment", "serial", "usb")

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"permissions-policy": ", ".join(f"{name}=()" for name in _FEATURES).encode(),
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
}
"""On every answer."""

NOTHING = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""The policy of what is no page: should it be opened as one, it can do nothing."""

_HOST = re.compile(r"[a-z0-9.-]+(?::\d+)?|\[[0-9a-f:.]+\](?::\d+)?", re.IGNORECASE)


def page_policy(host: str | None) -> bytes:
    """Give the page's policy: its own script, style and socket, and nothing from or to anywhere else.

    ``'self'`` does not mean the socket in every browser, so its address is named, if it is one.
    """
    socket = f" ws://{host} wss://{host}" if host is not None and _HOST.fullmatch(host) else ""
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        f"manifest-src 'self'; connect-src 'self'{socket}; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ).encode()


class SecurityHeaders:
    """ASGI middleware: adds the headers that an answer does not have."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request; a socket passes through."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_defaults(list(message.get("headers", ())), scope)
            await send(message)

        await self._app(scope, receive, hardened)


def _with_defaults(headers: list[tuple[bytes, bytes]], scope: MutableMapping[str, Any]) -> list[tuple[bytes, bytes]]:
    present = {name.lower(): value for name, value in headers}
    added = dict(HEADERS)
    if present.get(b"content-type", b"").startswith(b"text/html"):
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), None)
        added[b"content-security-policy"] = page_policy(host)
    else:
        added[b"content-security-policy"] = NOTHING
    return headers + [(name, value) for name, value in added.items() if name not in present]
