"""The command line beside `serve`: what it says of itself, and one line for what cannot be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gateway.app import load_engine
from gateway.cli import main
from gateway.config import BadSetting, Settings
from protocol.schema import documents

ROOT = Path(__file__).resolve().parents[1]


def say(arguments: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == code
    return capsys.readouterr().out


def test_help_shows_the_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    said = " ".join(say(["serve", "--help"], capsys).split())
    for default in ("127.0.0.1", "8000", "sqlite:///gateway.db", "scripted", "5.0", "10.0", "info"):
        assert f"(default: {default})" in said


def test_schema_lists_its_documents_and_prints_one(capsys: pytest.CaptureFixture[str]) -> None:
    names = say(["schema"], capsys).split()
    assert names == list(documents())
    assert "asyncapi.json" in names
    for name in names:
        assert say(["schema", name], capsys) == documents()[name]
    say(["schema", "none.json"], capsys, code=2)


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("pydantic_ai", "pydantic-ai"),
        ("langgraph.graph", "langgraph"),
        ("agents", "openai-agents"),
        ("zett_agent", "zett"),
    ],
)
def test_a_framework_that_is_not_installed_is_told_with_its_extra(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"wants_{extra.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(f"import {package}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in [package, package.partition(".")[0]]:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadSetting, match=rf"there is no module {package} .*extra `{extra}`"):
        load_engine(f"{name}:agent", Settings())


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("x = 1\nint('no')\n", r"importing broken_\w+ failed: ValueError: invalid .*broken_\w+\.py, line 2\)"),
        ("def f(a): ...\nf()\n", r"importing broken_\w+ failed: TypeError: .*'a' \(.*broken_\w+\.py, line 2\)"),
        ("import os\nos.nothing\n", r"importing broken_\w+ failed: AttributeError: .*, line 2\)"),
        ("raise RuntimeError('a\\nb')\n", "RuntimeError: a b "),
        ("async def agent(): ...\n", "broken_.*:agent: agent is no engine"),
    ],
)
def test_an_agent_that_cannot_be_had_is_told_with_the_line_to_mend(
    program: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{abs(hash(program))}"
    (tmp_path / f"{name}.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadSetting, match=says) as caught:
        load_engine(f"{name}:agent", Settings())
    assert "\n" not in str(caught.value)


def test_config_names_each_host_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert 'hosts = "localhost,127.0.0.1,[::1]"  # loopback without a token' in say(["config"], capsys)


def test_talking_to_nobody_costs_one_line() -> None:
    command = [sys.executable, "-m", "gateway.examples.talk", "ws://127.0.0.1:1/ws"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1
    assert "no gateway at ws://127.0.0.1:1/ws" in ended.stderr
