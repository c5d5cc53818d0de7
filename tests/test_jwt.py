"""JSON Web Tokens: what is accepted, what an attacker tries, and an issuer whose keys change or that is down."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.auth import Principal
from gateway.jwt import KEYS_FOR_S, REFETCH_EVERY_S, JsonWebTokens, KeySet, public_key, secret
from protocol.errors import CommandError

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "a secret of at least thirty-two bytes"
RSA_1 = rsa.generate_private_key(public_exponent=65537, key_size=2048)
RSA_2 = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def claims(**more: Any) -> dict[str, Any]:
    return {"sub": "ann", "exp": int(time.time()) + 600} | more


def token(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **more: Any) -> str:
    return jwt.encode(claims(**more), key, algorithm, headers=None if kid is None else {"kid": kid})


def forged(header: dict[str, Any], payload: Any, key: bytes | None = None) -> str:
    """A token made by hand; with a key, signed by HMAC-SHA256."""

    def part(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    signed = part(json.dumps(header).encode()) + b"." + part(json.dumps(payload).encode())
    mac = b"" if key is None else hmac.new(key, signed, hashlib.sha256).digest()
    return (signed + b"." + part(mac)).decode()


def pem(key: Any, folder: Path) -> str:
    path = folder / "key.pem"
    path.write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return str(path)


async def refusal(authenticator: JsonWebTokens, text: str | None) -> CommandError:
    with pytest.raises(CommandError) as caught:
        await authenticator.authenticate(text)
    assert text is None or len(text) < 8 or text not in caught.value.message
    return caught.value


class Issuer:
    """A key set that a test changes or takes down, and a clock."""

    def __init__(self, **keys: Any) -> None:
        self.keys = keys
        self.now = 0.0
        self.reads = 0
        self.answer: bytes | Exception | None = None
        self.set = KeySet("https://issuer.example/jwks", fetch=self.fetch, clock=lambda: self.now)

    def fetch(self, url: str) -> bytes:
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if self.answer is not None else json.dumps({"keys": self.jwks()}).encode()

    def jwks(self) -> list[dict[str, Any]]:
        made = []
        for kid, key in self.keys.items():
            kinds = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
            algorithm: Any = next((a for kind, a in kinds.items() if isinstance(key, kind)), OKPAlgorithm)
            made.append({**algorithm.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"})
        return made


# -- what is accepted


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
async def test_a_token_signed_with_the_secret(algorithm: str) -> None:
    key = SECRET * 2
    made = claims()
    found = await JsonWebTokens(secret(key), leeway_s=3).authenticate(jwt.encode(made, key, algorithm))
    assert found == Principal("ann", (made["exp"] + 3) * 1000)


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA_1, "RS256"), (RSA_1, "RS512"), (RSA_1, "PS256"), (EC, "ES256"), (ED, "EdDSA")]
)
async def test_a_token_signed_with_a_private_key(key: Any, algorithm: str, tmp_path: Path) -> None:
    by_file = JsonWebTokens(public_key(pem(key, tmp_path)))
    by_url = JsonWebTokens(Issuer(one=key).set)
    assert (await by_file.authenticate(token(key, algorithm))).id == "ann"
    assert (await by_url.authenticate(token(key, algorithm, kid="one"))).id == "ann"
    assert (await by_url.authenticate(token(key, algorithm))).id == "ann", "no kid, and one key that fits"


async def test_another_claim_may_name_the_principal() -> None:
    authenticator = JsonWebTokens(secret(SECRET), claim="email")
    assert (await authenticator.authenticate(token(email="ann@example.com"))).id == "ann@example.com"
    assert (await refusal(authenticator, token())).code == "unauthorized"


async def test_audience_and_issuer_are_checked_where_they_are_set() -> None:
    authenticator = JsonWebTokens(secret(SECRET), audience="chat", issuer="https://issuer.example")
    good: dict[str, Any] = {"aud": ["chat", "mail"], "iss": "https://issuer.example"}
    assert (await authenticator.authenticate(token(**good))).id == "ann"
    assert "audience" in (await refusal(authenticator, token(**good | {"aud": "mail"}))).message
    assert "issuer" in (await refusal(authenticator, token(**good | {"iss": "https://evil.example"}))).message
    assert "missing" in (await refusal(authenticator, token(iss=good["iss"]))).message
    assert (await JsonWebTokens(secret(SECRET)).authenticate(token(**good))).id == "ann", "none set, none checked"


async def test_clocks_may_be_apart_by_the_leeway() -> None:
    authenticator, now = JsonWebTokens(secret(SECRET), leeway_s=30), int(time.time())
    assert (await authenticator.authenticate(token(exp=now - 10))).id == "ann"
    assert (await authenticator.authenticate(token(nbf=now + 10))).id == "ann"
    assert "expired" in (await refusal(authenticator, token(exp=now - 40))).message
    assert "not valid yet" in (await refusal(authenticator, token(nbf=now + 60))).message


# -- what an attacker tries


@pytest.mark.parametrize("name", ["none", "None", "NONE", "nOnE", "", None, 7, ["HS256"], "HS256 ", "RS256"])
async def test_no_algorithm_but_the_keys_own_is_taken(name: Any) -> None:
    for key in (None, SECRET.encode(), b""):
        made = forged({"typ": "JWT", "alg": name}, claims(), key)
        assert (await refusal(JsonWebTokens(secret(SECRET)), made)).code == "unauthorized"


@pytest.mark.parametrize("source", ["file", "url"])
async def test_a_public_key_is_never_taken_for_a_secret(source: str, tmp_path: Path) -> None:
    path = pem(RSA_1, tmp_path)
    issuer = Issuer(one=RSA_1)
    authenticator = JsonWebTokens(public_key(path) if source == "file" else issuer.set)
    public = (tmp_path / "key.pem").read_bytes()
    jwk = json.dumps(issuer.jwks()[0]).encode()
    for key in (public, public.strip(), jwk, b""):
        made = forged({"alg": "HS256", "kid": "one"}, claims(), key)
        assert (await refusal(authenticator, made)).code == "unauthorized"


async def test_a_secret_in_a_key_set_is_not_a_key() -> None:
    issuer = Issuer()
    octets = base64.urlsafe_b64encode(SECRET.encode()).decode()
    issuer.answer = json.dumps({"keys": [{"kty": "oct", "k": octets, "kid": "one"}, *Issuer(two=EC).jwks()]}).encode()
    authenticator = JsonWebTokens(issuer.set)
    assert (await refusal(authenticator, token(kid="one"))).code == "unauthorized"
    assert (await authenticator.authenticate(token(EC, "ES256", kid="two"))).id == "ann"


async def test_a_key_that_the_token_brings_itself_is_ignored() -> None:
    issuer = Issuer(one=RSA_1)
    own = Issuer(one=RSA_2).jwks()[0]
    for header in ({"jwk": own}, {"jku": "https://evil.example/jwks"}, {"x5u": "https://evil.example"}, {}):
        made = jwt.encode(claims(), RSA_2, "RS256", headers={"kid": "one", **header})
        assert "signature" in (await refusal(JsonWebTokens(issuer.set), made)).message
    assert issuer.reads <= 4


async def test_an_extension_that_must_be_understood_and_is_not_refuses_the_token() -> None:
    made = forged({"alg": "HS256", "crit": ["x-mfa"], "x-mfa": "required"}, claims(), SECRET.encode())
    assert (await refusal(JsonWebTokens(secret(SECRET)), made)).code == "unauthorized"


async def test_a_key_given_out_for_one_algorithm_or_for_encryption_serves_no_other() -> None:
    issuer = Issuer()
    (key,) = Issuer(one=RSA_1).jwks()
    issuer.answer = json.dumps({"keys": [key | {"alg": "RS256"}, key | {"kid": "two", "use": "enc"}]}).encode()
    authenticator = JsonWebTokens(issuer.set)
    assert (await authenticator.authenticate(token(RSA_1, "RS256", kid="one"))).id == "ann"
    assert (await refusal(authenticator, token(RSA_1, "PS256", kid="one"))).code == "unauthorized"
    assert (await refusal(authenticator, token(RSA_1, "RS256", kid="two"))).code == "unauthorized"


@pytest.mark.parametrize(
    "text", [None, "", ".", "..", "a.b.c", "é.é.é", "\ud800", "x" * 20_000, "eyJhbGciOiJIUzI1NiJ9.."]
)
async def test_what_is_no_token_is_unauthorized(text: str | None) -> None:
    assert (await refusal(JsonWebTokens(secret(SECRET)), text)).code == "unauthorized"


@pytest.mark.parametrize(
    "payload",
    [
        {"sub": "ann"},
        claims(exp="soon"),
        claims(exp=None),
        claims(exp=[1]),
        claims(exp=1e400),
        claims(exp=-1),
        claims(sub=""),
        claims(sub=7),
        claims(sub=None),
        claims(sub={"$ne": ""}),
        claims(sub="x" * 257),
        claims(sub="ann\nINFO: bob signed in"),
        claims(nbf="later"),
        claims(iat="never"),
        [],
        "ann",
        7,
    ],
)
async def test_claims_of_any_shape_end_in_unauthorized(payload: Any) -> None:
    made = forged({"alg": "HS256"}, payload, SECRET.encode())
    assert (await refusal(JsonWebTokens(secret(SECRET)), made)).code == "unauthorized"


async def test_one_changed_letter_is_another_token() -> None:
    good = token()
    head, body, mac = good.split(".")
    for made in (f"{head}.{body[:-2]}{'A' if body[-2] != 'A' else 'B'}{body[-1]}.{mac}", f"{head}.{body}."):
        assert (await refusal(JsonWebTokens(secret(SECRET)), made)).code == "unauthorized"


async def test_json_of_any_depth_is_unauthorized() -> None:
    data = b'{"exp":' + b"[" * 9000
    head = base64.urlsafe_b64encode(b'{"alg":"HS256"}').rstrip(b"=")
    signed = head + b"." + base64.urlsafe_b64encode(data).rstrip(b"=")
    mac = base64.urlsafe_b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).rstrip(b"=")
    assert (await refusal(JsonWebTokens(secret(SECRET)), (signed + b"." + mac).decode())).code == "unauthorized"
    header = base64.urlsafe_b64encode(b'{"alg":"HS256","x":' + b"[" * 9000).rstrip(b"=").decode()
    assert (await refusal(JsonWebTokens(secret(SECRET)), f"{header}.e30.x")).code == "unauthorized"


@pytest.mark.parametrize("short", ["", "secret", "x" * 31])
def test_a_secret_that_can_be_guessed_is_refused(short: str) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        secret(short)


def test_a_key_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "junk.pem").write_text(SECRET)
    for path, why in (("missing.pem", "cannot read"), ("junk.pem", "no public key")):
        with pytest.raises(ValueError, match=why) as caught:
            public_key(str(tmp_path / path))
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)
    with pytest.raises(ValueError, match="https"):
        KeySet("file:///etc/passwd")
    with pytest.raises(ValueError, match="does not fit"):
        secret(SECRET, ["RS256"])
    with pytest.raises(ValueError, match="does not fit"):
        public_key(pem(RSA_1, tmp_path), ["HS256"])


# -- the issuer


async def test_the_key_set_is_read_once_and_again_when_it_is_old() -> None:
    issuer = Issuer(one=RSA_1)
    authenticator = JsonWebTokens(issuer.set)
    for _ in range(5):
        await authenticator.authenticate(token(RSA_1, "RS256", kid="one"))
    assert issuer.reads == 1
    issuer.now = KEYS_FOR_S + 1
    await authenticator.authenticate(token(RSA_1, "RS256", kid="one"))
    assert issuer.reads == 2


async def test_a_key_that_was_withdrawn_is_good_no_longer_than_the_cache() -> None:
    issuer = Issuer(one=RSA_1, two=EC)
    authenticator = JsonWebTokens(issuer.set)
    await authenticator.authenticate(token(RSA_1, "RS256", kid="one"))
    del issuer.keys["one"]
    issuer.now = KEYS_FOR_S + 1
    assert "unknown key" in (await refusal(authenticator, token(RSA_1, "RS256", kid="one"))).message


async def test_a_new_key_is_found_by_one_more_look_and_looks_are_rate_limited() -> None:
    issuer = Issuer(one=RSA_1)
    authenticator = JsonWebTokens(issuer.set)
    await authenticator.authenticate(token(RSA_1, "RS256", kid="one"))
    issuer.keys["two"] = RSA_2
    issuer.now = REFETCH_EVERY_S
    assert (await authenticator.authenticate(token(RSA_2, "RS256", kid="two"))).id == "ann"
    assert issuer.reads == 2
    for n in range(100):
        error = await refusal(authenticator, token(RSA_2, "RS256", kid=f"made-up-{n}"))
        assert error.code == "unauthorized"
    assert issuer.reads == 2
    issuer.now += REFETCH_EVERY_S
    await refusal(authenticator, token(RSA_2, "RS256", kid="made-up"))
    assert issuer.reads == 3


@pytest.mark.parametrize(
    "answer", [OSError("down"), b"<html>", b"{}", b"[]", b'{"keys": 7}', b'{"keys": [7]}', b"\xff"]
)
async def test_an_issuer_that_is_down_is_said_so_and_may_come_back(answer: Any) -> None:
    issuer = Issuer(one=RSA_1)
    issuer.answer = answer
    authenticator = JsonWebTokens(issuer.set)
    made = token(RSA_1, "RS256", kid="one")
    for _ in range(3):
        error = await refusal(authenticator, made)
        assert (error.code, error.retryable) == ("internal", True)
        assert "issuer" in error.message
    assert issuer.reads == 1
    issuer.answer = None
    issuer.now += REFETCH_EVERY_S
    assert (await authenticator.authenticate(made)).id == "ann"


async def test_while_the_issuer_is_down_the_known_keys_are_kept() -> None:
    issuer = Issuer(one=RSA_1)
    authenticator = JsonWebTokens(issuer.set)
    made = token(RSA_1, "RS256", kid="one")
    await authenticator.authenticate(made)
    issuer.answer = OSError("down")
    issuer.now = KEYS_FOR_S + 1
    for _ in range(3):
        assert (await authenticator.authenticate(made)).id == "ann"
    assert issuer.reads == 2
    assert (await refusal(authenticator, token(RSA_2, "RS256", kid="two"))).code == "unauthorized"
