"""The gateway's command line, with the garbage collector as Python has it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import gateway.cli

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def _left_alone() -> AsyncIterator[None]:
    yield


if __name__ == "__main__":
    vars(gateway.cli)["collecting"] = _left_alone
    gateway.cli.main()
