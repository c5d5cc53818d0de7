"""Settings: one dataclass, its defaults, and where they can be set from (flags over environment over file)."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class BadSetting(ValueError):
    """A setting that cannot be; the message is one line and names it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. Times in seconds, sizes in bytes. Each is ``GATEWAY_<NAME>`` in the environment."""

    host: str = "127.0.0.1"
    port: int = 8000
    store: str = "sqlite:///gateway.db"
    token: str | None = None
    """Bearer tokens, comma separated; none means no authentication."""
    origins: str = ""
    """Origins besides our own whose pages may connect, comma separated; ``*`` for any."""
    hosts: str = ""
    """Names that the ``Host`` header may have, comma separated; empty for any. ``gateway serve`` without a token on a
    loopback address allows loopback names only, or any web page could reach it by pointing its own name there."""
    anonymous: bool = False
    """Serve another address than loopback although there is no token: everybody who reaches it is one principal."""
    model: str = "scripted"
    """The default agent's model: ``scripted`` (offline), ``openai:NAME``, ``anthropic:NAME``, ``google:NAME``."""
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
    """How long an untouched session stays in memory."""
    queue_limit: int = 16
    max_sessions: int = 1000
    """Sessions attached on one connection."""
    max_frame_bytes: int = 1024 * 1024
    commands_per_s: float = 100.0
    compression: bool = False
    """permessage-deflate: costs more than it saves on small frames."""


_NAMES = {field.name: field for field in fields(Settings)}
_ALIASES = {"heartbeat": "heartbeat_s", "retain": "retain_s", "evict": "evict_s", "max_queue": "queue_limit"}
_POSITIVE = frozenset({"heartbeat_s", "hello_timeout", "send_timeout", "commands_per_s"})
_LARGEST = 2**53  # as milliseconds still a number for every database
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


def canonical(name: str) -> str | None:
    """Give the setting of a name as people write it (``disconnect-grace``, ``DRAIN_S``); None if there is none."""
    name = name.lower().replace("-", "_")
    for candidate in (name, _ALIASES.get(name, ""), name.removesuffix("_s"), f"{name}_s"):
        if candidate in _NAMES:
            return candidate
    return None


def read_settings(
    flags: Mapping[str, Any], environ: Mapping[str, str] | None = None, config: str | None = None
) -> Settings:
    """Combine defaults, a TOML file, ``GATEWAY_…`` and flags (None: not given). Raises :exc:`BadSetting`."""
    environ = os.environ if environ is None else environ
    config = config or environ.get("GATEWAY_CONFIG")
    values: dict[str, Any] = {}
    if config:
        values |= _from_file(config)
    for variable, value in environ.items():
        if variable.startswith("GATEWAY_"):
            name = canonical(variable.removeprefix("GATEWAY_"))
            if name is not None:
                values[name] = _parse(name, value, variable)
    values |= {
        name: _parse(name, value, f"--{name.replace('_', '-')}") for name, value in flags.items() if value is not None
    }
    return check(Settings(**values))


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
            raise BadSetting(f"{name}: {value} is out of range")
    if not settings.port <= 65535:
        raise BadSetting(f"port: {settings.port} is out of range")
    if settings.log_level.lower() not in _LOG_LEVELS:
        raise BadSetting(f"log_level: {settings.log_level!r} is none of {', '.join(_LOG_LEVELS)}")
    if settings.token is not None and not all(part.strip() for part in settings.token.split(",")):
        raise BadSetting("token: must not be empty")
    return settings
