"""The gate of a front end: who sent a request, and whether it may come in.

Both paths ask it when a request's headers are complete, in this order:

    host    allowed_hosts: the name by which the server was asked
    origin  cors_origins: a page of another site may not make a browser run inference here
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchpool.core.config.network_names import ANY
from batchpool.core.errors import InvalidRequest
from batchpool.frontend.http.caller import Caller, Site
from batchpool.frontend.http.origins import Origins
from batchpool.frontend.http.proxies import TrustedProxies, site_of
from batchpool.wire.request import HeaderList, Headers, brief


class Gate:
    """The gate of all connections of a front end. server: the configuration's [server].

    origins: pages of other sites. edition: rises with each `learn`.
    """

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.edition = 0
        self.learn(server)

    def learn(self, server: Mapping[str, Any]) -> None:
        """Take the keys of the configuration as a reload has changed them."""
        self._proxies = TrustedProxies(server["forwarded_allow_ips"])
        self._prefix: str = server["root_path"]
        self._hosts = tuple(host.lower() for host in server["allowed_hosts"])
        self.origins = Origins(server["cors_origins"])
        self.edition += 1

    def asks(self, peer: Caller) -> bool:
        """True if a request from this peer may have another caller, or be refused for more than
        its origin."""
        return bool(self._hosts) or self._proxies.trusts(peer.address)

    def caller(self, peer: Caller, fields: HeaderList) -> Caller:
        """The caller of a request. fields: all its header lines, with lower-case names."""
        return self._proxies.caller(peer, fields) if self._proxies.trusts(peer.address) else peer

    def site(self, peer: Caller, headers: Headers, scheme: str) -> Site:
        """The server as the caller of a request sees it. scheme: of the connection."""
        trusted = self._proxies.trusts(peer.address)
        return site_of(headers, scheme, self._prefix, trusted=trusted)

    def check(self, peer: Caller, headers: Headers) -> None:
        """Raise why a request may not come in, whoever made it: InvalidRequest for its host."""
        if not self._hosts:
            return
        host = self.site(peer, headers, "").host
        if not self._is_allowed(host):
            raise InvalidRequest(
                f"the host {brief(host)} is not served here; ask by a name that the configuration"
                " lists in allowed_hosts"
            )

    def _is_allowed(self, host: str) -> bool:
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
        return any(
            allowed in (ANY, name) or (allowed.startswith("*.") and name.endswith(allowed[1:]))
            for allowed in self._hosts
        )
