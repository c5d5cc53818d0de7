"""Secrets do not leave: known ones, and what looks like one."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest

from gateway import redact as module
from gateway.audit import audit
from gateway.config import SECRETS, BadSetting, Settings, describe
from gateway.engine.errors import APIError, MessageErrorBuilder
from gateway.redact import RedactingFormatter, hide, hide_environment, redact
from gateway.stores.base import StoreUnavailable, StoreUnusable

SECRET = "s3cr3t-v4lue"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.Zm9v"


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_known", set())


@pytest.mark.parametrize(
    "text",
    [
        f"cannot reach postgresql://gateway:{SECRET}@db.example:5432/chat",
        f"cannot reach postgresql+psycopg://gateway:{SECRET}@db.example/chat",
        f"host=db.example user=me password={SECRET} dbname=chat",
        f"cannot use password='{SECRET} with a \\' in it' host=db.example",
        f"sslpassword = {SECRET}",
        f"redis://:{SECRET}@cache.example/0",
        f"redis://{SECRET}@cache.example/0",
        f"postgresql://db.example/chat?user=gateway&password={SECRET}&sslmode=require",
        f"GET /ws?token={SECRET} HTTP/1.1",
        f"GET /ws?x=1&access_token={SECRET}",
        f"https://model.example/v1?api_key={SECRET}",
        f"authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"cookie: a=b; session={SECRET}",
        f"set-cookie: session={SECRET}; HttpOnly",
        f'< TEXT \'{{"type": "hello", "token": "{SECRET}"}}\'',
        f'{{"token":"{SECRET}',
        f'{{"apiKey": "{SECRET}", "x": 1}}',
    ],
)
def test_what_looks_like_a_secret_is_masked_wherever_it_stands(text: str) -> None:
    shown = redact(text)
    assert SECRET not in shown
    assert "***" in shown


def test_a_web_token_is_masked_without_anything_around_it() -> None:
    assert redact(f"the token {JWT}, which") == "the token ***, which"


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:///gateway.db",
        "postgresql://db.example/chat?sslmode=require",
        "https://page.example/a@b",
        "mail ann@example.com, or see https://example.com",
        "the token is not valid",
        "GET /api/sessions?before=ses_1&limit=5",
        '{"type":"hello","client":"x"}',
    ],
)
def test_what_is_none_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_known_secret_is_masked_anywhere_and_the_longer_one_first() -> None:
    hide([SECRET, f"{SECRET}-longer", "abc", None])
    assert redact(f"<{SECRET}-longer> <{SECRET}> abc") == "<***> <***> abc"


def test_keys_in_the_environment_are_known() -> None:
    hide_environment({"OPENAI_API_KEY": "sk-something", "PGPASSWORD": SECRET, "HOME": "/root/here", "A_TOKEN": "x"})
    assert redact(f"sk-something {SECRET} /root/here x") == "*** *** /root/here x"


def test_a_log_line_is_masked_with_its_exception() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter("%(message)s"))
    logger = logging.getLogger("tests.redact")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        raise RuntimeError(f"postgresql://me:{SECRET}@db/x")
    except RuntimeError:
        logger.exception("lost %s", f"redis://:{SECRET}@cache")
    finally:
        logger.removeHandler(handler)
    assert "RuntimeError" in stream.getvalue()
    assert SECRET not in stream.getvalue()


@pytest.mark.parametrize("kind", [BadSetting, StoreUnusable, StoreUnavailable])
def test_an_error_that_names_an_address_hides_its_password(kind: type[Exception]) -> None:
    assert SECRET not in str(kind(f"cannot use postgresql://me:{SECRET}@db/x"))


def test_a_providers_error_does_not_repeat_the_key() -> None:
    hide([SECRET])
    error = MessageErrorBuilder.build(APIError(f"Incorrect API key provided: {SECRET}")).to_dict()
    assert error["message"] == "Incorrect API key provided: ***"


def test_settings_are_shown_without_secrets() -> None:
    values: dict[str, Any] = {"store": f"postgresql://me:{SECRET}@db/x", "jwt_jwks": f"https://x:{SECRET}@issuer/k"}
    for settings in (Settings(token=SECRET, **values), Settings(jwt_secret=SECRET * 4)):
        assert SECRET not in repr(settings)
        assert SECRET not in f"{settings}"
        assert SECRET not in describe(settings, {})


def test_every_setting_that_is_named_like_a_secret_is_one() -> None:
    named = {name for name in Settings.__dataclass_fields__ if any(w in name for w in ("token", "secret", "password"))}
    assert named <= SECRETS


def test_the_audit_trail_is_one_line_of_json_whatever_a_name_holds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gateway.audit"):
        audit("session-shared", principal='eve\n{"event":"forged"}', address="192.0.2.1", session_id="s")
    (record,) = caplog.records
    assert len(record.getMessage().splitlines()) == 1
    assert json.loads(record.getMessage()) == {
        "event": "session-shared",
        "principal": 'eve\n{"event":"forged"}',
        "address": "192.0.2.1",
        "session_id": "s",
    }
