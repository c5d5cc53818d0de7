"""An application with an authenticator of its own, served by uvicorn: `embedded:app`."""

from __future__ import annotations

import os

from gateway import Gateway, Principal
from tests.e2e.engines import director


class Directory:
    """Knows everybody; for the token ``down`` it fails where it should decide."""

    required = True

    async def authenticate(self, token: str | None) -> Principal:
        """Take anybody."""
        if token == "down":
            raise RuntimeError("the directory is down")
        return Principal(f"person-{token}")


app = Gateway(director, authenticator=Directory(), store=os.environ["EMBEDDED_STORE"]).asgi
