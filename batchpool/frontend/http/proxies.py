"""Proxies in front of the server, and what those that are trusted say of their callers.

    X-Forwarded-For     every hop appends the address that it was called from: read from the right
                        past all trusted proxies, the next one is the caller
    Forwarded           the same in one field (RFC 7239), read where there is no X-Forwarded-For
    X-Forwarded-Proto   the caller's scheme
    X-Forwarded-Host    the host that the caller asked for
    X-Forwarded-Prefix  the path under which the proxy shows the server

Nobody else is believed: whoever may name its own address takes as many turns as it has names. Where
a trusted proxy sends what cannot be read, reading stops, and the hop before it is the caller.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from functools import lru_cache

from batchpool.core.config.network_names import ANY, PREFIX, UNIX_PEERS
from batchpool.frontend.http.caller import Caller, Site
from batchpool.wire.request import HeaderList, Headers

UNIX = "unix"  # the address of a peer on a unix socket
_FOR, _FORWARDED = b"x-forwarded-for", b"forwarded"
_PROTO, _HOST, _PREFIX = b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-prefix"
_MOST_HOPS = 32  # that are read
_LONGEST_HOP = 64  # characters of an address with its port
_SCHEMES = ("http", "https")
_AUTHORITY = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
# One pair of Forwarded, which holds no comma and no semicolon.
_PAIR = re.compile(r"""[ \t]*([!#$%&'*+.^_`|~0-9A-Za-z-]+)=("[^"\\]*"|[^ \t;,"]*)[ \t]*""")
_LONGEST_PAIRS = 512  # characters of one element that are read


class TrustedProxies:
    """The proxies that are believed. allowed: addresses, networks, "unix:" and "*"."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._any = ANY in allowed
        self._unix = UNIX_PEERS in allowed
        self._networks = [
            ipaddress.ip_network(text) for text in allowed if text not in (ANY, UNIX_PEERS)
        ]

    def trusts(self, address: str) -> bool:
        """True if what comes from this address is believed."""
        if self._any:
            return True
        if address == UNIX:
            return self._unix
        found = _parsed(address)
        return found is not None and any(found in network for network in self._networks)

    def caller(self, peer: Caller, fields: HeaderList) -> Caller:
        """The caller of a request that came from this trusted peer."""
        address = peer.address
        for hop in reversed(_hops(fields)):
            found = address_of(hop)
            if not found:
                break
            address = found
            if not self.trusts(found):
                break
        return peer if address == peer.address else Caller(address)


@lru_cache(4096)
def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(address)
    except ValueError:
        return None


def site_of(headers: Headers, scheme: str, prefix: str, *, trusted: bool) -> Site:
    """The server as the caller of a request sees it.

    scheme, prefix: of the connection and the configuration. trusted: the peer is believed.
    """
    host = headers.get(b"host", b"").decode("latin-1")
    if not trusted:
        return Site(scheme, host, prefix)
    first = _element(_first(headers, _FORWARDED))  # of the proxy that the caller met
    said_scheme = (_first(headers, _PROTO) or first.get("proto", "")).lower()
    said_host = _first(headers, _HOST) or first.get("host", "")
    said_prefix = _first(headers, _PREFIX).rstrip("/")
    return Site(
        said_scheme if said_scheme in _SCHEMES else scheme,
        said_host if is_authority(said_host) else host,
        said_prefix if PREFIX.fullmatch(said_prefix) else prefix,
    )


def is_authority(host: str) -> bool:
    """True for a host name or address, with or without a port."""
    return _AUTHORITY.fullmatch(host) is not None


def plain_address(text: str) -> str:
    """The one spelling of an address, by which it is compared; "" for what is none.

    A socket of both families has addresses of IPv4 as ::ffff:127.0.0.1.
    """
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return ""
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).compressed


def unix_client(
    client: tuple[str, int] | None, sock: socket.socket | None
) -> tuple[str, int] | None:
    """The remote address and port, as the application is told them, of what is no TCP socket."""
    if client is None and sock is not None and sock.family == socket.AF_UNIX:
        return UNIX, 0
    return client


@lru_cache(4096)
def peer_address(text: str) -> str:
    """The one spelling of a peer's address as the kernel tells it."""
    return plain_address(text) or text


def address_of(hop: str) -> str:
    """The address in one element of X-Forwarded-For, without its port; "" for anything else."""
    text = hop.strip(" \t").strip('"')
    return "" if len(text) > _LONGEST_HOP else _address_of(text)


@lru_cache(4096)
def _address_of(text: str) -> str:
    if "%" in text:
        return ""
    if text.startswith("["):
        text, end, port = text[1:].partition("]")
        if not end or (port and not (port[0] == ":" and port[1:].isdecimal())):
            return ""
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not port.isdecimal():
            return ""
    return plain_address(text)


def _hops(fields: HeaderList) -> list[str]:
    """The addresses that the proxies wrote down, of the farthest hop first."""
    lines = [value for name, value in fields if name == _FOR]
    if lines:
        return b",".join(lines).decode("latin-1").rsplit(",", _MOST_HOPS)
    lines = [value for name, value in fields if name == _FORWARDED]
    elements = b",".join(lines).decode("latin-1").rsplit(",", _MOST_HOPS)
    return [_element(text).get("for", "") for text in elements]


def _element(written: str) -> dict[str, str]:
    """The pairs of one element of Forwarded, names in lower case; none where it cannot be read."""
    pairs: dict[str, str] = {}
    for text in written.split(";") if len(written) <= _LONGEST_PAIRS else ():
        pair = _PAIR.fullmatch(text)
        if pair is None:
            return {}
        pairs[pair[1].lower()] = pair[2].strip('"')
    return pairs


def _first(headers: Headers, name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1").partition(",")[0].strip(" \t")
