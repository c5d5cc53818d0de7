"""A PostgreSQL server of the tests' own, from Debian's packages: started, killed, copied, gone at the end."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg

PASSWORD = "s3cret-of-the-tests"


def _binaries() -> Path:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name))
    assert found, "the tests need Debian's package postgresql (tests/run installs it)"
    return found[-1]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Postgres:
    """One server. ``gw`` is the gateway's role, no superuser, with a password on TCP."""

    def __init__(self, *settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gateway-pg-"))
        self.port = _free_port()
        self.settings = list(settings)
        self.process: subprocess.Popen[bytes] | None = None
        self._user: dict[str, Any] = {}
        if os.getuid() == 0:  # whom PostgreSQL refuses to run as
            postgres = pwd.getpwnam("postgres")
            os.chown(self.folder, postgres.pw_uid, postgres.pw_gid)
            self._user = {"user": postgres.pw_uid, "group": postgres.pw_gid, "extra_groups": []}
        self.folder.chmod(0o755)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _call(self, name: str, *args: str) -> None:
        subprocess.run(
            [_binaries() / name, *args], cwd=self.folder, check=True, stdout=subprocess.DEVNULL, **self._user
        )

    def create(self) -> Self:
        """Make the data folder and the gateway's role, and start."""
        self._call(
            "initdb", "-D", str(self.data), "-U", "postgres", "--no-sync", "-E", "UTF8", "--locale=C.UTF-8",
            "--auth-local=trust", "--auth-host=scram-sha-256",
        )  # fmt: skip
        self.start()
        self.sql(f"create role gw login replication password '{PASSWORD}'")
        return self

    def start(self) -> None:
        """Start, and wait until it takes connections. It dies with this process, however that may end."""
        options = [f"port={self.port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={self.folder}"]
        options += ["fsync=off", "max_connections=60", "shared_buffers=32MB", *self.settings]
        with (self.folder / "log").open("ab") as log:
            process = self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "QUIT", str(_binaries() / "postgres"), "-D", str(self.data)]
                + [part for option in options for part in ("-c", option)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._user,
            )
        deadline = time.monotonic() + 30
        while True:
            try:
                self.sql("select 1")
                return
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}") from None
                time.sleep(0.02)

    def send(self, number: int) -> None:
        """Send a signal to the server's first process."""
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """Stop: SIGINT in order, SIGQUIT at once ("immediate": as after a crash), SIGKILL without a word."""
        if self.process is not None and self.process.poll() is None:
            self.send(number)
            self.process.wait(30)

    def freeze(self, on: bool = True) -> None:
        """Stop (or let go on) every process of the server, as a machine that hangs would."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in [self.process.pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):  # one of a connection has ended meanwhile
                os.kill(pid, signal.SIGSTOP if on else signal.SIGCONT)

    def destroy(self) -> None:
        """Stop it and leave nothing behind."""
        if self.process is not None and self.process.poll() is None:
            self.freeze(False)
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def sql(self, text: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Carry out a statement as superuser."""
        with psycopg.connect(
            host=str(self.folder), port=self.port, user="postgres", dbname=database, autocommit=True
        ) as connection:
            cursor = connection.execute(text)
            return cursor.fetchall() if cursor.description else []

    def database(self) -> str:
        """Make an empty database; give its address for the gateway."""
        name = f"db_{uuid4().hex}"
        self.sql(f"create database {name} owner gw")
        return self.address(name)

    def copy(self, address: str) -> str:
        """Copy a database that nobody is connected to; give the copy's address."""
        name = f"db_{uuid4().hex}"
        self.sql(f"create database {name} owner gw template {address.rpartition('/')[2]}")
        return self.address(name)

    def drop(self, address: str) -> None:
        """Remove a database, whoever is still connected to it."""
        self.sql(f"drop database {address.rpartition('/')[2]} with (force)")

    def address(self, name: str) -> str:
        return f"postgresql://gw:{PASSWORD}@127.0.0.1:{self.port}/{name}"

    def standby(self) -> Postgres:
        """Start a hot standby that replicates from here under the name ``standby``."""
        other = Postgres(*self.settings, f"primary_conninfo=host={self.folder} port={self.port} user=gw "
                         "application_name=standby")  # fmt: skip
        self._call(
            "pg_basebackup", "-D", str(other.data), "-h", str(self.folder), "-p", str(self.port), "-U", "gw",
            "--no-sync", "-c", "fast",
        )  # fmt: skip
        signal_file = other.data / "standby.signal"
        signal_file.touch()
        signal_file.chmod(0o644)
        other.start()
        return other

    def promote(self) -> None:
        """Make a standby the primary."""
        self.sql("select pg_promote()")
