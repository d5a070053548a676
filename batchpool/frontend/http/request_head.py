"""The head of an infer request: its headers, and the facts read from them once."""

from __future__ import annotations

import time
from zlib import crc32

from batchpool.wire.forms import WireForm
from batchpool.wire.request import Headers

_CLIENT_ID = b"x-client-id"


_NAMED = crc32(b"X-Client-Id: ")  # a name that is another caller's address is another flow


def flow_of(address: bytes) -> int:
    """The flow of a caller without a name, by its address: 32 bits, not 0."""
    return crc32(address) or 1


def flow_of_name(name: bytes) -> int:
    """The flow of a caller by its X-Client-Id: 32 bits, not 0."""
    return crc32(name, _NAMED) or 1


class RequestHead:
    """The facts of a request that are known when its headers are complete.

    headers: with lower-case names. flow: 32 bits, not 0; rows of different flows get fair shares of
    a lane. at_ns: CLOCK_MONOTONIC; the request's own timeout counts from here. form, priority: as
    the headers say, once `HttpEndpoint.check_head` has read them. admitted: the lane has been
    asked already, before the body was there.

    A plain class, since a compiled dataclass takes several times as long to make.
    """

    __slots__ = ("admitted", "at_ns", "flow", "form", "headers", "priority")

    form: WireForm

    def __init__(self, headers: Headers, flow: int, at_ns: int, priority: int = 0) -> None:
        self.headers = headers
        self.flow = flow
        self.at_ns = at_ns
        self.priority = priority
        self.admitted = False

    def again(self) -> RequestHead:
        """A head that arrives now, with the same headers from the same peer."""
        head = RequestHead(self.headers, self.flow, time.monotonic_ns(), self.priority)
        head.form = self.form
        return head

    @classmethod
    def of(cls, headers: Headers, peer: str) -> RequestHead:
        """A head that arrives now. peer: the remote address, the flow of callers without a name."""
        name = headers.get(_CLIENT_ID)
        flow = flow_of_name(name) if name else flow_of(peer.encode())
        return cls(headers, flow, time.monotonic_ns())
