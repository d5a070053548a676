"""The caller of a request, and the server's own address as that caller sees it.

Its flow says whose turn its rows have (core/flows.py): by its key; else by its address, within
whose share the names that it gives itself have shares of their own. Of an IPv6 address the network
counts: a host has 2 ** 64 addresses of its own there (RFC 4291, section 2.5.1), and may call from
any of them.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import NamedTuple
from zlib import crc32

from batchpool.core.flows import ORIGIN_MASK, named_flow

_HOST_BITS = 64  # of an IPv6 address
_KEYED = crc32(b"Authorization: ")  # the name of a key may be the address of another caller


def network_of(address: str) -> str:
    """The origin of an address, as text: itself, or of an IPv6 address its network of 64 bits. An
    IPv4 address in the form of an IPv6 one is that IPv4 address."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address)
    except AddressValueError:  # what a trusted proxy names may be anything
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return f"{IPv6Address(int(found) >> _HOST_BITS << _HOST_BITS)}/{128 - _HOST_BITS}"


def flow_of(origin: bytes) -> int:
    """The flow of a caller without a name, by its origin."""
    return crc32(origin) & ORIGIN_MASK or 1


def flow_of_name(origin: int, name: bytes) -> int:
    """The flow of a caller by its X-Client-Id. origin: the flow of its address."""
    return named_flow(origin, crc32(name))


def flow_of_key(name: str) -> int:
    """The flow of a caller by the name of its key: 32 bits, not 0."""
    return crc32(name.encode(), _KEYED) or 1


class Caller:
    """One caller. address: of the peer, or of the caller that a trusted proxy names. origin: the
    address, or its network, as which it is counted without a key. key: the name of its key, ""
    where none is asked for. flow: of its requests, unless an X-Client-Id says another, which it may
    not for a caller with a key."""

    __slots__ = ("address", "flow", "key", "origin")

    def __init__(self, address: str, key: str = "") -> None:
        self.address = address
        self.origin = network_of(address)
        self.key = key
        self.flow = flow_of_key(key) if key else flow_of(self.origin.encode())


@lru_cache(1024)
def caller_at(address: str) -> Caller:
    """The caller at an address, without a key: one for all its connections."""
    return Caller(address)


class Site(NamedTuple):
    """The server as a caller addresses it. scheme: http or https. host: with its port, as in the
    header Host, which the caller may have made up. prefix: of every path, "" or as "/pool"."""

    scheme: str
    host: str
    prefix: str = ""
