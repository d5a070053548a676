"""Web pages of other sites: which of them may make a browser ask this server.

A browser sends a form, or a text/plain `fetch`, to any server without asking it first. The page
does not see the answer, but the request was made. So a request that is no query is refused where
the browser says that a page of another site made it, by the rules of Go's CrossOriginProtection
(https://pkg.go.dev/net/http#CrossOriginProtection):

    Sec-Fetch-Site   same-origin, or none: the user's own doing; anything else is another site
    Origin           where a browser sends no Sec-Fetch-Site: another host than the request's own

Programs send neither header, and are not affected.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchpool.core.config.network_names import ANY
from batchpool.core.errors import Forbidden
from batchpool.frontend.http.caller import Site
from batchpool.wire.request import Headers, brief

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_PORTS = {"http": ":80", "https": ":443"}


class Origins:
    """The origins of other sites that may ask. allowed: "https://example.com", or "*"."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self.allowed = tuple(allowed)
        self._any = ANY in allowed
        self._allowed = frozenset(origin.lower() for origin in allowed)

    def check(self, method: str, headers: Headers, site: Site) -> None:
        """Raise Forbidden for a request that a page of a site that is not allowed has made."""
        if method in _SAFE or self._any:
            return
        fetched = headers.get(b"sec-fetch-site", b"")
        origin = headers.get(b"origin", b"").decode("latin-1").lower()
        if fetched in (b"same-origin", b"none") or origin in self._allowed:
            return
        if not fetched and (not origin or _is_own(origin, site.host.lower())):
            return
        raise Forbidden(
            f"a web page of {brief(origin) if origin else 'another site'} sent this to"
            f" {brief(site.host)}; pages of other sites may do that if the configuration lists"
            " their origin in cors_origins"
        )


def _is_own(origin: str, host: str) -> bool:
    scheme, _, authority = origin.partition("://")
    port = _PORTS.get(scheme, "")
    return bool(authority) and authority.removesuffix(port) == host.removesuffix(port)
