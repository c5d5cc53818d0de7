"""Where a PostgreSQL database is: libpq's address with what a server needs to notice a peer that is gone."""

from __future__ import annotations

from typing import Any

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

CONNECT_TIMEOUT_S = 5
TIMEOUT_S = 10.0
"""How long one transaction may take before it is given up, whether the server, the network or a lock is at fault."""

POOL_SIZE = 8
"""Connections that read, at most; beside them there is one that writes."""

_DEFAULTS: dict[str, Any] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "target_session_attrs": "read-write",  # of several hosts, the one that is primary now
    "application_name": "agent-gateway",
    # A peer that vanished without a word is noticed after about 10 s, whether we wait for it or send to it.
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": int(TIMEOUT_S * 1000),
}

SESSION = f"""
    set statement_timeout = {int(TIMEOUT_S * 1000)};
    set lock_timeout = {int(TIMEOUT_S * 500)};
    set idle_in_transaction_session_timeout = {int(TIMEOUT_S * 300)};
    set tcp_keepalives_idle = 5;
    set tcp_keepalives_interval = 2;
    set tcp_keepalives_count = 3;
"""
"""What each connection sets on the server, so that a gateway that vanished holds no lock for long: a transaction that
waits for its rest has lost its line, and a node that wants its sessions waits for it. (One whose process was stopped in
the middle of sending is not seen by these: see ``shared.py``.)"""


class Address:
    """A parsed ``postgresql://…`` address. ``str()`` of it has no password. Raises ValueError with one line."""

    def __init__(self, url: str) -> None:
        base, _, query = url.partition("?")
        options = [item for item in query.split("&") if item]
        sizes = [item.partition("=")[2] for item in options if item.startswith("pool_size=")]
        kept = "&".join(item for item in options if not item.startswith("pool_size="))
        try:
            given = conninfo_to_dict(f"{base}?{kept}" if kept else base)
        except ProgrammingError:  # its text may have the password
            raise ValueError("this is no address of a PostgreSQL database") from None
        self.parameters: dict[str, Any] = _DEFAULTS | given
        self.pool_size = POOL_SIZE
        if sizes:
            if not sizes[-1].isdecimal() or not 1 <= int(sizes[-1]) <= 1000:
                raise ValueError(f"pool_size must be 1 to 1000, not {sizes[-1]}")
            self.pool_size = int(sizes[-1])

    def __str__(self) -> str:
        hosts = str(self.parameters.get("host", "")).split(",")
        ports = str(self.parameters.get("port", "")).split(",")
        if len(ports) < len(hosts):
            ports = ports[:1] * len(hosts)
        places = ",".join(f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False))
        return f"postgresql://{places}/{self.parameters.get('dbname', '')}"

    def cause(self, exc: BaseException) -> str:
        """Give an error's first line without the password."""
        lines = str(exc).strip().splitlines() or [type(exc).__name__]
        text = lines[0].strip()
        password = self.parameters.get("password")
        return text.replace(str(password), "***") if password else text
