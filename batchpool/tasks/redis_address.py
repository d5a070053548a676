"""The address of a Redis server, with the password that goes with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchpool.tasks.store import StoreAway

PASSWORD_VARIABLE = "BATCHPOOL_TASKS_STORE_PASSWORD"
# SCHEME://[USER@]HOSTS[/PATH][?OPTIONS]; the configuration has checked its form.
_URL = re.compile(r"([a-z+]+)://(?:([^@/?]*)@)?([^/?]*)([^?]*)\??(.*)")
_HOST = re.compile(r"(\[[^]]+\]|[^:]+)(?::([0-9]+))?")
_SENTINEL = "+sentinel"
_PORT, _SENTINEL_PORT = 6379, 26379
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """url: as configured, without a password. password: None for none; no text of this object has
    it."""

    url: str
    password: str | None = field(default=None, repr=False)

    def _parts(self) -> tuple[str, str, str, str, str]:
        """Scheme, user, hosts, path, options."""
        found = _URL.fullmatch(self.url)
        if found is None:
            raise StoreAway(f"tasks_store = {self.url!r}: expected a URL, as redis://HOST:6379/0")
        scheme, user, hosts, path, options = found.groups(default="")
        return scheme, user, hosts, path, options

    @property
    def is_sentinel(self) -> bool:
        """True if the url names Sentinels and the name of their master."""
        return self._parts()[0].endswith(_SENTINEL)

    @property
    def is_tls(self) -> bool:
        """True if the servers are spoken to over TLS."""
        return self.url.startswith("rediss")

    @property
    def user(self) -> str | None:
        """The user of the server's access list; None for its default one."""
        return self._parts()[1] or None

    @property
    def socket_path(self) -> str | None:
        """The unix socket of the server; None where it has a host and a port."""
        scheme, _, _, path, _ = self._parts()
        return path if scheme == "unix" else None

    def hosts(self) -> list[tuple[str, int]]:
        """Hosts and ports in their order: of the server, of nodes of a cluster, or of Sentinels."""
        port = _SENTINEL_PORT if self.is_sentinel else _PORT
        found = (_HOST.fullmatch(text) for text in self._parts()[2].split(","))
        return [(of[1].strip("[]"), int(of[2] or port)) for of in found if of]

    def master(self) -> str:
        """The name of the Sentinels' master."""
        return self._parts()[3].strip("/").partition("/")[0]

    def database(self) -> int:
        """The number of the database."""
        if self.socket_path is not None:
            return int(self._options().get("db", 0))
        path = self._parts()[3]
        number = path.strip("/")
        return int((number.partition("/")[2] if self.is_sentinel else number) or 0)

    def _options(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self._parts()[4].split("&"))
        return {name: value for name, _, value in pairs if name}

    def tls(self) -> dict[str, Any]:
        """The arguments of a TLS connection; {} where there is no TLS.

        Raises StoreAway for a file that cannot be read: the library would not tell which one.
        """
        if not self.is_tls:
            return {}
        options: dict[str, Any] = self._options()
        for name in _FILES:
            if name in options:
                try:
                    Path(options[name]).open("rb").close()
                except OSError as exc:
                    raise StoreAway(
                        f"{name} of tasks_store {options[name]}: {exc.strerror}"
                    ) from None
        check_hostname = options.pop("ssl_check_hostname", "true") == "true"
        return {"ssl": True, "ssl_check_hostname": check_hostname, **options}


def store_address(url: str, password_file: str, env: Mapping[str, str]) -> StoreAddress:
    """The address with its password: the first line of the file, else that of the environment.

    Raises StoreAway where the file cannot be read.
    """
    if not password_file:
        return StoreAddress(url, env.get(PASSWORD_VARIABLE) or None)
    try:
        lines = Path(password_file).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is no UTF-8 text"
        raise StoreAway(f"tasks_store_password_file {password_file}: {reason}") from None
    if not lines or not lines[0].strip():
        raise StoreAway(f"tasks_store_password_file {password_file}: its first line is empty")
    return StoreAddress(url, lines[0].strip())
