"""The real small model: tested in an environment of its own by `tests/run local`, and only there."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("llama_cpp") is None:
    collect_ignore_glob = ["test_*.py"]
