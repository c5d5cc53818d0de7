"""The README is true: its programs are files that run, its tests and files exist, its settings are the settings."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from gateway.config import Settings, canonical

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCK = re.compile(r"<!-- file: (\S+) -->\n```(?:python|html|tsx)\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize(("path", "code"), BLOCK.findall(README))
def test_a_program_in_the_readme_is_the_file_that_is_tested(path: str, code: str) -> None:
    assert (ROOT / path).read_text() == code


def test_every_program_is_shown() -> None:
    assert README.count("<!-- file:") == len(BLOCK.findall(README)) == 11


def test_every_test_named_in_the_readme_exists() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", README))
    assert len(named) > 5
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_every_case_named_in_the_readme_is_a_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    lists = re.findall(r"\bcases? ([\d, ]+\d)", README)
    numbers = {number for group in lists for number in re.findall(r"\d+", group)}
    assert len(numbers) > 20
    assert [number for number in numbers if f"def test_case_{int(number):02d}_" not in tests] == []


def test_every_path_in_the_readme_exists() -> None:
    paths = set(re.findall(r"`((?:gateway|protocol|tests|web)/[\w./-]+)`", README))
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    table = README.split("## Settings")[1].split("## ")[0]
    named = {canonical(name) for name in re.findall(r"`(?:--|GATEWAY_)([\w-]+)`", table)}
    assert {field.name for field in fields(Settings)} <= named


@pytest.mark.parametrize("module", ["gateway.examples.weather", "gateway.examples.ten_lines"])
def test_an_engine_in_the_readme_can_be_imported_by_itself(module: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", f"import {module}"], cwd=ROOT, check=True, timeout=60)
