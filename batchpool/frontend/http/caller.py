"""The caller of a request, and the server's own address as that caller sees it."""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

_NAMED = crc32(b"X-Client-Id: ")  # a name that is another caller's address is another flow
_KEYED = crc32(b"Authorization: ")  # and so is one that is the name of another caller's key


def flow_of(address: bytes) -> int:
    """The flow of a caller without a name, by its address: 32 bits, not 0."""
    return crc32(address) or 1


def flow_of_name(name: bytes) -> int:
    """The flow of a caller by its X-Client-Id: 32 bits, not 0."""
    return crc32(name, _NAMED) or 1


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
