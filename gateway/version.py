"""Name and version, as installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("agent-gateway")
except PackageNotFoundError:  # run from a checkout without an installation
    VERSION = "0+checkout"

SERVER = f"agent-gateway/{VERSION}"
