"""The gate of a front end: who sent a request, and whether it may come in.

Both paths ask it when a request's headers are complete, in this order:

    host    allowed_hosts: the name by which the server was asked
    key     api_keys_file: everything but the server's health is for callers with a key
    origin  cors_origins: a page of another site may not make a browser run inference here; on the
            ASGI path alone, which takes the requests of browsers
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchpool.core.config.network_names import ANY
from batchpool.core.errors import InvalidRequest
from batchpool.credentials.api_keys import ApiKeys, read_api_keys
from batchpool.frontend.http.authorization import key_name
from batchpool.frontend.http.caller import Caller, Site
from batchpool.frontend.http.origins import Origins
from batchpool.frontend.http.proxies import TrustedProxies, site_of
from batchpool.wire.request import HeaderList, Headers, brief

_WITHOUT_KEY = (b"/v2/health/live", b"/v2/health/ready")  # for probes


class Gate:
    """The gate of all connections of a front end. server: the configuration's [server].

    origins: pages of other sites. edition: rises with each `learn`. Raises ConfigError for a file
    of keys that cannot be read.
    """

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.edition = 0
        self.learn(server)

    def learn(self, server: Mapping[str, Any]) -> None:
        """Take the keys of the configuration as a reload has changed them, and read the file of
        callers' keys again. Raises ConfigError, and all stays as it was, where that fails."""
        path = server["api_keys_file"]
        self._keys: ApiKeys | None = read_api_keys(path, warn=False) if path else None
        self._proxies = TrustedProxies(server["forwarded_allow_ips"])
        self._prefix: str = server["root_path"]
        self._hosts = tuple(host.lower() for host in server["allowed_hosts"])
        self.origins = Origins(server["cors_origins"])
        self.edition += 1

    def asks(self, peer: Caller) -> bool:
        """True if a request from this peer may have another caller, or be refused for more than
        its origin."""
        guarded = bool(self._hosts) or self._keys is not None
        return guarded or self._proxies.trusts(peer.address)

    def caller(self, peer: Caller, fields: HeaderList) -> Caller:
        """The caller of a request, before it has shown a key.

        fields: all its header lines, with lower-case names.
        """
        return self._proxies.caller(peer, fields) if self._proxies.trusts(peer.address) else peer

    def site(self, peer: Caller, headers: Headers, scheme: str) -> Site:
        """The server as the caller of a request sees it. scheme: of the connection."""
        trusted = self._proxies.trusts(peer.address)
        return site_of(headers, scheme, self._prefix, trusted=trusted)

    def admit(self, peer: Caller, path: bytes, fields: HeaderList, headers: Headers) -> Caller:
        """The caller of a request, which may come in whichever page has made it.

        path: as it was sent. Raises InvalidRequest for its host, and Unauthorized where it shows
        none of the keys that are asked for.
        """
        site = self.site(peer, headers, "")
        # Both, as a proxy may pass on what its caller says of the forwarded one.
        for host in (headers.get(b"host", b"").decode("latin-1"), site.host) if self._hosts else ():
            if not self._is_allowed(host):
                raise InvalidRequest(
                    f"the host {brief(host)} is not served here; ask by a name that the"
                    " configuration lists in allowed_hosts"
                )
        caller = self.caller(peer, fields)
        if self._keys is None:
            return caller
        if path.removeprefix(site.prefix.encode()) in _WITHOUT_KEY:
            return caller
        return Caller(caller.address, key_name(self._keys, headers))

    def _is_allowed(self, host: str) -> bool:
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return any(
            allowed in (ANY, name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))
            for allowed in self._hosts
        )
