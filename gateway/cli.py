"""The command line: ``serve``, ``config``, ``chat``, ``schema``, ``migrate``.

What cannot be costs one line and exit code 2.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvicorn

from gateway import workers
from gateway.app import Gateway, load_engine, open_store
from gateway.auth import LOOPBACK_HOSTS, is_loopback
from gateway.collector import collecting
from gateway.config import CREDENTIALS, BadSetting, Settings, describe, misspelt, read_settings, trace_settings
from gateway.redact import RedactingFormatter, hide, hide_environment, redact
from gateway.sockets import BoundedWebSocket, http_protocol
from gateway.stores.base import StoreUnavailable, StoreUnusable
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FLAGS: dict[str, str] = {
    "host": "address to listen on",
    "port": "port to listen on; 0 picks a free one",
    "store": "sqlite:///file.db or postgresql://user:password@host:port/database",
    "workers": "processes that serve the port together, on a PostgreSQL store",
    "bus": "redis://host:6379: the Redis through which several nodes on one PostgreSQL store hear of each other",
    "token": "bearer token(s), comma separated, that clients must bring (rather GATEWAY_TOKEN: flags are public)",
    "jwt-secret": "shared secret of the HS tokens that clients bring (rather GATEWAY_JWT_SECRET: flags are public)",
    "jwt-key": "file with the public key (PEM) of the tokens that clients must bring",
    "jwt-jwks": "URL of the key set (JWKS) of the tokens that clients must bring",
    "jwt-algorithms": "algorithms to accept, comma separated; default: all that fit the key",
    "jwt-audience": "audience that tokens must be for",
    "jwt-issuer": "issuer that tokens must be from",
    "jwt-claim": "claim that names the principal",
    "jwt-leeway": "seconds that clocks may be apart",
    "cookie-name": "a cookie that may carry the token, from our own pages or those of --origins",
    "origins": "other origins whose pages may connect, comma separated",
    "hosts": "names that the Host header may have, comma separated",
    "anonymous": "serve other addresses than loopback without a token",
    "disconnect-grace": "seconds a run outlives its last owner's lost connection",
    "abort-grace": "seconds an aborted engine has to close",
    "drain": "seconds that live runs may finish in after SIGTERM",
    "model": "the default agent's model: scripted, local, openai:NAME, anthropic:NAME, google:NAME",
    "model-url": "an OpenAI-compatible endpoint for --model, such as http://127.0.0.1:11434/v1",
    "shell": "let the default agent run shell commands, asking before each",
    "log-level": "debug, info, warning, error",
}
_SWITCHES = frozenset({"anonymous", "shell"})
"""Flags without a value."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the process ends with its exit code."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = options.command(options)
    except (BadSetting, StoreUnusable, StoreUnavailable) as exc:
        print(f"gateway: {redact(str(exc))}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway", description="A realtime gateway for AI agents.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="command")

    serve = commands.add_parser("serve", help="serve an engine over WebSocket and HTTP, with the page at /")
    serve.add_argument("engine", nargs="?", help="module:attribute; default: the offline demonstration agent")
    _add_settings(serve)
    serve.set_defaults(command=_serve)

    config = commands.add_parser("config", help="print the settings that serve would have, and where each was set")
    _add_settings(config)
    config.set_defaults(command=_config)

    chat = commands.add_parser("chat", help="talk to a gateway in the terminal")
    chat.add_argument("--url", default="ws://127.0.0.1:8000/ws", help="default: %(default)s")
    chat.add_argument("--session", help="a session to continue")
    chat.add_argument("--token", default=os.environ.get("GATEWAY_TOKEN"), help="default: GATEWAY_TOKEN")
    chat.set_defaults(command=_chat)

    schema = commands.add_parser("schema", help="print one of the protocol's JSON Schema or AsyncAPI documents")
    schema.add_argument("name", nargs="?", help="which; without it their names are listed")
    schema.set_defaults(command=_schema)

    migrate = commands.add_parser("migrate", help="bring a store's schema up to date")
    migrate.add_argument("--store", help=f"{_FLAGS['store']} (default: {Settings().store})")
    migrate.set_defaults(command=_migrate)
    return parser


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", help="a TOML file with settings")
    command.add_argument("--worker", help=argparse.SUPPRESS)  # the listening socket and the line to the parent
    defaults = Settings()
    for flag, text in _FLAGS.items():
        if flag in _SWITCHES:
            command.add_argument(f"--{flag}", help=text, action="store_const", const="true")
        else:
            default = getattr(defaults, flag.replace("-", "_"))
            command.add_argument(f"--{flag}", help=text if default in (None, "") else f"{text} (default: {default})")


def _settings(options: argparse.Namespace) -> tuple[Settings, dict[str, str]]:
    names = [flag.replace("-", "_") for flag in _FLAGS]
    settings, origins = trace_settings({name: getattr(options, name) for name in names}, config=options.config)
    for line in misspelt(os.environ) if options.worker is None else ():  # else the parent has said it
        print(f"gateway: {line}", file=sys.stderr)
    hide_environment()
    hide([settings.jwt_secret, *(settings.token or "").split(",")])
    return settings, origins


def _config(options: argparse.Namespace) -> int:
    settings, origins = _settings(options)
    guarded = _guard(settings)
    if guarded.hosts != settings.hosts:
        origins["hosts"] = "loopback without a token"
    sys.stdout.write(describe(guarded, origins))
    return 0


def _serve(options: argparse.Namespace) -> int:
    settings, _ = _settings(options)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(RedactingFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = _guard(settings)
    if settings.workers > 1 and options.worker is None:
        return _serve_workers(options, settings)
    gateway = Gateway(load_engine(options.engine, settings), settings=settings)
    parent: socket.socket | None = None
    if options.worker is None:
        listener = _listen(settings)
    else:
        listener, parent = (socket.socket(fileno=int(number)) for number in options.worker.split(":"))
    config = uvicorn.Config(
        gateway.asgi,
        http=http_protocol(settings.hello_timeout, settings.send_timeout),
        ws=BoundedWebSocket,
        # Above our own limit, so that an oversized frame gets an error and not a closed socket.
        ws_max_size=max(4 * settings.max_frame_bytes, 1024 * 1024),
        ws_per_message_deflate=settings.compression,
        log_config=None,
        # Never more: below that uvicorn logs headers, query strings and what clients send, tokens with it.
        log_level="warning",
        access_log=False,
        lifespan="off",  # run by _run, where a store that cannot be opened costs one line
        timeout_graceful_shutdown=5,
    )
    server = _Server(config, gateway, listener, parent)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner, listener:
        runner.run(_run(gateway, server, listener))
    return 0


def _serve_workers(options: argparse.Namespace, settings: Settings) -> int:
    workers.check(settings)
    load_engine(options.engine, settings)  # so that what cannot be served costs one line, and not one a worker
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(settings))
        command = [sys.executable, "-m", "gateway", *options.arguments]
        if settings.bus is None:
            command += ["--bus", stack.enter_context(workers.local_bus())]
        listening = f"{_listening(listener)}, {settings.workers} workers"
        return asyncio.run(workers.supervise([command] * settings.workers, listener, listening))


def _guard(settings: Settings) -> Settings:
    """Without a token, keep strangers out: loopback only unless told otherwise, and by its own names only."""
    if settings.anonymous or any(getattr(settings, name) is not None for name in CREDENTIALS):
        return settings
    if not is_loopback(settings.host):
        raise BadSetting(
            f"host: others can reach {settings.host} and there is no --token; --anonymous serves it all the same"
        )
    if settings.hosts:
        return settings
    return replace(settings, hosts=",".join(dict.fromkeys((*LOOPBACK_HOSTS, settings.host))))


async def _run(gateway: Gateway, server: uvicorn.Server, listener: socket.socket) -> None:
    async with gateway.lifespan(), collecting():
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, draining before it closes a socket: its own shutdown would send 1012 to every client first."""

    def __init__(
        self, config: uvicorn.Config, gateway: Gateway, listener: socket.socket, parent: socket.socket | None
    ) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._listener = listener
        self._parent = parent
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where."""
        await super().startup(sockets=sockets)
        if not self.started:
            return
        if self._parent is None:
            print(_listening(self._listener), flush=True)
        else:
            self._parent.setblocking(False)
            self._parent.send(b"+")
            asyncio.get_running_loop().add_reader(self._parent, self._parent_is_gone)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain on the first SIGTERM or SIGINT, end at once on the second."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _parent_is_gone(self) -> None:
        assert self._parent is not None
        asyncio.get_running_loop().remove_reader(self._parent)
        if self._draining is None:
            self._on_signal()

    def _on_signal(self) -> None:
        if self._draining is not None:
            logging.getLogger(__name__).warning("second signal: ending at once")
            os._exit(1)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._gateway.shut_down(self._gateway.settings.drain)
        finally:
            self.should_exit = True


def _listen(settings: Settings) -> socket.socket:
    """Bind before anything is started, so that a port in use costs one line."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
    except OSError as exc:
        raise BadSetting(f"host: cannot use {settings.host}: {exc.strerror or exc}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as exc:
        listener.close()
        raise BadSetting(f"port: cannot listen on {settings.host}:{settings.port}: {exc.strerror or exc}") from None
    listener.setblocking(False)
    return listener


def _listening(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"Gateway listening on http://{shown}:{port}"


def _chat(options: argparse.Namespace) -> int:
    from gateway.chat import chat

    result: Any = asyncio.run(chat(options.url, options.session, options.token))
    return int(result or 0)


def _schema(options: argparse.Namespace) -> int:
    from protocol.schema import documents

    texts = documents()
    if options.name is None:
        print("\n".join(texts))
        return 0
    if options.name not in texts:
        raise BadSetting(f"there is no document {options.name}; there are {', '.join(texts)}")
    sys.stdout.write(texts[options.name])
    return 0


def _migrate(options: argparse.Namespace) -> int:
    settings = read_settings({"store": options.store})

    store = open_store(settings.store, shared=True)  # while other nodes of a cluster serve

    async def run() -> None:
        await store.open()
        await store.close()

    asyncio.run(run())
    print(redact(f"{store} is up to date"))
    return 0
