"""Who is there: authenticators, principals and the origin check."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who owns sessions. ``expires_at``: ms since 1970, after which the connection ends with 4101."""

    id: str
    expires_at: int | None = None


class Authenticator(Protocol):
    """Turns a token into a principal. ``required`` False: everybody is somebody, a hello is optional."""

    required: bool

    async def authenticate(self, token: str | None) -> Principal:
        """Raises :exc:`~protocol.errors.CommandError` ``unauthorized`` or ``forbidden``."""
        ...


class Anonymous:
    """No authentication: one principal owns everything. For loopback and for behind one's own proxy."""

    required = False

    async def authenticate(self, token: str | None) -> Principal:
        """Take anybody."""
        return Principal("local")


class StaticTokens:
    """Fixed bearer tokens; each is a principal of its own."""

    required = True

    def __init__(self, tokens: Sequence[str]) -> None:
        self._digests = [hashlib.sha256(token.encode()).digest() for token in tokens]

    async def authenticate(self, token: str | None) -> Principal:
        """Compare in constant time, and keep the token itself out of ids and logs."""
        if token is None:
            raise CommandError("unauthorized", "a token is required")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        found = False
        for known in self._digests:
            found |= hmac.compare_digest(digest, known)
        if not found:
            raise CommandError("unauthorized", "the token is not valid")
        return Principal(f"token-{digest.hex()[:16]}")


LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def is_loopback(address: str) -> bool:
    """Say whether only this machine can reach an address."""
    if address.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def host_allowed(host: str | None, allowed: Collection[str]) -> bool:
    """Say whether a request was meant for us, by its ``Host`` header: DNS rebinding brings a stranger's name."""
    if not allowed or "*" in allowed:
        return True
    if host is None:
        return False
    name = host.lower()
    return name in allowed or re.sub(r":\d+\Z", "", name) in allowed


def origin_allowed(origin: str | None, host: str | None, allowed: Collection[str]) -> bool:
    """Say whether a browser's page may talk to us: the same host, or one that was named (``*``: any).

    A client without ``Origin`` is no browser and is let through.
    """
    if origin is None or "*" in allowed or origin.rstrip("/").lower() in allowed:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    if not parts.netloc or host is None:
        return False
    default = {"http": ":80", "https": ":443"}.get(parts.scheme, "")
    return parts.netloc.lower().removesuffix(default) == host.lower().removesuffix(default)
