"""The command line: ``serve``, ``chat``, ``schema``, ``migrate``. One line and exit code 2 for what cannot be."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import uvicorn

from gateway.app import Gateway, load_engine, open_store
from gateway.auth import LOOPBACK_HOSTS, is_loopback
from gateway.config import BadSetting, Settings, read_settings
from gateway.stores.base import StoreUnavailable, StoreUnusable
from gateway.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FLAGS: dict[str, str] = {
    "host": "address to listen on",
    "port": "port to listen on; 0 picks a free one",
    "store": "sqlite:///file.db",
    "token": "bearer token(s), comma separated, that clients must bring",
    "origins": "other origins whose pages may connect, comma separated",
    "hosts": "names that the Host header may have, comma separated",
    "anonymous": "serve other addresses than loopback without a token",
    "disconnect-grace": "seconds a run outlives its last owner's lost connection",
    "abort-grace": "seconds an aborted engine has to close",
    "drain": "seconds that live runs may finish in after SIGTERM",
    "model": "the default agent's model: scripted, openai:NAME, anthropic:NAME, google:NAME (keys: OPENAI_API_KEY, …)",
    "model-url": "an OpenAI-compatible endpoint for --model, such as http://127.0.0.1:11434/v1",
    "shell": "let the default agent run shell commands, asking before each",
    "log-level": "debug, info, warning, error",
}
_SWITCHES = frozenset({"anonymous", "shell"})
"""Flags without a value."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; the process ends with its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code = options.command(options)
    except (BadSetting, StoreUnusable, StoreUnavailable) as exc:
        print(f"gateway: {exc}", file=sys.stderr)
        code = 2
    sys.exit(code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gateway", description="A realtime gateway for AI agents.")
    parser.add_argument("--version", action="version", version=VERSION)
    commands = parser.add_subparsers(required=True, metavar="command")

    serve = commands.add_parser("serve", help="serve an engine over WebSocket and HTTP, with the page at /")
    serve.add_argument("engine", nargs="?", help="module:attribute; default: the offline demonstration agent")
    serve.add_argument("--config", help="a TOML file with settings")
    for flag, text in _FLAGS.items():
        if flag in _SWITCHES:
            serve.add_argument(f"--{flag}", help=text, action="store_const", const="true")
        else:
            serve.add_argument(f"--{flag}", help=text)
    serve.set_defaults(command=_serve)

    chat = commands.add_parser("chat", help="talk to a gateway in the terminal")
    chat.add_argument("--url", default="ws://127.0.0.1:8000/ws")
    chat.add_argument("--session", help="a session to continue")
    chat.add_argument("--token", default=os.environ.get("GATEWAY_TOKEN"))
    chat.set_defaults(command=_chat)

    schema = commands.add_parser("schema", help="print one of the protocol's JSON Schema or AsyncAPI documents")
    schema.add_argument("name", nargs="?", default="asyncapi.json", help="asyncapi.json, commands.json, frames.json, …")
    schema.set_defaults(command=_schema)

    migrate = commands.add_parser("migrate", help="bring a store's schema up to date")
    migrate.add_argument("--store")
    migrate.set_defaults(command=_migrate)
    return parser


def _serve(options: argparse.Namespace) -> int:
    names = [flag.replace("-", "_") for flag in _FLAGS]
    flags = {name: getattr(options, name) for name in names}
    settings = read_settings(flags, config=options.config)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    settings = _guard(settings)
    gateway = Gateway(load_engine(options.engine, settings), settings=settings)
    listener = _listen(settings)
    config = uvicorn.Config(
        gateway.asgi,
        ws="websockets-sansio",
        # Above our own limit, so that an oversized frame gets an error and not a closed socket.
        ws_max_size=max(4 * settings.max_frame_bytes, 1024 * 1024),
        ws_per_message_deflate=settings.compression,
        log_config=None,
        log_level="debug" if settings.log_level.lower() == "debug" else "warning",
        access_log=False,
        lifespan="off",  # run by _run, where a store that cannot be opened costs one line
        timeout_graceful_shutdown=5,
    )
    server = _Server(config, gateway, listener)
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner, listener:
        runner.run(_run(gateway, server, listener))
    return 0


def _guard(settings: Settings) -> Settings:
    """Without a token, keep strangers out: loopback only unless told otherwise, and by its own names only."""
    if settings.token is not None or settings.anonymous:
        return settings
    if not is_loopback(settings.host):
        raise BadSetting(
            f"host: others can reach {settings.host} and there is no --token; --anonymous serves it all the same"
        )
    if settings.hosts:
        return settings
    return replace(settings, hosts=",".join((*LOOPBACK_HOSTS, settings.host)))


async def _run(gateway: Gateway, server: uvicorn.Server, listener: socket.socket) -> None:
    async with gateway.lifespan():
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn, draining before it closes a socket: its own shutdown would send 1012 to every client first."""

    def __init__(self, config: uvicorn.Config, gateway: Gateway, listener: socket.socket) -> None:
        super().__init__(config)
        self._gateway = gateway
        self._listener = listener
        self._draining: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say where."""
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self._listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"Gateway listening on http://{shown}:{port}", flush=True)

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


def _chat(options: argparse.Namespace) -> int:
    from gateway.chat import chat

    result: Any = asyncio.run(chat(options.url, options.session, options.token))
    return int(result or 0)


def _schema(options: argparse.Namespace) -> int:
    from protocol.schema import documents

    texts = documents()
    if options.name not in texts:
        raise BadSetting(f"there is no document {options.name}; there are {', '.join(texts)}")
    sys.stdout.write(texts[options.name])
    return 0


def _migrate(options: argparse.Namespace) -> int:
    settings = read_settings({"store": options.store})

    async def run() -> None:
        store = open_store(settings.store)
        await store.open()
        await store.close()

    asyncio.run(run())
    print(f"{settings.store} is up to date")
    return 0
