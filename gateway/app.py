"""The composition root: the only file that names concrete stores, authenticators and engines."""

from __future__ import annotations

import importlib
import sys
import traceback
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import WebSocketRoute

from gateway.adapters import EXTRAS, adapt
from gateway.ai_sdk.endpoint import AiSdk
from gateway.auth import Anonymous, StaticTokens
from gateway.cluster.hub import ClusterHub
from gateway.config import BadSetting, Settings, check
from gateway.endpoint import Endpoint
from gateway.engine.models import model_from
from gateway.engine.port import Engine, as_engine
from gateway.headers import SecurityHeaders
from gateway.http import Api, http_error
from gateway.hub import Hub
from gateway.stores.sql import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection

    from gateway.auth import Authenticator
    from gateway.engine.model import Model
    from gateway.stores.base import SharedStore, Store


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
        authenticator = authenticator or _authenticator(self.settings)
        self.hub = _hub(self.engine, self.settings, single=not authenticator.required)
        self.endpoint = Endpoint(self.hub, authenticator, self.settings)
        api = Api(self.hub, self.endpoint)
        ai_sdk = AiSdk(self.hub, self.endpoint, api)
        routes = [WebSocketRoute("/ws", self.endpoint), *ai_sdk.routes(), *api.routes()]
        handlers: dict[Any, Any] = {HTTPException: http_error}
        self.asgi = Starlette(
            routes=routes,
            lifespan=self.lifespan,
            exception_handlers=handlers,
            middleware=[Middleware(SecurityHeaders), *_cross_origin(self.endpoint.origins, self.settings)],
        )
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


def _hub(engine: Engine, settings: Settings, *, single: bool) -> Hub:
    """Give the hub of a node: alone, or on a bus with others. Raises :exc:`BadSetting`."""
    if settings.bus is None:
        return Hub(engine, open_store(settings.store), settings, single=single)
    if not settings.store.startswith(("postgresql://", "postgres://")):
        raise BadSetting("bus: several nodes share a PostgreSQL store; add --store postgresql://host/database")
    scheme = settings.bus.partition("://")[0]
    if scheme not in ("redis", "rediss", "unix"):
        raise BadSetting(f"bus: {scheme!r} is no bus; write redis://host:6379")
    try:
        from gateway.cluster.redis import RedisBus
    except ImportError as exc:
        raise BadSetting(f"bus: Redis needs pip install 'agent-gateway[redis]' ({exc})") from None
    try:
        bus = RedisBus(settings.bus)
    except ValueError as exc:
        raise BadSetting(f"bus: {exc}") from None
    store = cast("SharedStore", open_store(settings.store, shared=True))
    return ClusterHub(engine, store, settings, bus, single=single)


def open_store(url: str, *, shared: bool = False) -> Store:
    """Give the store of a URL; ``shared``: one that several nodes use together. Raises :exc:`BadSetting`."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgresql", "postgres") and separator:
        return _postgres(url, shared=shared)
    if scheme == "sqlite" and separator:
        path, _, query = rest.partition("?")
        if not path.startswith("/") or path == "/":
            raise BadSetting(f"store: {url!r} names no file; write sqlite:///file.db or sqlite:////absolute/file.db")
        options = dict(item.partition("=")[::2] for item in query.split("&") if item)
        sync = options.pop("sync", "normal")
        if options or sync not in ("normal", "full"):
            raise BadSetting(f"store: {url!r}: the only option is sync=normal or sync=full")
        return SqliteStore(str(Path(path[1:])), full_sync=sync == "full")
    shown = f"{scheme}://…" if separator else repr(url)  # what follows may be a password
    raise BadSetting(f"store: {shown} is not a store; write sqlite:///file.db or postgresql://host/database")


def _postgres(url: str, *, shared: bool) -> Store:
    try:
        from gateway.stores.pg_address import Address
        from gateway.stores.postgres import PostgresStore
        from gateway.stores.shared import SharedPostgresStore
    except ImportError as exc:
        raise BadSetting(f"store: PostgreSQL needs pip install 'agent-gateway[postgres]' ({exc})") from None
    try:
        address = Address(url)
    except ValueError as exc:
        raise BadSetting(f"store: {exc}") from None
    return SharedPostgresStore(address) if shared else PostgresStore(address)


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
    except ModuleNotFoundError as exc:
        extra = EXTRAS.get((exc.name or "").partition(".")[0])
        hint = f" (it comes with the gateway's extra `{extra}`)" if extra else ""
        raise BadSetting(f"cannot import {module_name}: there is no module {exc.name}{hint}") from exc
    except Exception as exc:
        said = " ".join(str(exc).split())  # on one line
        raise BadSetting(f"importing {module_name} failed: {type(exc).__name__}: {said}{_where(exc)}") from exc
    try:
        for name in attribute.split("."):
            found = getattr(found, name)
    except AttributeError as exc:
        raise BadSetting(f"cannot find {attribute} in {module_name}: {exc}") from exc
    try:
        return adapt(found) or as_engine(found)
    except ImportError as exc:
        raise BadSetting(f"cannot serve {target}: {exc}") from exc
    except TypeError as exc:
        raise BadSetting(f"{target}: {exc}") from exc


def _where(exc: Exception) -> str:
    """Name the line that failed, for a person who has to mend it; nothing where it is not in a file."""
    frames = traceback.extract_tb(exc.__traceback__)
    if not frames or isinstance(exc, SyntaxError):  # which names its own
        return ""
    return f" ({frames[-1].filename}, line {frames[-1].lineno})"


def load_model(settings: Settings) -> Model | None:
    """Give the model of ``--model``: None for the offline one. Raises :exc:`BadSetting`."""
    if settings.model == "scripted":
        return None
    try:
        return model_from(settings.model, settings.model_url)
    except (ValueError, ImportError) as exc:
        raise BadSetting(f"model: {exc}") from None


def _cross_origin(origins: Collection[str], settings: Settings) -> list[Middleware]:
    """Let the pages of ``--origins`` read what HTTP answers them; a cookie only those that are named."""
    if not origins:
        return []
    sharing = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
        allow_headers=("authorization", "content-type"),
        allow_credentials=settings.cookie_name is not None and "*" not in origins,
        expose_headers=("retry-after",),
    )
    return [sharing]


def _authenticator(settings: Settings) -> Authenticator:
    if settings.token is not None:
        return StaticTokens([token.strip() for token in settings.token.split(",")])
    if settings.jwt_secret is None and settings.jwt_key is None and settings.jwt_jwks is None:
        return Anonymous()
    try:
        from gateway import jwt
    except ImportError:
        raise BadSetting("jwt: needs the extra, pip install 'agent-gateway[jwt]'") from None
    algorithms = [name.strip() for name in settings.jwt_algorithms.split(",") if name.strip()]
    keys: jwt.Keys
    try:
        if settings.jwt_secret is not None:
            keys = jwt.secret(settings.jwt_secret, algorithms)
        elif settings.jwt_key is not None:
            keys = jwt.public_key(settings.jwt_key, algorithms)
        else:
            keys = jwt.KeySet(settings.jwt_jwks or "", algorithms)
    except ValueError as exc:
        raise BadSetting(f"jwt: {exc}") from None
    return jwt.JsonWebTokens(
        keys,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        claim=settings.jwt_claim,
        leeway_s=settings.jwt_leeway,
    )
