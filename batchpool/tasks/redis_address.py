"""The address of a Redis server, with the password that goes with it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from batchpool.tasks.store import StoreAway

PASSWORD_VARIABLE = "BATCHPOOL_TASKS_STORE_PASSWORD"
# SCHEME://[USER@]HOSTS[/PATH]; the configuration has checked its form.
_URL = re.compile(r"([a-z+]+)://(?:([^@/?]*)@)?([^/?]*)([^?]*)")
_SENTINEL = "+sentinel"
_SENTINEL_PORT = 26379


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """url: as configured, without a password. password: None for none; no text of this object has
    it."""

    url: str
    password: str | None = field(default=None, repr=False)

    def _parts(self) -> tuple[str, str, str, str]:
        """Scheme, user, hosts, path."""
        found = _URL.match(self.url)
        if found is None:
            raise StoreAway(f"tasks_store = {self.url!r}: expected a URL, as redis://HOST:6379/0")
        scheme, user, hosts, path = found.groups(default="")
        return scheme, user, hosts, path

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

    def sentinels(self) -> list[tuple[str, int]]:
        """Hosts and ports of the Sentinels."""
        pairs = [host.rpartition(":") for host in self._parts()[2].split(",")]
        return [
            (host, int(port)) if colon else (port, _SENTINEL_PORT) for host, colon, port in pairs
        ]

    def master(self) -> tuple[str, int]:
        """The name of the Sentinels' master, and the number of the database there."""
        name, _, number = self._parts()[3].strip("/").partition("/")
        return name, int(number or 0)


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
