"""Fast road: an infer request answered inside the protocol, without an ASGI task.

`FastProtocol` decides when a request's headers are complete. The fast road takes a POST to
the literal path of an infer endpoint, in any form, with a Content-Length. It walks the
`Endpoint`'s steps from the parser's own calls, one request at a time. A head that is, byte for
byte, the last one of its connection is not parsed again if its whole body came with it:

    headers complete   admit; a refusal is written at once, and the body dropped as it comes
    body               the bytes of one read are parsed as they are, those of several as one
    message complete   parse, submit
    rows finished      fetch and encode; head and body in one write, if the body is not large

ASGI, and so Starlette, gets everything else: other paths, methods and spellings, chunked or
compressed bodies, `Expect`, offers of an upgrade, JSON so long that it is read in a thread,
what a caller sends before its last answer is complete, and callers that are behind with
reading. uvicorn's pipeline keeps the answers in order; for that, for its stop and for
`Connection`'s limits a request here is a cycle like any other.
"""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic_ns
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchpool.client.lane_client import PendingRequest
from batchpool.core.errors import Overloaded, PoolError
from batchpool.frontend.fast.request import FastRequest, KnownHead
from batchpool.frontend.fast.road import FastPath
from batchpool.frontend.http.access_log import GONE, RequestOutcome
from batchpool.frontend.http.body_budget import BodyReservation
from batchpool.frontend.http.connection import Connection, ConnectionLimits
from batchpool.frontend.http.metrics import FAST
from batchpool.frontend.http.response import HttpResponse, refusal
from batchpool.frontend.service.endpoint import Endpoint, RequestHead
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.model_tables import Frame
from batchpool.wire.request_id import REQUEST_ID, TRACEPARENT, made_id, request_id

# Headers that change how a request is read or answered, and that only ASGI's road knows.
_UNUSUAL = frozenset(
    {b"content-encoding", b"expect", b"prefer", b"transfer-encoding", b"upgrade"}
)  # fmt: skip
_OK = 200
_LONG_HEAD_BYTES = 4096  # not worth keeping
_LONG_BODY_BYTES = 64 * 1024  # of an answer; copying it behind its head would take long


@mypyc_attr(allow_interpreted_subclasses=True)
class FastProtocol(Connection):
    """One connection with a fast road. A subclass says whose: see `fast_protocol`."""

    road: ClassVar[FastPath]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        self._taking: FastRequest | None = None  # its body is on its way
        self._held = BodyReservation(self.road.bodies)  # of that body, if it takes several reads
        self._known: KnownHead | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._held.release()
        cycle: Any = self.cycle
        if not isinstance(cycle, FastRequest):
            return
        if cycle.pending is not None:
            cycle.disconnected = True
            cycle.endpoint.abandon(cycle.pending)
            self._gone(cycle)
        elif cycle is self._taking and cycle.answered:
            self._tell_of_refused(cycle)
        elif cycle is self._taking:
            self._gone(cycle)

    def data_received(self, data: bytes) -> None:
        known = self._known
        if (
            known is not None
            and len(data) == known.length
            and data.startswith(known.head)
            and not self._arriving  # the parser waits for the first byte of a request
            and self.cycle.response_complete
            and not self.flow.write_paused
            and not self.transport.is_closing()
            and self.road.endpoints.get(known.path) is known.endpoint
        ):
            self._stirred_s = self.loop.time()
            if self.timeout_keep_alive_task is not None:
                self._unset_keepalive_if_required()
            self._take_whole(known, data)
            return
        at_rest, messages = not self._arriving, self._messages
        super().data_received(data)
        if self._taking is not None:
            self._hold(self._taking)
        elif at_rest and self._messages == messages + 1 and not self._arriving:
            self._learn(data)

    def _learn(self, data: bytes) -> None:
        """Know this request's head again, if the fast road took all of it from one read."""
        cycle: Any = self.cycle
        self._known = None
        if isinstance(cycle, FastRequest) and cycle.keep_alive and cycle.request is not None:
            size = int(cycle.arrival.headers.get(b"content-length", b"0"))
            head = data[: len(data) - size]
            if len(head) <= _LONG_HEAD_BYTES and head.endswith(b"\r\n\r\n"):
                endpoint, arrival, request = cycle.endpoint, cycle.arrival, cycle.request
                raw = endpoint.again(arrival, request, size)
                self._known = KnownHead(
                    head, len(data), cycle.path, endpoint, arrival, request, raw
                )

    def _take_whole(self, known: KnownHead, data: bytes) -> None:
        """A request whose head is known to the byte, and all of its body: no need to parse it."""
        cycle = FastRequest(self, True)
        self.cycle = cycle  # type: ignore[assignment]
        cycle.endpoint = endpoint = known.endpoint
        cycle.path = known.path
        cycle.arrival = arrival = known.arrival.again()
        at = len(known.head)
        try:
            endpoint.admit_again(arrival)
            if known.raw is not None:
                cycle.request = request = known.request
                rows = known.raw.rows(data, at)
            else:
                cycle.request = request = endpoint.parse(arrival, memoryview(data)[at:])
                rows = request.rows
            cycle.pending = endpoint.submit_again(arrival, request, rows, cycle)
        except Exception as exc:
            self.road.fail(cycle, exc, memoryview(data)[at:])

    # -- the parser's calls -------------------------------------------------------------

    def on_message_begin(self) -> None:
        # What uvicorn prepares here for ASGI waits until the request turns out to be ASGI's.
        self._begin()
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def _to_asgi(self) -> None:
        url, headers = self.url, self.headers
        HttpToolsProtocol.on_message_begin(self)  # `Connection` knows of it since it began
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        super().on_headers_complete()

    def on_headers_complete(self) -> None:
        if self.transport.is_closing():
            # What is sent behind a request that ends the connection is nobody's.
            self._take(FastRequest(self, False)).answered = True
            return
        endpoint = self.road.endpoints.get(self.url)
        if endpoint is None or not self._admit(endpoint):
            self._to_asgi()

    def on_body(self, body: bytes) -> None:
        cycle = self._taking
        if cycle is None:
            super().on_body(body)
        elif cycle.answered:
            cycle.dropped_bytes += len(body)
            if cycle.dropped_bytes > self.road.discard_bytes:
                self.transport.close()
        elif not cycle.body:
            cycle.body = body
        else:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body

    def on_message_complete(self) -> None:
        cycle = self._taking
        if cycle is None:
            super().on_message_complete()
            return
        self._taking = None
        self._arriving = False
        if self._held.size:
            self._held.release()
        if cycle.answered:
            self._tell_of_refused(cycle)
            self._end(cycle)
        else:
            self._submit(cycle)

    def _hold(self, cycle: FastRequest) -> None:
        """More of its body is to come: count what came, or refuse it."""
        try:
            self._held.grow_to(len(cycle.body))
        except Overloaded as exc:
            self._held.release()
            cycle.answered = True
            cycle.dropped_bytes, cycle.body = len(cycle.body), b""
            self._write_refusal(cycle, exc)

    def end_with(self, error: PoolError) -> None:
        cycle = self._taking
        if cycle is None or self.transport.is_closing():
            super().end_with(error)
        elif cycle.answered:
            self.transport.close()
        else:
            cycle.keep_alive = False
            self.refuse(cycle, error)
            self._taking = None

    # -- the door's steps ---------------------------------------------------------------

    def _admit(self, endpoint: Endpoint) -> bool:
        """Take the request, or refuse it; False when it is ASGI's."""
        if self.flow.write_paused or not (self.cycle is None or self.cycle.response_complete):
            return False
        parser = self.parser
        if len(self.headers) > self.limits.fields:
            return False
        headers = dict(self.headers)
        announced = headers.get(b"content-length", b"0")
        plain = parser.get_method() == b"POST" and _UNUSUAL.isdisjoint(headers)
        if not plain or not announced.isdigit():
            return False
        keep_alive = parser.should_keep_alive()
        if keep_alive and b"connection" in headers:
            keep_alive = parser.get_http_version() != "1.0"  # uvicorn ends these in any case
        cycle = FastRequest(self, keep_alive)
        cycle.endpoint = endpoint
        cycle.path = self.url
        cycle.arrival = arrival = RequestHead.of(headers, self._peer)
        try:
            cycle.endpoint = endpoint = endpoint.admit(arrival)
            if endpoint.parses_long(arrival, int(announced)):
                return False
        except Exception as exc:
            cycle.answered = True
            self._write_refusal(cycle, exc)
        self._take(cycle)
        return True

    def _take(self, cycle: FastRequest) -> FastRequest:
        self.cycle = cycle  # type: ignore[assignment]
        self._taking = cycle
        self._in_head = False
        return cycle

    def _submit(self, cycle: FastRequest) -> None:
        body, cycle.body = cycle.body, b""
        try:
            cycle.request = request = cycle.endpoint.parse(cycle.arrival, body)
            cycle.pending = cycle.endpoint.submit(cycle.arrival, request, cycle)
        except Exception as exc:
            self.road.fail(cycle, exc, body)

    def rows_finished(self, cycle: FastRequest, pending: PendingRequest) -> bool:
        """Answer with the outputs, or the error of a row; False: the caller has gone."""
        if self._is_gone(cycle):
            self._gone(cycle)
            return False
        endpoint, arrival, request = cycle.endpoint, cycle.arrival, cycle.request
        assert request is not None
        try:
            frame = endpoint.frame(arrival, request, pending.n)
            if frame is not None and frame.size <= _LONG_BODY_BYTES:
                self._answer_in_frame(cycle, frame, pending)
            elif endpoint.encodes_long(arrival, request, pending.n):
                outputs = endpoint.fetch(request, pending)
                encoded = self.road.aside.begin(endpoint.encode, arrival, request, outputs)
                encoded.add_done_callback(partial(self._on_encoded, cycle))
            else:
                self.answer(cycle, endpoint.fetch_and_encode(arrival, request, pending))
        except Exception as exc:
            self.refuse(cycle, exc)
        return True

    def _on_encoded(self, cycle: FastRequest, encoded: asyncio.Future[HttpResponse]) -> None:
        if encoded.cancelled():  # the front end has ended
            return
        error = encoded.exception()
        if error is None:
            self.answer(cycle, encoded.result())
        else:
            self.refuse(cycle, error)

    # -- the answer ---------------------------------------------------------------------

    def _is_gone(self, cycle: FastRequest) -> bool:
        return cycle.disconnected or self.transport.is_closing()

    def answer(self, cycle: FastRequest, answer: HttpResponse) -> None:
        """The one answer to this request, which is complete with it."""
        self._write(cycle, answer, *self._name_of(cycle, answer.status))
        self._end(cycle)

    def refuse(self, cycle: FastRequest, error: BaseException) -> None:
        """The same, saying why not."""
        self._write_refusal(cycle, error)
        self._end(cycle)

    def _write_refusal(self, cycle: FastRequest, error: BaseException) -> None:
        name = request_id(cycle.arrival.headers) or made_id()
        answer = refusal(error, name=name, model=cycle.endpoint.facts.spec.name)
        self._write(cycle, answer, name, self.access.wants(answer.status, name))

    def _name_of(self, cycle: FastRequest, status: int) -> tuple[bytes, bool]:
        """The id that a request's answer is to have, and whether the access log tells of it."""
        name = request_id(cycle.arrival.headers)
        is_told = self.access.wants(status, name)
        return name or (made_id() if is_told else b""), is_told

    def _write(
        self, cycle: FastRequest, answer: HttpResponse, name: bytes = b"", is_told: bool = False
    ) -> None:
        """Write it, unless the caller has gone; count it before.

        name: the request's id, if the answer is to have it. is_told: in the access log.
        """
        meter = cycle.endpoint.meter
        if self._is_gone(cycle):
            self._gone(cycle)
            return
        if answer.code == "ok":
            meter.answered(FAST, cycle.arrival.at_ns)
        else:
            meter.refused(FAST, answer.code)
        fields = self.server_state.default_headers
        pieces = self.road.pieces(answer, fields, name, cycle.keep_alive)
        if len(answer.body) <= _LONG_BODY_BYTES:
            pieces.append(answer.body)
            self.transport.write(b"".join(pieces))
        else:
            self.transport.write(b"".join(pieces))
            self.transport.write(answer.body)
        if is_told:
            outcome = RequestOutcome(answer.status, answer.code, answer.error, len(answer.body))
            if cycle.answered:
                cycle.untold = outcome, name, monotonic_ns()
            else:
                self._tell(cycle, outcome, name, monotonic_ns())

    def _answer_in_frame(self, cycle: FastRequest, frame: Frame, pending: PendingRequest) -> None:
        """Answer 200 with a frame that was made before, and the tensors as they lie in the lane."""
        lane_client = cycle.endpoint.lane_client
        tensors: list[Any] = lane_client.views(pending)
        head = self.road.head(_OK, self.server_state.default_headers)
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        name, is_told, headers = b"", False, cycle.arrival.headers
        if self.access.is_on or REQUEST_ID in headers or TRACEPARENT in headers:
            name, is_told = self._name_of(cycle, _OK)
            if name:
                end = b"x-request-id: %s\r\n%s" % (name, end)
        cycle.endpoint.meter.answered(FAST, cycle.arrival.at_ns)
        try:
            self.transport.write(b"".join([head, frame.fields.lines, end, frame.head, *tensors]))
        finally:
            lane_client.release(pending)
        if is_told:
            self._tell(cycle, RequestOutcome(_OK, "ok", "", frame.size), name, monotonic_ns())
        self._end(cycle)

    def _gone(self, cycle: FastRequest) -> None:
        """The caller has left: nobody is there for an answer."""
        cycle.endpoint.meter.refused(FAST, GONE.code)
        name = request_id(cycle.arrival.headers)
        if self.access.wants(GONE.status, name):
            self._tell(cycle, GONE, name or made_id(), monotonic_ns())

    def _tell_of_refused(self, cycle: FastRequest) -> None:
        """Whose body came, or not, after the answer."""
        if cycle.untold is not None:
            self._tell(cycle, *cycle.untold)

    def _tell(
        self, cycle: FastRequest, outcome: RequestOutcome, name: bytes, ended_ns: int
    ) -> None:
        whole = cycle is not self._taking and not cycle.answered
        cycle.tell(self.access, self._peer, outcome, name, ended_ns, whole=whole)

    def _end(self, cycle: FastRequest) -> None:
        """The answer is complete and so is the request: go on with what came behind it."""
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        if self.pipeline:
            self.on_response_complete()
            return
        # No timer for keep-alive: `sweep` ends idle connections.
        self.server_state.total_requests += 1
        self._stirred_s = self.loop.time()


def fast_protocol(front: PoolView) -> type[FastProtocol]:
    """The connections of one front end."""
    limits = ConnectionLimits.of(front.session.server)
    facts = {"road": FastPath(front), "access": front.access, "meter": front.no_model}
    return type("FrontConnection", (FastProtocol,), {**facts, "limits": limits})
