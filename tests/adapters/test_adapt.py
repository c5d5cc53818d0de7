"""Recognising an agent by its classes: nothing is imported to find out, and nothing else is touched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway import Gateway
from gateway.adapters import adapt
from gateway.engine import Agent, ScriptedModel

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("pydantic_ai", "langgraph", "langchain_core", "agents", "zett_agent")


def test_what_is_no_framework_of_ours_is_left_alone() -> None:
    """An engine stays the engine it is, also one whose class has a framework's name."""

    class Pregel:
        pass

    assert adapt(Agent(ScriptedModel())) is None
    assert adapt(Pregel()) is None
    assert adapt(None) is None


def test_the_class_is_found_below_a_subclass() -> None:
    """A team's own subclass of a framework's agent is that framework's agent."""
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="tested where it is installed")
    mine: Any = type("Mine", (pydantic_ai.Agent,), {"__module__": "company.agents"})
    assert type(adapt(mine("test"))).__module__ == "gateway.adapters.pydantic_ai"


def test_a_gateway_in_another_application_takes_an_agent_as_it_is(tmp_path: Path) -> None:
    """``Gateway(agent)`` recognises what ``gateway serve`` does."""
    pydantic_ai = pytest.importorskip("pydantic_ai", reason="tested where it is installed")
    served = Gateway(pydantic_ai.Agent("test"), store=f"sqlite:///{tmp_path}/gateway.db")
    assert type(served.engine).__module__ == "gateway.adapters.pydantic_ai"


def test_no_framework_is_imported_unless_used() -> None:
    """Serving one's own engine imports none of them, whichever are installed."""
    code = (
        "import sys; from gateway.app import load_engine; from gateway.config import Settings;"
        "load_engine('gateway.examples.ten_lines:echo', Settings());"
        f"print([name for name in {FRAMEWORKS!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
