"""The 63 cases are all there, each under its number, each with the reason for what it demands."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
NAMED = re.compile(r"test_case_(\d\d)_[a-z]")


def test_every_case_has_a_test_that_says_why() -> None:
    """A case may be shown twice, in the engine and over the wire, but never twice in one file under one name."""
    found: dict[int, list[tuple[Path, str]]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (named := NAMED.match(node.name)):
                reason = ast.get_docstring(node)
                assert reason, f"{node.name} gives no reason"
                assert reason.splitlines()[0].endswith("."), f"{node.name}: its reason is one line, a sentence"
                found[int(named[1])].append((path, node.name))
    assert sorted(found) == list(range(1, 64))
    for tests in found.values():
        assert len(set(tests)) == len(tests)
