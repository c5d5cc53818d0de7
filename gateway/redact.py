"""Secrets do not leave: what is logged, shown or said of an error passes through here first."""

from __future__ import annotations

import logging
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MASK = "***"
MIN_SECRET = 6
"""A shorter secret is not looked for: it would be found in every other word."""

_PASSWORD = re.compile(r"(?<=://)([^\s/?#@'\"]*?:)?[^\s/?#'\"]*@")
_PARAMETER = re.compile(
    r"(?i)([?&;](?:[\w-]*(?:token|secret|password|passwd|pwd|key|signature))=)[^\s&;#'\"]+",
)
_KEYWORD = re.compile(r"(?i)(?<![\w?&;-])((?:ssl)?(?:password|passwd|pwd)\s*=\s*)(?:'(?:[^'\\]|\\.)*'?|[^\s'\";,)]+)")
"""A password in libpq's other form of an address, ``host=… password=…``, as drivers and people write it."""
_FIELD = re.compile(r"(?i)(\"[\w-]*(?:token|secret|password|api_?key)\"\s*:\s*)\"(?:[^\"\\]|\\.)*\"?")
_HEADER = re.compile(r"(?i)\b((?:bearer|basic)\s+)[\w.~+/=-]{6,}")
_COOKIE = re.compile(r"(?i)\b((?:set-)?cookie:\s*)[^\r\n]+")
_JWT = re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*")
_VARIABLE = re.compile(r"(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)\Z")

_known: set[str] = set()


def hide(secrets: Iterable[str | None]) -> None:
    """Mask these wherever they turn up, from now on."""
    _known.update(secret for secret in secrets if secret is not None and len(secret) >= MIN_SECRET)


def hide_environment(environ: Mapping[str, str] | None = None) -> None:
    """Mask the values of variables that are named like secrets: providers' keys, tokens, passwords."""
    environ = os.environ if environ is None else environ
    hide(value for name, value in environ.items() if _VARIABLE.search(name))


def mask_known(text: str) -> str:
    """Mask known secrets, and nothing else: for words that are otherwise shown as they are."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def redact(text: str) -> str:
    """Mask known secrets and what looks like one: passwords in URLs, tokens in headers, parameters and JSON."""
    text = mask_known(text)
    if "@" in text:
        text = _PASSWORD.sub(lambda found: f"{found[1] or ''}{MASK}@", text)
    text = _PARAMETER.sub(rf"\1{MASK}", text)
    text = _KEYWORD.sub(rf"\1{MASK}", text)
    text = _FIELD.sub(rf'\1"{MASK}"', text)
    text = _HEADER.sub(rf"\1{MASK}", text)
    text = _COOKIE.sub(rf"\1{MASK}", text)
    return _JWT.sub(MASK, text)


class RedactingFormatter(logging.Formatter):
    """Formats a record, its exception included, and masks secrets in the result."""

    def format(self, record: logging.LogRecord) -> str:
        """See :meth:`logging.Formatter.format`."""
        return redact(super().format(record))
