"""The matrix of the contract: which engine passed which case, printed at the end."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

APART = {"zett": "zett_agent"}
"""Engines whose framework agrees with nobody's versions: tested in an environment of their own by `tests/run`."""

_matrix: dict[str, dict[str, str]] = {}
_reserves: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave an engine of :data:`APART` out, and all others where it is installed."""
    apart = {name for name, package in APART.items() if find_spec(package) is not None}
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        name = _engine(item)
        wanted = name is None or ((name in apart) if apart else (name not in APART))
        (kept if wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    said = dict(report.user_properties)
    place, reserve = said.get("contract"), said.get("reserve")
    if isinstance(place, str) and (report.when == "call" or report.failed):
        name, case = place.split("/")
        _matrix.setdefault(case, {})[name] = ("ok*" if reserve else "ok") if report.passed else "FAILED"
        if reserve:
            _reserves.append(f"* {name}, {case}: {reserve}")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _matrix:
        return
    names = list(dict.fromkeys(name for row in _matrix.values() for name in row))
    wide = max(map(len, _matrix))
    terminalreporter.section("adapter contract: case × engine")
    terminalreporter.write_line(" " * wide + "  " + "  ".join(names))
    for case, row in _matrix.items():
        cells = "  ".join(row.get(name, "-").ljust(len(name)) for name in names)
        terminalreporter.write_line(f"{case.ljust(wide)}  {cells}".rstrip())
    for line in _reserves:
        terminalreporter.write_line(line)


def _engine(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return None if callspec is None else callspec.params.get("engine_name")
