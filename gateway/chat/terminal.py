"""Lines from the terminal, and a terminal that keeps quiet while an answer is drawn."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

try:
    import termios
except ImportError:  # Windows
    termios = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Input(Protocol):
    """Where lines come from."""

    async def __call__(self) -> str | None:
        """Give the next line, without its end; None at the end of the input."""


class Stdin:
    """Lines of standard input, read by the event loop: no thread is left blocking when the program ends.

    ``unseen`` is told of each line that was typed before anybody asked, while the terminal did not echo.
    """

    def __init__(self, fd: int | None = None, unseen: Callable[[str], None] | None = None) -> None:
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._unseen = unseen if os.isatty(self._fd) else None
        self._held = b""
        self._ended = False

    async def __call__(self) -> str | None:
        """Give the next line."""
        ahead = self._unseen is not None and bool(self._held or select.select([self._fd], [], [], 0)[0])
        while b"\n" not in self._held and not self._ended:
            await self._readable()
            data = os.read(self._fd, 65536)
            self._held += data
            self._ended = not data
        line, end, self._held = self._held.partition(b"\n")
        if not line and not end:
            return None
        text = line.decode("utf-8", "replace").rstrip("\r")
        if ahead and self._unseen is not None:
            self._unseen(text)
        return text

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        try:
            loop.add_reader(self._fd, ready.set)
        except PermissionError:
            return  # a plain file: always readable
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._fd)


@contextmanager
def quiet() -> Iterator[None]:
    """Do not echo what is typed while an answer is drawn: it would tear the picture."""
    try:
        fd = sys.stdin.fileno()
    except (OSError, ValueError):
        fd = -1
    if termios is None or fd < 0 or not os.isatty(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
