"""One request on the fast road: what is known of it, from its head to its answer."""

from __future__ import annotations

import asyncio
from typing import ClassVar, NamedTuple, Protocol

from batchpool.client.lane_client import PendingRequest
from batchpool.core.errors import PoolError
from batchpool.frontend.http.access_log import AccessLog, RequestOutcome
from batchpool.frontend.service.endpoint import Endpoint, RequestHead
from batchpool.wire.raw import RawAgain
from batchpool.wire.request import InferRequest

_NOBODY_WAITS = asyncio.Event()


class KnownHead(NamedTuple):
    """A request's head as it came last on a connection, and what it means.

    The same bytes mean the same again. length: of head and body. raw: how to read the rows
    where the body is nothing but rows; else it is parsed again.
    """

    head: bytes
    length: int
    path: bytes
    endpoint: Endpoint
    arrival: RequestHead
    request: InferRequest
    raw: RawAgain | None


class Answering(Protocol):
    """The connection of a request."""

    def rows_finished(self, cycle: FastRequest, pending: PendingRequest) -> bool:
        """Answer with the outputs, or the error of a row; False: the caller has gone."""

    def refuse(self, cycle: FastRequest, error: BaseException) -> None:
        """The one answer to this request, which is complete with it, says why not."""


class FastRequest:
    """One request on the fast road.

    To uvicorn and to `Connection` it is a `RequestResponseCycle`, of which they use
    `disconnected`, `keep_alive`, `message_event` and `response_complete`. To the client loop it is
    who takes the finished rows. answered: before its body was complete, so that the rest of it
    is dropped; untold: what the access log hears of it in the end: outcome, name, time in ns.
    """

    __slots__ = (
        "answered",
        "arrival",
        "body",
        "connection",
        "disconnected",
        "dropped_bytes",
        "endpoint",
        "keep_alive",
        "path",
        "pending",
        "request",
        "response_complete",
        "untold",
    )
    message_event: ClassVar[asyncio.Event] = _NOBODY_WAITS
    endpoint: Endpoint
    path: bytes
    arrival: RequestHead

    def __init__(self, connection: Answering, keep_alive: bool) -> None:
        self.connection = connection
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.answered = False
        self.body: bytes | bytearray = b""
        self.dropped_bytes = 0
        self.untold: tuple[RequestOutcome, bytes, int] | None = None
        self.request: InferRequest | None = None  # once it was parsed
        self.pending: PendingRequest | None = None  # while its rows are under way

    def tell(
        self,
        access: AccessLog,
        peer: str,
        outcome: RequestOutcome,
        name: bytes,
        ended_ns: int,
        *,
        whole: bool,
    ) -> None:
        """Tell the access log of it. whole: all of its body came, which is not there any more."""
        arrival, request = self.arrival, self.request
        announced = int(arrival.headers.get(b"content-length", b"0"))
        access.tell(
            outcome,
            road="fast",
            peer=peer,
            method="POST",
            path=self.path,
            headers=arrival.headers,
            begun_ns=arrival.at_ns,
            ended_ns=ended_ns,
            name=name,
            model=self.endpoint.facts.spec.name,
            rows=0 if request is None else request.rows.n,
            bytes_in=announced if whole else len(self.body) + self.dropped_bytes,
        )

    def finished(self, pending: PendingRequest) -> bool:
        self.pending = None
        return self.connection.rows_finished(self, pending)

    def failed(self, error: PoolError) -> None:
        self.pending = None
        self.connection.refuse(self, error)
