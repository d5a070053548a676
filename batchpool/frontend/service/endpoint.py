"""Door: the way of one infer request into one model and out again, step by step.

    admit    headers complete: may it come in? Nothing is claimed yet
    parse    body complete: one checked request
    submit   claims the slots and queues the rows; the listener hears of their end
    leave    the caller has gone while it waited
    fetch    the outputs, or the error of a row
    encode   the answer

Both HTTP roads walk these steps. None of them waits, so each runs on the loop; `parses_long`
and `encodes_long` say when parse or encode would hold the loop up and belong into a thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from zlib import crc32

from batchpool.client.lane_client import LaneClient, PendingRequest
from batchpool.client.loop import ClientLoop, CompletionListener
from batchpool.client.reply import Reply
from batchpool.client.session import ModelFacts
from batchpool.core.errors import Cancelled, DeadlineExceeded, Moved, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.http.metrics import EndpointMetrics
from batchpool.frontend.http.response import HttpResponse, found
from batchpool.wire.codec import Codec
from batchpool.wire.encoding import decode_body, encode_answer
from batchpool.wire.forms import form_of
from batchpool.wire.model_tables import Frame
from batchpool.wire.raw import RawAgain
from batchpool.wire.request import (
    Body,
    Headers,
    InferRequest,
    header_priority,
)

VERSION = "1"  # of every model; there is one version of each
_CLIENT_ID = b"x-client-id"
# What is below takes a few milliseconds of the loop. Measured on one core: 12 ns a byte of JSON
# numbers to read, 5 to write; 12 to 42 ns a byte to compress, 6 to unfold.
_LONG_JSON_BYTES = 256 * 1024
_LONG_JSON_VALUES = 16 * 1024
_LONG_COMPRESSED_BYTES = 16 * 1024  # may unfold a thousandfold
_LONG_TO_COMPRESS_BYTES = 128 * 1024
_WORTH_COMPRESSING_BYTES = 1024


class RequestHead:
    """What is known of a request when its headers are complete.

    headers: lower-case names.  flow: who must be fair to whom, 32 bits, not 0.
    at_ns: CLOCK_MONOTONIC; the request's own timeout counts from here.  priority: of its
    header, once it was admitted.

    There is one for each request: a dataclass, once compiled, takes several times as long to make.
    """

    __slots__ = ("at_ns", "flow", "headers", "priority")

    def __init__(self, headers: Headers, flow: int, at_ns: int, priority: int = 0) -> None:
        self.headers = headers
        self.flow = flow
        self.at_ns = at_ns
        self.priority = priority

    def again(self) -> RequestHead:
        """An arrival now, of a request with the same headers from the same peer."""
        return RequestHead(self.headers, self.flow, time.monotonic_ns(), self.priority)

    @classmethod
    def of(cls, headers: Headers, peer: str) -> RequestHead:
        """An arrival now. peer: the address at the other end, for callers without a name."""
        name = headers.get(_CLIENT_ID)
        return cls(headers, crc32(name or peer.encode()) or 1, time.monotonic_ns())


class Endpoint:
    """One model's door in one front end. max_body_bytes: before and after decompression.

    after: finds the model's present door where the lane client has moved; raises if there is none.
    """

    def __init__(
        self,
        facts: ModelFacts,
        lane_client: LaneClient,
        client_loop: ClientLoop,
        max_body_bytes: int,
        meter: EndpointMetrics,
        after: Callable[[Endpoint], Endpoint],
    ) -> None:
        self.meter = meter
        self.lane_client = lane_client
        self._after = after
        self._client_loop = client_loop
        self._codec = Codec(facts.spec, VERSION)
        self.learn(facts, max_body_bytes)
        self._takes_bytes = any(tensor.is_bytes for tensor in facts.spec.inputs)
        self._row_values = {t.name: max(1, _count(t.max_shape)) for t in facts.spec.outputs}
        self._row_bytes = {t.name: t.row_bytes for t in facts.spec.outputs}

    def learn(self, facts: ModelFacts, max_body_bytes: int) -> None:
        """Go by these facts; the tensors of a model stay what they are."""
        self.facts = facts
        self.max_body_bytes = max_body_bytes
        self._limit_ns = int(facts.request_timeout_s * 1e9)
        self.lane_client.map.set_watermark(facts.watermark)

    def admit(self, arrival: RequestHead) -> Endpoint:
        """Raise why this request cannot come in, before its body is read; else the door at which
        it goes on: the one that its model has now.

        TooLarge by its Content-Length, UnsupportedMediaType by its content type, or what a
        claim of one row would meet now, at the priority in the header: a parameter may still
        be on its way. Claims nothing; a refusal by the lane is counted.
        """
        headers = arrival.headers
        form_of(headers)
        announced = headers.get(b"content-length")
        if announced and announced.isdigit() and int(announced) > self.max_body_bytes:
            raise TooLarge(
                f"the body has {int(announced)} bytes; at most {self.max_body_bytes} are taken"
            )
        arrival.priority = header_priority(headers)
        try:
            self.admit_again(arrival)
        except Moved:
            return self.successor().admit(arrival)
        return self

    def successor(self) -> Endpoint:
        """Its model has moved: the door that it has now. NotFound if it is no more."""
        return self._after(self)

    def admit_again(self, arrival: RequestHead) -> None:
        """The same for headers that were admitted before: only the lane may say no, or Moved."""
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        self.lane_client.check(1, arrival.at_ns, flow=arrival.flow, priority=arrival.priority)

    def check_open(self) -> None:
        """Raise why no request can come in at all now, if so; overload is no such reason."""
        if self._client_loop.over:
            raise self._client_loop.session.stopped()
        try:
            self.lane_client.check_gate(time.monotonic_ns())
        except Moved:
            self.successor().check_open()

    def parses_long(self, arrival: RequestHead, size: int) -> bool:
        """Whether `parse` of a body of `size` bytes would keep others waiting for too long."""
        if size > _LONG_COMPRESSED_BYTES and arrival.headers.get(b"content-encoding"):
            return True
        if size <= _LONG_JSON_BYTES:
            return False
        if self._takes_bytes:
            return True
        return form_of(arrival.headers).text_bytes(arrival.headers, size) > _LONG_JSON_BYTES

    def parse(self, arrival: RequestHead, body: Body) -> InferRequest:
        """The request in a whole body. Its rows are views of the body; see `Codec.parse`."""
        plain = decode_body(arrival.headers, body, self.max_body_bytes)
        return self._codec.parse(arrival.headers, plain)

    def submit(
        self, arrival: RequestHead, request: InferRequest, listener: CompletionListener
    ) -> PendingRequest:
        """Claim slots, write the rows and queue them; the request gives its rows away.

        The deadline is the model's limit from now, or the request's own from its arrival if
        that is sooner. Raises DeadlineExceeded, TooLarge, one of the 503s, or Moved: then the
        request is as it was, but it must be parsed anew by the successor.
        """
        rows = request.rows
        pending = self._submit(arrival, request, rows, listener, time.monotonic_ns())
        # The rows stand in their slots: a waiting request need not keep its body too.
        rows.tensors.clear()
        return pending

    def again(self, arrival: RequestHead, request: InferRequest, size: int) -> RawAgain | None:
        """How to read more bodies of `size` bytes with these headers, if that is quick."""
        return self._codec.again(request, size)

    def submit_again(
        self, arrival: RequestHead, request: InferRequest, rows: Rows, listener: CompletionListener
    ) -> PendingRequest:
        """`submit` of other rows than the request's, in the moment of its `admit_again`."""
        return self._submit(arrival, request, rows, listener, arrival.at_ns, checked=True)

    def _submit(
        self,
        arrival: RequestHead,
        request: InferRequest,
        rows: Rows,
        listener: CompletionListener,
        now_ns: int,
        *,
        checked: bool = False,
    ) -> PendingRequest:
        deadline_ns = now_ns + self._limit_ns
        if request.timeout_ns is not None:
            deadline_ns = min(deadline_ns, arrival.at_ns + request.timeout_ns)
            if deadline_ns <= now_ns:
                raise DeadlineExceeded("the request's time was up before it was complete")
        return self._client_loop.submit(
            self.lane_client,
            rows,
            now_ns,
            deadline_ns,
            listener,
            priority=request.priority,
            flow=arrival.flow,
            checked=checked and request.priority == arrival.priority,
        )

    def abandon(self, pending: PendingRequest) -> None:
        """The caller has gone: take back what was not dispatched. Its listener hears no more."""
        self._client_loop.abandon(self.lane_client, pending)

    def leave(self, pending: PendingRequest, reply: Reply) -> None:
        """The same for a listener that is waited for; no answer is needed."""
        if not reply.done():
            reply.set_exception(Cancelled("the caller closed the connection"))
            self.abandon(pending)

    def forget(self, pending: PendingRequest, reply: Reply) -> None:
        """Nobody will fetch the outputs, however far the request has come."""
        if not reply.done() or reply.cancelled():
            reply.cancel()
            self._client_loop.abandon(self.lane_client, pending)
        elif reply.exception() is None:
            self.lane_client.release(pending)

    def encodes_long(self, arrival: RequestHead, request: InferRequest, n: int) -> bool:
        """Whether writing the answer of n rows may take so long that others should not wait."""
        values = 0
        for choice in request.outputs:
            if not choice.binary:
                values += self._row_values[choice.name]
        if n * values > _LONG_JSON_VALUES:
            return True
        if b"accept-encoding" not in arrival.headers:
            return False
        return n * sum(self._row_bytes[c.name] for c in request.outputs) > _LONG_TO_COMPRESS_BYTES

    def frame(self, arrival: RequestHead, request: InferRequest, n: int) -> Frame | None:
        """The 200 answer of n rows without its tensors, where that is made before; they follow as
        `LaneClient.views` has them."""
        if b"accept-encoding" in arrival.headers:
            return None
        return self._codec.frame(request, n)

    def fetch(self, request: InferRequest, pending: PendingRequest) -> dict[str, Array]:
        """Copies of the outputs asked for; frees the slots. Raises the error of a row."""
        return self.lane_client.result(pending, [choice.name for choice in request.outputs])

    def fetch_and_encode(
        self, arrival: RequestHead, request: InferRequest, pending: PendingRequest
    ) -> HttpResponse:
        """Both at once, without the copy between: the answer is made of views of the lane."""
        names = [choice.name for choice in request.outputs]
        outputs = self.lane_client.result(pending, names, copy=False)
        try:
            return self.encode(arrival, request, outputs)
        finally:
            self.lane_client.release(pending)

    def encode(
        self, arrival: RequestHead, request: InferRequest, outputs: Mapping[str, Array]
    ) -> HttpResponse:
        """The 200 answer, compressed if the caller asked for that and it is worth it."""
        headers, body = self._codec.encode(request, outputs)
        accepted = arrival.headers.get(b"accept-encoding")
        if accepted and len(body) >= _WORTH_COMPRESSING_BYTES:
            headers, body = encode_answer(accepted, headers, body)
        return found(headers, body)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
