"""JSON Web Tokens (the extra ``jwt``): signatures, claims, and the issuer's key set.

PyJWT checks a token; what is ours is which key it is checked with, and which algorithms that key allows. A shared
secret allows HS only, a public key never does (RFC 8725, 3.1: else an attacker signs with the public key as secret);
``none`` is in neither list.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.error
import urllib.request
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import jwt
from jwt import PyJWK, PyJWKSet

from gateway.auth import Principal, is_principal
from protocol.errors import CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

logger = logging.getLogger(__name__)

SYMMETRIC = ("HS256", "HS384", "HS512")
ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
MIN_SECRET = 32
"""Bytes of a shared secret: as many as HS256's digest has (RFC 7518, 3.2)."""

MAX_TOKEN = 16 * 1024
KEYS_FOR_S = 300.0
"""How long a key set is good before it is read again; if that fails the old one stays in use."""

REFETCH_EVERY_S = 10.0
"""How often, at most, the key set is read for a key that it did not have, or after a failure."""

FETCH_TIMEOUT_S = 5.0
MAX_JWKS_BYTES = 1024 * 1024
RETRY_AFTER_S = 5.0


class Keys(Protocol):
    """Where the key is that a token's header names."""

    @property
    def algorithms(self) -> Collection[str]:
        """What these keys may have signed with."""
        ...

    async def find(self, header: dict[str, Any]) -> Any:
        """Give a key. Raises :exc:`CommandError`."""
        ...


class OneKey:
    """A secret, or a public key in PEM."""

    def __init__(self, key: Any, algorithms: Collection[str]) -> None:
        self.algorithms = algorithms
        self._key = key

    async def find(self, header: dict[str, Any]) -> Any:
        """Give the key, whatever the header says."""
        return self._key


def secret(text: str, algorithms: Collection[str] = ()) -> OneKey:
    """Give the key of HS tokens. Raises ValueError for one that can be guessed."""
    if len(text.encode()) < MIN_SECRET:
        raise ValueError(f"a secret has at least {MIN_SECRET} bytes")
    return OneKey(text.encode(), _chosen(algorithms, SYMMETRIC))


def public_key(path: str, algorithms: Collection[str] = ()) -> OneKey:
    """Give the key of a PEM file with the algorithms that its kind has. Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(Path(path).read_bytes())
    except OSError as exc:
        raise ValueError(f"cannot read {path}: {exc.strerror}") from None
    except Exception as exc:
        raise ValueError(f"{path} has no public key in PEM ({type(exc).__name__})") from None
    if isinstance(key, rsa.RSAPublicKey):
        return OneKey(key, _chosen(algorithms, [name for name in ASYMMETRIC if name[:2] in ("RS", "PS")]))
    if isinstance(key, ec.EllipticCurvePublicKey):
        return OneKey(key, _chosen(algorithms, [name for name in ASYMMETRIC if name[:2] == "ES"]))
    if isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return OneKey(key, _chosen(algorithms, ["EdDSA"]))
    raise ValueError(f"{path} is a key of a kind that signs no tokens")


class KeySet:
    """An issuer's keys by URL, cached. A new key is found by one more look, which is rate limited; when the issuer
    does not answer, the keys that are known stay in use.
    """

    def __init__(
        self,
        url: str,
        algorithms: Collection[str] = (),
        *,
        fetch: Callable[[str], bytes] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if not url.lower().startswith(("https://", "http://")):
            raise ValueError("a key set has an https address")
        self.algorithms = _chosen(algorithms, ASYMMETRIC)
        self._url = url
        self._fetch = fetch or _fetch
        self._clock = clock
        self._keys: list[PyJWK] = []
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._lock = asyncio.Lock()

    async def find(self, header: dict[str, Any]) -> Any:
        """Give the key with the header's ``kid``, or the only one that fits where it names none."""
        stale = self._read_at is None or self._clock() - self._read_at > KEYS_FOR_S
        key = self._known(header)
        if stale or key is None:
            async with self._lock:  # who waited here finds what the other read
                again = self._known(header)
                fresh = self._read_at is not None and self._clock() - self._read_at <= KEYS_FOR_S
                if (again is None or not fresh) and self._may_look():
                    await self._look()
            key = self._known(header)
        if key is not None:
            return key.key  # bare: a PyJWK would bring the algorithm that it guesses from its own kind
        if self._read_at is None:
            raise CommandError(
                "internal",
                "the keys to check tokens with cannot be read from their issuer now; try again",
                retry_after_s=RETRY_AFTER_S,
            )
        raise CommandError("unauthorized", "the token is signed with an unknown key")

    def _may_look(self) -> bool:
        return self._tried_at is None or self._clock() - self._tried_at >= REFETCH_EVERY_S

    async def _look(self) -> None:
        self._tried_at = self._clock()
        try:
            data = await asyncio.to_thread(self._fetch, self._url)
            keys = [key for key in PyJWKSet.from_json(data.decode()).keys if key.public_key_use in (None, "sig")]
        except Exception as exc:  # whatever a server may answer
            logger.error("the key set cannot be read: %s; %d known keys stay in use", _why(exc), len(self._keys))
            return
        self._keys = keys
        self._read_at = self._tried_at

    def _known(self, header: dict[str, Any]) -> PyJWK | None:
        kid, algorithm = header.get("kid"), header.get("alg")
        found = [key for key in self._keys if (kid is None or key.key_id == kid) and _fits(key, algorithm)]
        return found[0] if len(found) == 1 else None


class JsonWebTokens:
    """An :class:`~gateway.auth.Authenticator`: the principal is what the claim ``claim`` (``sub``) says.

    ``exp`` is required; it, plus the leeway, is when the connection ends with 4101 unless a later token came.
    """

    required = True

    def __init__(
        self,
        keys: Keys,
        *,
        audience: str | None = None,
        issuer: str | None = None,
        claim: str = "sub",
        leeway_s: float = 10.0,
    ) -> None:
        self._keys = keys
        self._audience = audience
        self._issuer = issuer
        self._claim = claim
        self._leeway_s = leeway_s

    async def authenticate(self, token: str | None) -> Principal:
        """Check signature and claims. Raises :exc:`CommandError`; its message never repeats the token."""
        if not token:
            raise CommandError("unauthorized", "a token is required")
        if len(token) > MAX_TOKEN or not token.isascii():
            raise _invalid("it is no JSON Web Token")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _invalid("it is no JSON Web Token") from None
        if header.get("alg") not in self._keys.algorithms:
            raise _invalid("its algorithm is not accepted")
        key = await self._keys.find(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=list(self._keys.algorithms),
                audience=self._audience,
                issuer=self._issuer,
                leeway=self._leeway_s,
                # Without an audience of our own, one that a token names is not for us to judge.
                options={"require": ["exp"], "verify_aud": self._audience is not None},
            )
        except jwt.PyJWTError as exc:
            raise _invalid(_REASONS.get(type(exc), "it does not verify")) from None
        except Exception as exc:  # a claim of a shape that nobody thought of
            logger.info("a token could not be read: %s", type(exc).__name__)
            raise _invalid("it does not verify") from None
        return self._principal(claims)

    def _principal(self, claims: dict[str, Any]) -> Principal:
        name = claims.get(self._claim)
        if not isinstance(name, str) or not is_principal(name):
            raise _invalid(f"its claim {self._claim} names nobody")
        expires = (float(claims["exp"]) + self._leeway_s) * 1000
        return Principal(name, int(min(expires, _LATEST_MS)))


_LATEST_MS = 2**53 - 1
"""The largest integer that every JSON reader takes exactly."""

_REASONS: dict[type[Exception], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is not valid yet",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidIssuerError: "it is from another issuer",
    jwt.InvalidSignatureError: "its signature is wrong",
    jwt.MissingRequiredClaimError: "a claim is missing",
}
"""What a client may be told."""


def _invalid(why: str) -> CommandError:
    return CommandError("unauthorized", f"the token is not valid: {why}")


def _chosen(wanted: Collection[str], possible: Collection[str]) -> tuple[str, ...]:
    strange = [name for name in wanted if name not in possible]
    if strange:
        raise ValueError(f"algorithm {strange[0]} does not fit the key; possible are {', '.join(possible)}")
    return tuple(name for name in possible if not wanted or name in wanted)


def _fits(key: PyJWK, algorithm: Any) -> bool:
    """Say whether a key is of the kind that an algorithm needs, and has not been given out for another one."""
    named = key._jwk_data.get("alg")
    kinds = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}
    return named in (None, algorithm) and key.key_type == kinds.get(str(algorithm)[:2])


def _fetch(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"accept": "application/json"})
    with urllib.request.urlopen(request, timeout=FETCH_TIMEOUT_S) as answer:
        data: bytes = answer.read(MAX_JWKS_BYTES + 1)
    if len(data) > MAX_JWKS_BYTES:
        raise ValueError(f"more than {MAX_JWKS_BYTES} bytes")
    return data


def _why(exc: Exception) -> str:
    """Give a reason without the URL, which may bear a password."""
    if isinstance(exc, urllib.error.HTTPError):
        return f"HTTP {exc.code}"
    if isinstance(exc, urllib.error.URLError):
        return f"{type(exc).__name__}: {exc.reason}"
    return type(exc).__name__
