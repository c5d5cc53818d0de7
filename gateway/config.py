"""Settings: one dataclass, its defaults, and where they can be set from (flags over environment over file)."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gateway.redact import MASK, redact

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadSetting(ValueError):
    """A setting that cannot be; the message is one line and names it. Secrets in it are masked."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """All settings. Times in seconds, sizes in bytes. Each is ``GATEWAY_<NAME>`` in the environment."""

    host: str = "127.0.0.1"
    port: int = 8000
    store: str = "sqlite:///gateway.db"
    bus: str | None = None
    """The Redis through which nodes that share a PostgreSQL store hear of each other; none: there is one node."""
    workers: int = 1
    """Processes on this machine that serve the same port, as nodes over a Redis of their own unless there is a bus."""
    lease_s: float = 6.0
    """How long a node may be silent in the store before the others take its sessions over."""
    token: str | None = None
    """Bearer tokens, comma separated; none means no authentication."""
    origins: str = ""
    """Origins besides our own whose pages may connect and use HTTP (CORS), comma separated; ``*`` for any."""
    hosts: str = ""
    """Names that the ``Host`` header may have, comma separated; empty for any. ``gateway serve`` without a token on a
    loopback address allows loopback names only, or any web page could reach it by pointing its own name there."""
    jwt_secret: str | None = None
    """The shared secret of HS256/384/512 tokens, at least 32 bytes."""
    jwt_key: str | None = None
    """A file with the public key (PEM) of RS, PS, ES or EdDSA tokens."""
    jwt_jwks: str | None = None
    """The URL of the issuer's key set (JWKS), read when first needed and again for keys it did not have."""
    jwt_algorithms: str = ""
    """Algorithms to accept, comma separated; empty for all that fit the key."""
    jwt_audience: str | None = None
    jwt_issuer: str | None = None
    jwt_claim: str = "sub"
    """The claim that names the principal."""
    jwt_leeway: float = 10.0
    """How far clocks may be apart."""
    cookie_name: str | None = None
    """A cookie that may carry the token instead, from our own pages or those of named ``origins``."""
    anonymous: bool = False
    """Serve another address than loopback although there is no token: everybody who reaches it is one principal."""
    model: str = "scripted"
    """The default agent's: ``scripted`` (offline), ``local``, ``openai:NAME``, ``anthropic:NAME``, ``google:NAME``."""
    model_url: str | None = None
    """Where the model is: an OpenAI-compatible endpoint (ends in ``/v1``), or a proxy of the provider's."""
    shell: bool = False
    """The default agent may run shell commands, each once a person has allowed it."""
    log_level: str = "info"
    disconnect_grace: float = 5.0
    abort_grace: float = 5.0
    drain: float = 10.0
    heartbeat_s: float = 15.0
    hello_timeout: float = 10.0
    send_timeout: float = 10.0
    auth_grace: float = 60.0
    """Grace of an owner whose connection ended with 4101: it has to fetch a token first."""
    retain_s: float = 300.0
    retain_bytes: int = 32 * 1024 * 1024
    evict_s: float = 60.0
    """How long a session stays in memory that is at rest, whether somebody is attached to it or not."""
    queue_limit: int = 16
    max_sessions: int = 1000
    """Sessions attached on one connection."""
    max_frame_bytes: int = 1024 * 1024
    commands_per_s: float = 100.0
    max_connections_per_principal: int = 200
    """Open sockets of one principal; 0 for any number, as for each of the limits below."""
    max_connections_per_address: int = 1000
    """Open sockets of one network address; loopback is exempt, where one's own proxy is."""
    max_runs_per_principal: int = 200
    max_runs: int = 10_000
    """Live runs of this process."""
    max_prompt_bytes: int = 0
    """A prompt's text or messages; ``max_frame_bytes`` bounds them anyway."""
    max_run_bytes: int = 256 * 1024 * 1024
    """What an engine may say in one run; past it the run is aborted with reason ``policy``."""
    max_session_messages: int = 100_000
    run_deadline: float = 0.0
    """Deadline of a run whose prompt names none."""
    max_run_deadline: float = 86_400.0
    """The longest deadline; a later one, or none, becomes this."""
    compression: bool = False
    """permessage-deflate: costs more than it saves on small frames."""

    def __repr__(self) -> str:
        """Show what is not a secret."""
        shown = (f"{name}={_shown(name, getattr(self, name))!r}" for name in _NAMES)
        return f"Settings({', '.join(shown)})"


CREDENTIALS = ("token", "jwt_secret", "jwt_key", "jwt_jwks")
"""The settings of which one says how clients authenticate."""

SECRETS = frozenset({"token", "jwt_secret"})
"""Settings that are never shown. (Others may hold a password in an address: that is masked.)"""

_NAMES = {field.name: field for field in fields(Settings)}
_ALIASES = {"heartbeat": "heartbeat_s", "retain": "retain_s", "evict": "evict_s", "max_queue": "queue_limit"}
_POSITIVE = frozenset({"workers", "lease_s", "heartbeat_s", "hello_timeout", "send_timeout", "commands_per_s"})
NEARLY = 0.9
"""A letter or two of a name, the prefix counted: ``GATEWAY_TOKNE`` is one, ``GATEWAY_URL`` is nobody's mistake."""

_LARGEST = 2**53  # as milliseconds still a number for every database
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def canonical(name: str) -> str | None:
    """Give the setting of a name as people write it (``disconnect-grace``, ``DRAIN_S``); None if there is none."""
    name = name.lower().replace("-", "_")
    for candidate in (name, _ALIASES.get(name, ""), name.removesuffix("_s"), f"{name}_s"):
        if candidate in _NAMES:
            return candidate
    return None


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Give a line for each variable that means nothing here and is nearly one that does; others are other people's."""
    known = [f"GATEWAY_{name.upper()}" for name in _NAMES]
    lines = []
    for variable in environ:
        if variable.startswith("GATEWAY_") and canonical(variable.removeprefix("GATEWAY_")) is None:
            nearest = difflib.get_close_matches(variable, known, n=1, cutoff=NEARLY)
            lines += [f"{variable} is not a setting and has no effect; is it {nearest[0]}?"] if nearest else []
    return lines


def read_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, config: str | None = None
) -> Settings:
    """Combine defaults, a TOML file, ``GATEWAY_…`` and flags (None: not given). Raises :exc:`BadSetting`."""
    return trace_settings(flags, environ, config)[0]


def trace_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, config: str | None = None
) -> tuple[Settings, dict[str, str]]:
    """Give the settings as :func:`read_settings` does, and where each that is no default was set."""
    environ = os.environ if environ is None else environ
    config = config or environ.get("GATEWAY_CONFIG")
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if config:
        values |= _from_file(config)
        origins |= dict.fromkeys(values, config)
    for variable, value in environ.items():
        if variable.startswith("GATEWAY_"):
            name = canonical(variable.removeprefix("GATEWAY_"))
            if name is not None:
                values[name] = _parse(name, value, variable)
                origins[name] = variable
    for name, value in flags.items():
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            values[name] = _parse(name, value, flag)
            origins[name] = flag
    return check(Settings(**values)), origins


def describe(settings: Settings, origins: Mapping[str, str]) -> str:
    """Show settings as TOML, one a line with its origin; what is secret, or holds a secret, is masked."""
    lines = []
    for name in _NAMES:
        value = getattr(settings, name)
        origin = origins.get(name, "default")
        if value is None:
            lines.append(f"# {name} is not set")
            continue
        # JSON writes strings, numbers and truth values as TOML does.
        lines.append(f"{name} = {json.dumps(_shown(name, value), ensure_ascii=False)}  # {origin}")
    return "\n".join(lines) + "\n"


def _shown(name: str, value: Any) -> Any:
    if value is not None and name in SECRETS:
        return MASK
    return redact(value) if isinstance(value, str) else value


def _from_file(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as exc:
        raise BadSetting(f"cannot read {path}: {exc.strerror}") from None
    except ValueError as exc:  # not UTF-8, or a number of too many digits, besides what tomllib calls an error
        raise BadSetting(f"{path} is not TOML: {exc}") from None
    values = {}
    for key, value in content.items():
        name = canonical(key)
        if name is None:
            raise BadSetting(f"{path}: there is no setting {key}")
        values[name] = _parse(name, value, f"{path}: {key}")
    return values


def _parse(name: str, value: Any, where: str) -> Any:
    kind = str(_NAMES[name].type)
    try:
        if isinstance(value, bool) and kind in ("int", "float"):
            raise ValueError(value)
        if kind == "int":
            return value if isinstance(value, int) else int(str(value))
        if kind == "float":
            return float(value)
        if kind == "bool":
            return _flag(str(value))
    except (ValueError, TypeError, OverflowError):
        word = {"int": "a whole number", "float": "a number", "bool": "true or false"}[kind]
        raise BadSetting(f"{where}: {value!r} is not {word}") from None
    return str(value)


def _flag(text: str) -> bool:
    if text.lower() in ("1", "true", "yes", "on"):
        return True
    if text.lower() in ("0", "false", "no", "off", ""):
        return False
    raise ValueError(text)


def check(settings: Settings) -> Settings:
    """Check ranges. Raises :exc:`BadSetting`."""
    for name, field in _NAMES.items():
        value = getattr(settings, name)
        if str(field.type) not in ("int", "float"):
            continue
        if not 0 <= value <= _LARGEST or (name in _POSITIVE and value <= 0):
            raise BadSetting(f"{name.replace('_', '-')}: {value} is out of range")
    if not settings.port <= 65535:
        raise BadSetting(f"port: {settings.port} is out of range")
    if settings.log_level.lower() not in _LOG_LEVELS:
        raise BadSetting(f"log-level: {settings.log_level!r} is none of {', '.join(_LOG_LEVELS)}")
    if settings.token is not None and not all(part.strip() for part in settings.token.split(",")):
        raise BadSetting("token: must not be empty")
    for name in ("jwt_secret", "jwt_key", "jwt_jwks", "cookie_name", "jwt_claim"):
        if getattr(settings, name) == "":
            raise BadSetting(f"{name}: must not be empty")
    credentials = [name for name in CREDENTIALS if getattr(settings, name) is not None]
    if len(credentials) > 1:
        raise BadSetting(f"{credentials[1]}: cannot be combined with {credentials[0]}; choose one")
    return settings
