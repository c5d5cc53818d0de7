"""Looking around below one directory, and nowhere else.

A path is resolved first and then opened name by name without following links, so neither ``..`` nor a link leads out,
not even one that is swapped in between the two. What is usually secret (dot files, keys, databases: the gateway's own
among them) is not there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from gateway.engine.errors import ToolError
from gateway.engine.tools import Tool, tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAX_NAMES = 1000
MAX_READ_BYTES = 64 * 1024
HIDDEN = (".*", "*.db", "*.db-*", "*.sqlite*", "*.key", "*.pem")


def list_dir_tool(root: Path) -> Tool:
    """Make a tool that lists directories at or below ``root``."""
    root = root.resolve()

    @tool(name="list_dir", reads=True, timeout_s=10)
    def list_dir(path: str = ".") -> list[str]:
        """List the names in a directory below the working directory; directories end with a slash."""
        with _opened(root, path, os.O_DIRECTORY) as handle, os.scandir(handle) as entries:
            visible = (entry for entry in entries if not _hidden(entry.name))
            names = [entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in _some(visible)]
        return sorted(names[:MAX_NAMES]) + ["…"] * (len(names) > MAX_NAMES)

    return list_dir


def read_file_tool(root: Path) -> Tool:
    """Make a tool that reads files below ``root``, at most 64 KiB at a time."""
    root = root.resolve()

    @tool(name="read_file", reads=True, timeout_s=10)
    def read_file(path: str, offset: Annotated[int, Field(ge=0)] = 0) -> dict[str, Any]:
        """Read a text file below the working directory, from a byte offset; more follows where next_offset is given."""
        with _opened(root, path, os.O_NONBLOCK) as handle:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ToolError("This is no file")
            data = os.pread(handle, MAX_READ_BYTES, offset)
        found: dict[str, Any] = {"path": path, "size": status.st_size}
        start = next((i for i, byte in enumerate(data[:3]) if byte & 0xC0 != 0x80), 0) if offset else 0
        end = len(data)
        try:
            text = data[start:].decode()
        except UnicodeDecodeError as error:
            end = start + error.start
            if end < len(data) - 3:  # not merely cut inside a letter
                return found | {"binary": True}
            text = data[start:end].decode()
        if "\0" in text:
            return found | {"binary": True}
        found["text"] = text
        if end and offset + end < status.st_size:
            found["next_offset"] = offset + end
        return found

    return read_file


def _some(entries: Iterator[os.DirEntry[str]]) -> Iterator[os.DirEntry[str]]:
    return itertools.islice(entries, MAX_NAMES + 1)


def _hidden(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in HIDDEN)


@contextlib.contextmanager
def _opened(root: Path, path: str, flags: int) -> Iterator[int]:
    """Open what is at ``path`` below ``root``. Raises :exc:`ToolError`."""
    try:
        real = (root / path).resolve()
    except (OSError, ValueError, RuntimeError):  # a loop of links, a NUL in the name
        raise ToolError("There is no such file or directory") from None
    if not real.is_relative_to(root):
        raise ToolError("Only what is below the working directory can be read")
    names = real.relative_to(root).parts
    if any(map(_hidden, names)):
        raise ToolError("There is no such file or directory")
    with contextlib.ExitStack() as handles:
        try:
            handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
            handles.callback(os.close, handle)
            for index, name in enumerate(names):
                how = flags if index == len(names) - 1 else os.O_DIRECTORY
                handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | how, dir_fd=handle)
                handles.callback(os.close, handle)
        except OSError as error:
            raise ToolError(error.strerror or "There is no such file or directory") from None
        yield handle
