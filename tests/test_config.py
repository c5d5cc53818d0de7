"""Where settings come from, which one wins, and that a bad one is named."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gateway.app import open_store
from gateway.config import BadSetting, Settings, canonical, check, misspelt, read_settings

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = [field.name for field in fields(Settings) if str(field.type) in ("int", "float")]


def toml(tmp_path: Path, content: str | bytes) -> str:
    file = tmp_path / "gateway.toml"
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(file)


def with_(name: str, value: Any) -> Settings:
    values: dict[str, Any] = {name: value}
    return Settings(**values)


def test_without_anything_the_defaults_hold() -> None:
    assert read_settings({}, {}) == Settings()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "port = 1\ndrain = 1\nretain_s = 1\n")
    settings = read_settings({"port": 3, "drain": None}, {"GATEWAY_PORT": "2", "GATEWAY_DRAIN": "2"}, file)
    assert (settings.port, settings.drain, settings.retain_s) == (3, 2.0, 1.0)


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    assert read_settings({}, {"GATEWAY_CONFIG": toml(tmp_path, "port = 9")}).port == 9


@pytest.mark.parametrize("name", [field.name for field in fields(Settings)])
def test_every_setting_can_come_from_the_environment_and_from_a_file(name: str, tmp_path: Path) -> None:
    values: dict[str, Any] = {"int": 7, "float": 7.5, "bool": True, "str": "seven", "str | None": "seven"}
    kind = next(str(field.type) for field in fields(Settings) if field.name == name)
    value = "debug" if name == "log_level" else values[kind]
    written = "true" if kind == "bool" else repr(value)
    assert getattr(read_settings({}, {f"GATEWAY_{name.upper()}": str(value)}), name) == value
    assert getattr(read_settings({}, {}, toml(tmp_path, f"{name} = {written}")), name) == value
    assert getattr(read_settings({name: value}, {}), name) == value


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("disconnect-grace", "disconnect_grace"),
        ("DRAIN_S", "drain"),
        ("heartbeat", "heartbeat_s"),
        ("retain", "retain_s"),
        ("max_queue", "queue_limit"),
        ("send_timeout_s", "send_timeout"),
        ("nothing", None),
    ],
)
def test_names_are_taken_as_people_write_them(written: str, name: str | None) -> None:
    assert canonical(written) == name


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("GATEWAY_TOKNE", "GATEWAY_TOKEN"),
        ("GATEWAY_MAX_FRAM_BYTES", "GATEWAY_MAX_FRAME_BYTES"),
        ("GATEWAY_ORIGIN", "GATEWAY_ORIGINS"),
        ("GATEWAY_TOKEN", None),
        ("GATEWAY_HEARTBEAT", None),  # short for what it means
        ("GATEWAY_URL", None),
        ("GATEWAY_PYTHON", None),
        ("TOKEN", None),
    ],
)
def test_a_variable_that_is_nearly_a_setting_is_named(variable: str, meant: str | None) -> None:
    lines = misspelt({variable: "s3cret"})
    assert (meant is not None) == bool(lines)
    if meant is not None:
        assert variable in lines[0]
        assert meant in lines[0]
        assert "s3cret" not in lines[0]


def test_other_peoples_variables_are_left_alone() -> None:
    assert read_settings({}, {"GATEWAY_OF_INDIA": "Mumbai", "PORT": "x"}) == Settings()


@pytest.mark.parametrize(("text", "value"), [("1", True), ("Yes", True), ("on", True), ("off", False), ("", False)])
def test_a_switch_is_read_in_words(text: str, value: bool) -> None:
    assert read_settings({}, {"GATEWAY_COMPRESSION": text}).compression is value


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("GATEWAY_PORT", "http"),
        ("GATEWAY_PORT", ""),
        ("GATEWAY_PORT", "1.5"),
        ("GATEWAY_DRAIN", "soon"),
        ("GATEWAY_COMPRESSION", "maybe"),
    ],
)
def test_what_cannot_be_read_from_the_environment_is_named(variable: str, value: str) -> None:
    with pytest.raises(BadSetting, match=variable):
        read_settings({}, {variable: value})


@pytest.mark.parametrize(
    "line", ['port = "http"', "port = true", "port = 1.5", "drain = [1]", "drain = true", "compression = 'maybe'"]
)
def test_what_cannot_be_read_from_a_file_is_named_with_the_file(line: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=rf"gateway\.toml: {line.split()[0]}"):
        read_settings({}, {}, toml(tmp_path, line))


@pytest.mark.parametrize(
    ("content", "why"),
    [("port = ", "is not TOML"), (b"\xff\xfe", "is not TOML"), ("no_such = 1", "no setting no_such")],
)
def test_a_file_that_is_wrong_is_named(content: str | bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=rf"gateway\.toml.*{why}"):
        read_settings({}, {}, toml(tmp_path, content))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.toml", tmp_path):
        with pytest.raises(BadSetting, match=path.name):
            read_settings({}, {}, str(path))


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), 10**400])
def test_every_number_has_a_range(name: str, value: float) -> None:
    with pytest.raises(BadSetting, match=f"^{name.replace('_', '-')}: "):
        check(with_(name, value))


@pytest.mark.parametrize("name", ["heartbeat_s", "hello_timeout", "send_timeout", "commands_per_s"])
def test_some_numbers_may_not_be_zero(name: str) -> None:
    with pytest.raises(BadSetting, match=f"^{name.replace('_', '-')}: "):
        check(with_(name, 0))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"port": 65536}, "port"),
        ({"log_level": "loud"}, "log-level"),
        ({"token": ""}, "token"),
        ({"token": "a,,b"}, "token"),
    ],
)
def test_other_bad_values_are_named(settings: dict[str, Any], name: str) -> None:
    with pytest.raises(BadSetting, match=f"^{name.replace('_', '-')}: "):
        check(Settings(**settings))


def test_a_message_about_a_bad_setting_is_one_line() -> None:
    with pytest.raises(BadSetting) as caught:
        read_settings({}, {"GATEWAY_PORT": "a\nb"})
    assert len(str(caught.value).splitlines()) == 1


# -- the store's address


@pytest.mark.parametrize(
    "url", ["mysql://u:secret@h/db", "postgresql://u:secret@[h/db", "postgresql://u:secret@h/db?pool_size=many", "x"]
)
def test_a_store_that_cannot_be_is_one_line_without_its_password(url: str) -> None:
    with pytest.raises(BadSetting) as caught:
        open_store(url)
    assert str(caught.value).startswith("store: ")
    assert len(str(caught.value).splitlines()) == 1
    assert "secret" not in str(caught.value)


def test_postgresql_without_its_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gateway.stores.pg_address", "gateway.stores.postgres", "gateway.stores.shared"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(BadSetting, match=r"agent-gateway\[postgres\]"):
        open_store("postgresql://h/db")


def test_who_uses_sqlite_pays_for_nothing_of_postgresql() -> None:
    heavy = ("psycopg", "psycopg_pool", "sqlalchemy.dialects.postgresql", "alembic")
    program = f"import sys, gateway.cli\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"
