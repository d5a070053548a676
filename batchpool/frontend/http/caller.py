"""The caller of a request, and the server's own address as that caller sees it.

Its flow says whose turn its rows have (core/flows.py): by its key; else by its address, within
whose share the names that it gives itself have shares of their own.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from batchpool.core.flows import ORIGIN_MASK, named_flow

_KEYED = crc32(b"Authorization: ")  # the name of a key may be the address of another caller


def flow_of(address: bytes) -> int:
    """The flow of a caller without a name, by its address: an origin."""
    return crc32(address) & ORIGIN_MASK or 1


def flow_of_name(origin: int, name: bytes) -> int:
    """The flow of a caller by its X-Client-Id. origin: the flow of its address."""
    return named_flow(origin, crc32(name))


def flow_of_key(name: str) -> int:
    """The flow of a caller by the name of its key: 32 bits, not 0."""
    return crc32(name.encode(), _KEYED) or 1


class Caller:
    """One caller. address: of the peer, or of the caller that a trusted proxy names. key: the name
    of its key, "" where none is asked for. flow: of its requests, unless an X-Client-Id says
    another, which it may not for a caller with a key."""

    __slots__ = ("address", "flow", "key")

    def __init__(self, address: str, key: str = "") -> None:
        self.address = address
        self.key = key
        self.flow = flow_of_key(key) if key else flow_of(address.encode())


class Site(NamedTuple):
    """The server as a caller addresses it. scheme: http or https. host: with its port, as in the
    header Host, which the caller may have made up. prefix: of every path, "" or as "/pool"."""

    scheme: str
    host: str
    prefix: str = ""
