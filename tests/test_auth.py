"""Who is there, and whose pages and names may talk to us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.auth import Anonymous, Principal, StaticTokens, host_allowed, is_loopback, origin_allowed
from protocol.errors import CommandError


async def test_without_authentication_everybody_is_the_same_principal() -> None:
    anonymous = Anonymous()
    assert anonymous.required is False
    assert await anonymous.authenticate(None) == await anonymous.authenticate("whatever") == Principal("local")


@pytest.mark.parametrize("name", ["", "x" * 257, "a\0b", "a\nb", "\ud800"])
def test_nobody_is_called_what_cannot_be_printed(name: str) -> None:
    with pytest.raises(ValueError, match="printable"):
        Principal(name)


async def test_each_token_is_a_principal_of_its_own_and_the_same_one_each_time() -> None:
    tokens = StaticTokens(["alpha", "beta"])
    assert tokens.required is True
    alpha, beta = await tokens.authenticate("alpha"), await tokens.authenticate("beta")
    assert alpha.id != beta.id
    assert await StaticTokens(["alpha"]).authenticate("alpha") == alpha


async def test_a_principals_id_does_not_give_its_token_away() -> None:
    assert "alpha" not in (await StaticTokens(["alpha"]).authenticate("alpha")).id


@pytest.mark.parametrize("token", [None, "", "alph", "alpha ", "ALPHA", "\ud800", "é" * 100_000])
async def test_any_other_token_is_unauthorized(token: str | None) -> None:
    with pytest.raises(CommandError) as caught:
        await StaticTokens(["alpha"]).authenticate(token)
    assert caught.value.code == "unauthorized"


@pytest.mark.parametrize(
    ("origin", "host", "allowed", "expected"),
    [
        (None, "example.com", (), True),
        ("https://example.com", "example.com", (), True),
        ("https://EXAMPLE.com", "example.com", (), True),
        ("https://example.com:443", "example.com", (), True),
        ("http://example.com", "example.com:80", (), True),
        ("http://example.com:8000", "example.com:8000", (), True),
        ("http://example.com:8000", "example.com:8001", (), False),
        ("https://evil.com", "example.com", (), False),
        ("https://example.com.evil.com", "example.com", (), False),
        ("https://evil.com", "example.com", ("*",), True),
        ("https://page.com", "example.com", ("https://page.com",), True),
        ("https://page.com/", "example.com", ("https://page.com",), True),
        ("https://Page.com", "example.com", ("https://page.com",), True),
        ("http://page.com", "example.com", ("https://page.com",), False),
        ("https://example.com", None, (), False),
        ("null", "example.com", (), False),
        ("null", "null", (), False),
        ("", "", (), False),
        ("http://[", "example.com", (), False),
        ("http://[::1]:8000", "[::1]:8000", (), True),
    ],
)
def test_a_page_may_connect_from_our_own_host_or_one_that_was_named(
    origin: str | None, host: str | None, allowed: tuple[str, ...], expected: bool
) -> None:
    assert origin_allowed(origin, host, allowed) is expected


@given(origin=st.text(), host=st.text())
def test_no_origin_ends_in_an_error(origin: str, host: str) -> None:
    assert origin_allowed(origin, host, ()) in (True, False)
    assert origin_allowed("http://" + origin, host, ()) in (True, False)


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        ("anything", (), True),
        (None, (), True),
        (None, ("localhost",), False),
        ("localhost", ("localhost",), True),
        ("LOCALHOST:8000", ("localhost",), True),
        ("[::1]:8000", ("[::1]",), True),
        ("rebound.evil.com", ("localhost",), False),
        ("localhost.evil.com:8000", ("localhost",), False),
        ("evil.com", ("*",), True),
    ],
)
def test_a_request_has_to_name_us(host: str | None, allowed: tuple[str, ...], expected: bool) -> None:
    assert host_allowed(host, allowed) is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("LocalHost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback_is_what_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected
    assert is_loopback("example.com") is False
