"""The black-box tests of one process, before two nodes behind a balancer that gives each connection to the next one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.support import ROOT

FILES = ["attach", "on_busy", "disconnect", "steer", "replaces", "sharing", "watch"]
"""Those whose tests open several connections, or one after the other."""


@pytest.mark.timeout(900)
def test_the_black_box_tests_pass_behind_a_balancer() -> None:
    files = [f"tests/e2e/test_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.cluster.balanced", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
