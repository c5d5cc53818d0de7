"""Who is there: authenticators, principals and the origin check."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Collection, MutableMapping, Sequence


MAX_PRINCIPAL = 256


def is_principal(name: str) -> bool:
    """Say whether somebody can be called so."""
    return 1 <= len(name) <= MAX_PRINCIPAL and name.isprintable()


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who owns sessions. ``expires_at``: ms since 1970, after which the connection ends with 4101.

    Raises ValueError for an id that is empty, longer than :data:`MAX_PRINCIPAL`, or has what cannot be printed (a
    database need not take it, and a log would be misled by it).
    """

    id: str
    expires_at: int | None = None

    def __post_init__(self) -> None:
        if not is_principal(self.id):
            raise ValueError(f"a principal's id has 1 to {MAX_PRINCIPAL} printable characters")


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


def bearer(authorization: str) -> str | None:
    """Give the token of an ``Authorization`` header."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def cookie_token(
    header: str | None, name: str | None, *, origin: str | None, host: str | None, origins: Collection[str], reads: bool
) -> str | None:
    """Give the token that a cookie of this ``name`` carries, if the request may be believed to be our own page's.

    A browser sends cookies along with whatever any page makes it ask. So it takes an ``Origin`` that is ours or was
    named (``*`` names nobody); only a request that just ``reads`` may come without one, as a browser sends none with
    it, and no other page gets to see its answer. Of two cookies of one name one may be planted: neither counts.
    """
    if name is None or header is None:
        return None
    if origin is None and not reads:
        return None
    if not origin_allowed(origin, host, [item for item in origins if item != "*"]):
        return None
    pairs = (part.strip().partition("=") for part in header.split(";"))
    values = {value.strip().strip('"') for key, _, value in pairs if key == name}
    return values.pop() if len(values) == 1 else None


def peer(scope: MutableMapping[str, Any]) -> str | None:
    """Give the network address that a request came from."""
    client = scope.get("client")
    return None if client is None else str(client[0])


LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


@lru_cache(maxsize=1024)  # it is asked for each connection, and parsing costs as much as a message
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
