"""The composition root: the only file that names concrete stores, authenticators and engines."""

from __future__ import annotations

import importlib
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import WebSocketRoute

from gateway.adapters import adapt
from gateway.auth import Anonymous, StaticTokens
from gateway.config import BadSetting, Settings, check
from gateway.endpoint import Endpoint
from gateway.engine.models import model_from
from gateway.engine.port import Engine, as_engine
from gateway.http import Api, http_error
from gateway.hub import Hub
from gateway.stores.sql import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from gateway.auth import Authenticator
    from gateway.engine.model import Model
    from gateway.stores.base import Store


class Gateway:
    """A gateway around an engine: ``Gateway(engine).asgi`` is an ASGI application.

    Served alone, the application's own lifespan starts and stops it. Mounted in another Starlette or FastAPI
    application, whose lifespan does not reach mounted ones, run :meth:`lifespan` there::

        gateway = Gateway(engine, store="sqlite:///chat.db")
        app = FastAPI(lifespan=gateway.lifespan)
        app.mount("/agent", gateway.asgi)

    Keyword arguments are the settings of :class:`gateway.config.Settings`; ``authenticator`` replaces the built-in
    ones. ``engine`` may be an agent of a framework that :mod:`gateway.adapters` knows. Raises
    :exc:`~gateway.config.BadSetting`, and TypeError for what is no engine.
    """

    def __init__(
        self,
        engine: object,
        *,
        settings: Settings | None = None,
        authenticator: Authenticator | None = None,
        **values: Any,
    ) -> None:
        self.settings = check(settings if settings is not None else Settings(**values))
        self.engine: Engine = adapt(engine) or as_engine(engine)
        self.hub = Hub(self.engine, open_store(self.settings.store), self.settings)
        self.endpoint = Endpoint(self.hub, authenticator or _authenticator(self.settings), self.settings)
        routes = [WebSocketRoute("/ws", self.endpoint), *Api(self.hub, self.endpoint).routes()]
        handlers: dict[Any, Any] = {HTTPException: http_error}
        self.asgi = Starlette(routes=routes, lifespan=self.lifespan, exception_handlers=handlers)
        self._running = 0

    @asynccontextmanager
    async def lifespan(self, app: Any = None) -> AsyncIterator[None]:
        """Start on entry; on exit seal every run and close the store. Entered twice, it works once."""
        self._running += 1
        if self._running > 1:
            yield
            self._running -= 1
            return
        await self.hub.start()
        self.endpoint.start()
        try:
            yield
        finally:
            self._running -= 1
            await self.shut_down(0)
            await self.endpoint.stop()
            await self.hub.stop()

    async def shut_down(self, drain_s: float) -> None:
        """Drain: say goaway, let runs finish within ``drain_s`` seconds, seal the rest, close sockets with 4100."""
        if not self.hub.draining:
            self.hub.services.draining = True
            self.endpoint.goaway(retry_after_s=1.0)
        await self.hub.drain(drain_s)
        await self.endpoint.close_all(self.settings.send_timeout)


def open_store(url: str) -> Store:
    """Give the store of a URL. Raises :exc:`BadSetting`."""
    scheme, separator, rest = url.partition("://")
    if scheme == "sqlite" and separator:
        path, _, query = rest.partition("?")
        if not path.startswith("/") or path == "/":
            raise BadSetting(f"store: {url!r} names no file; write sqlite:///file.db or sqlite:////absolute/file.db")
        options = dict(item.partition("=")[::2] for item in query.split("&") if item)
        sync = options.pop("sync", "normal")
        if options or sync not in ("normal", "full"):
            raise BadSetting(f"store: {url!r}: the only option is sync=normal or sync=full")
        return SqliteStore(str(Path(path[1:])), full_sync=sync == "full")
    raise BadSetting(f"store: {url!r} is not a store; write sqlite:///file.db")


def load_engine(target: str | None, settings: Settings) -> Engine:
    """Import ``module:attr``, or give the default agent. Raises :exc:`BadSetting` with one line."""
    if target is None:
        from gateway.engine.default import default_agent

        return as_engine(default_agent(load_model(settings), shell=settings.shell, abort_grace_s=settings.abort_grace))
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise BadSetting(f"{target!r} is not module:attribute")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for name in attribute.split("."):
            found = getattr(found, name)
        return adapt(found) or as_engine(found)
    except ModuleNotFoundError as exc:
        raise BadSetting(f"cannot import {module_name}: there is no module {exc.name}") from exc
    except AttributeError as exc:
        raise BadSetting(f"cannot find {attribute} in {module_name}: {exc}") from exc
    except TypeError as exc:
        raise BadSetting(f"{target} is no engine: {exc}") from exc
    except Exception as exc:
        raise BadSetting(f"importing {module_name} failed: {type(exc).__name__}: {exc}") from exc


def load_model(settings: Settings) -> Model | None:
    """Give the model of ``--model``: None for the offline one. Raises :exc:`BadSetting`."""
    if settings.model == "scripted":
        return None
    try:
        return model_from(settings.model, settings.model_url)
    except (ValueError, ImportError) as exc:
        raise BadSetting(f"model: {exc}") from None


def _authenticator(settings: Settings) -> Authenticator:
    if settings.token is None:
        return Anonymous()
    return StaticTokens([token.strip() for token in settings.token.split(",")])
