"""The HTTP side of one model's endpoint: reads infer requests and writes their responses.

The steps of one request, as both paths through the front end take them:

    check_head  headers complete: raises why they are refused, whatever the lane says
    admit       the body is still to come: raises why the lane would refuse the request
    parse       body complete: one checked request
    submit      claims the slots and queues the rows; the listener is called when they end
    fetch       the outputs, or the error of a row
    encode      the response

A request whose body came together with its head is not admitted: its claim decides alone. No step
waits, so each runs on the loop; `parses_long` and `encodes_long` say when `parse` or `encode` would
hold the loop up: `parse_long` and `encode` then run in a thread, which leaves the longest texts to
the parser process.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from batchpool.client.loop import CompletionListener
from batchpool.client.pending_request import PendingRequest
from batchpool.client.pool_facts import ModelFacts
from batchpool.client.running_sequence import RunningSequence
from batchpool.client.stream_call import require_generator, require_one_row
from batchpool.core.errors import Moved, TooLarge
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.http.request_counters import RequestCounters
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse, ok_response
from batchpool.frontend.parser.process import ParserProcess
from batchpool.frontend.service.body_limits import ADVICE
from batchpool.frontend.service.endpoint import NO_DEADLINE_NS, Endpoint
from batchpool.frontend.service.prompt_limits import ADVICE as SHORTER
from batchpool.frontend.service.prompt_limits import most_prompt_bytes
from batchpool.wire.codec import Codec
from batchpool.wire.encoding import MOST_EXPANSION, decode_body, encode_answer
from batchpool.wire.forms import form_of
from batchpool.wire.generation import GenerationAnswers
from batchpool.wire.model_tables import Frame
from batchpool.wire.raw import FixedSizeReader
from batchpool.wire.request import Body, InferRequest, header_priority

VERSION = "1"  # the only version of every model
# Work below these sizes takes at most a few milliseconds of the loop. Measured on one core: 12 ns a
# byte of JSON numbers to read, 5 to write; 12 to 42 ns a byte to compress, 6 to decompress.
_LONG_JSON_BYTES = 256 * 1024
_SHORT_BYTES = 32 * 1024  # in any form
_LONG_JSON_VALUES = 16 * 1024
_VALUES_OF_A_CLASS = 16  # as long as so many values in JSON takes the text of one class
_LONG_COMPRESSED_BYTES = _LONG_JSON_BYTES // MOST_EXPANSION
_LONG_FOR_A_THREAD_BYTES = 1024 * 1024
_LONG_TO_COMPRESS_BYTES = 128 * 1024
_LEAST_COMPRESSED_BYTES = 1024


class HttpEndpoint:
    """One model over HTTP. max_body_bytes: of a body, before and after decompression;
    max_prompt_bytes: of one that brings one prompt to a generator.

    metrics: where its requests are counted. after: gives the `HttpEndpoint` that the model has now
    when its lane client has moved; raises NotFound if the model is gone. parser: for long texts.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        max_body_bytes: int,
        metrics: RequestCounters,
        after: Callable[[HttpEndpoint], HttpEndpoint],
        parser: ParserProcess,
    ) -> None:
        spec = endpoint.facts.spec
        self.endpoint = endpoint
        self.lane_client = endpoint.lane_client
        self.name = spec.name
        self.metrics = metrics
        self.max_body_bytes = max_body_bytes
        self._after = after
        self._parser = parser
        self._codec = Codec(spec, VERSION)
        self._generation_answers = GenerationAnswers(spec, VERSION) if spec.generates else None
        self._takes_bytes = any(tensor.is_bytes for tensor in spec.inputs)
        self.max_prompt_bytes = min(max_body_bytes, most_prompt_bytes(spec))
        self._row_values = {t.name: max(1, math.prod(t.max_shape)) for t in spec.outputs}
        self._row_bytes = {t.name: t.row_bytes for t in spec.outputs}
        for tensor in spec.outputs:
            self._row_values[tensor.sizes_name] = len(tensor.dynamic)
            self._row_bytes[tensor.sizes_name] = 8 * len(tensor.dynamic)

    def learn(self, facts: ModelFacts, max_body_bytes: int) -> None:
        """Take other limits from now on; the tensors of the model stay as they are."""
        self.endpoint.learn(facts)
        self.max_body_bytes = max_body_bytes
        self.max_prompt_bytes = min(max_body_bytes, most_prompt_bytes(facts.spec))

    def check_head(self, head: RequestHead, *, one_prompt: bool = False) -> None:
        """Read the form and the priority of a request from its headers. one_prompt: of a generator,
        is all that it brings.

        Raises UnsupportedMediaType for its content type, TooLarge for its Content-Length, and
        InvalidRequest for its priority.
        """
        headers = head.headers
        head.form = form_of(headers)
        announced = headers.get(b"content-length")
        most = self.max_prompt_bytes if one_prompt else self.max_body_bytes
        if announced and announced.isdigit() and int(announced) > most:
            advice = SHORTER if one_prompt else ADVICE
            raise TooLarge(
                f"the body has {int(announced)} bytes; at most {most} are taken: {advice}"
            )
        head.priority = header_priority(headers)

    def admit(self, head: RequestHead) -> HttpEndpoint:
        """Raise what a claim of one row would meet now, before the body is there.

        The priority is that of the header: a parameter may still be on its way. Claims nothing; a
        refusal by the lane is counted. Returns the endpoint at which the request goes on, which is
        another one when the model has moved.
        """
        try:
            self.endpoint.admit(head.flow, head.priority, head.at_ns)
        except Moved:
            return self.successor().admit(head)
        head.admitted = True
        return self

    def successor(self) -> HttpEndpoint:
        """The endpoint that a moved model has now. Raises NotFound if the model is gone."""
        return self._after(self)

    def check_open(self) -> None:
        """Raise why no request at all can come in now, if so; overload is no such reason."""
        try:
            self.endpoint.check_open()
        except Moved:
            self.successor().check_open()

    def parses_long(self, head: RequestHead, size: int) -> bool:
        """True if `parse` of a body of `size` bytes would keep other requests waiting too long."""
        if size > _LONG_COMPRESSED_BYTES and head.headers.get(b"content-encoding"):
            return True
        if size <= _SHORT_BYTES:
            return False
        if size > _LONG_JSON_BYTES and self._takes_bytes:
            return True
        return head.form.text_bytes(head.headers, size) > _LONG_JSON_BYTES

    def most_decoded_bytes(self, head: RequestHead, size: int) -> int:
        """The most bytes that `parse` may make of a body of `size` bytes before it has its rows; 0
        for a body that is not compressed."""
        if not head.headers.get(b"content-encoding"):
            return 0
        return min(size * MOST_EXPANSION, self.max_body_bytes)

    def parse_long(self, head: RequestHead, body: Body) -> InferRequest:
        """`parse` for the background thread: other requests go on meanwhile, whatever the size."""
        plain = decode_body(head.headers, body, self.max_body_bytes, ADVICE)
        text_bytes = head.form.text_bytes(head.headers, len(plain))
        if text_bytes <= _LONG_FOR_A_THREAD_BYTES or not head.form.is_slow(plain):
            return self._codec.parse_as(head.form, head.headers, plain, head.priority)
        return self._parser.parse(self.endpoint.facts.spec, head.headers, plain)

    def parse(self, head: RequestHead, body: Body) -> InferRequest:
        """The request in a whole body, after `check_head`. Its rows are views of the body."""
        plain = decode_body(head.headers, body, self.max_body_bytes, ADVICE)
        return self._codec.parse_as(head.form, head.headers, plain, head.priority)

    def fixed_size_reader(self, request: InferRequest, size: int) -> FixedSizeReader | None:
        """A reader of more bodies of `size` bytes with the headers of this request.

        None where a body holds more than rows.
        """
        return self._codec.fixed_size_reader(request, size)

    def submit(
        self,
        head: RequestHead,
        request: InferRequest,
        rows: Rows,
        listener: CompletionListener,
    ) -> PendingRequest:
        """Claim slots, write the rows and queue them; the rows' tensors are dropped after it.

        rows: the request's own, or others of the same kind. The deadline is the model's limit from
        now, or the request's own from its head if that is sooner. Raises what `Endpoint.submit`
        raises; after Moved the request must be parsed again by the successor.
        """
        endpoint = self.endpoint
        priority = request.priority
        if head.admitted:
            now_ns = time.monotonic_ns()
        else:
            now_ns = head.at_ns
            # A parameter must not bring in what the header alone would not: the answer may not
            # depend on how the bytes were cut into reads.
            if priority != head.priority:
                endpoint.admit(head.flow, head.priority, now_ns)
        timeout_ns = request.timeout_ns
        pending = endpoint.submit(
            rows,
            listener,
            now_ns=now_ns,
            flow=head.flow,
            priority=priority,
            deadline_ns=NO_DEADLINE_NS if timeout_ns is None else head.at_ns + timeout_ns,
        )
        # The rows stand in their slots: a waiting request need not keep its body too.
        rows.tensors.clear()
        return pending

    @property
    def generation_answers(self) -> GenerationAnswers:
        """The writer of a generator's answers."""
        assert self._generation_answers is not None, "a generator's alone"
        return self._generation_answers

    def submit_prompt(
        self, head: RequestHead, request: InferRequest, listener: CompletionListener
    ) -> PendingRequest:
        """As `submit`, of a generator's one row; InvalidRequest for more, and for a model that is
        no generator, as after a reload."""
        require_generator(self.endpoint.facts.spec)
        require_one_row(self.endpoint.facts.spec, request.rows.n)
        return self.submit(head, request, request.rows, listener)

    def stream(self, head: RequestHead, request: InferRequest) -> RunningSequence:
        """As `submit_prompt`, and follow the row while it runs. The caller owes `cancel`, unless
        the sequence has ended; its error comes with its tokens."""
        sequence = self.endpoint.new_sequence()
        sequence.follow(self.submit_prompt(head, request, sequence))
        return sequence

    def encodes_long(self, head: RequestHead, request: InferRequest, n: int) -> bool:
        """True if `encode` of n rows would keep other requests waiting too long."""
        values = 0
        for choice in request.outputs:
            if choice.classes:
                values += self._row_values[choice.name] + _VALUES_OF_A_CLASS * choice.classes
            elif not choice.binary:
                values += self._row_values[choice.name]
        if n * values > _LONG_JSON_VALUES:
            return True
        if b"accept-encoding" not in head.headers:
            return False
        return n * sum(self._row_bytes[c.name] for c in request.outputs) > _LONG_TO_COMPRESS_BYTES

    def frame(self, head: RequestHead, request: InferRequest, n: int) -> Frame | None:
        """The prepared 200 response of n rows without its tensors; None where there is none.

        The tensors follow it as `LaneClient.octets` gives them.
        """
        if head.value(b"accept-encoding") is not None:
            return None
        return self._codec.frame(request, n)

    def fetch(self, request: InferRequest, pending: PendingRequest) -> dict[str, Array]:
        """Copies of the outputs asked for; frees the slots. Raises the error of a row."""
        return self.endpoint.fetch(pending, [choice.name for choice in request.outputs])

    def fetch_and_encode(
        self, head: RequestHead, request: InferRequest, pending: PendingRequest
    ) -> HttpResponse:
        """The 200 response, made of views of the lane; frees the slots. Raises the error of a
        row."""
        outputs = self.endpoint.view(pending, [choice.name for choice in request.outputs])
        try:
            return self.encode(head, request, outputs)
        finally:
            self.endpoint.release(pending)

    def encode(
        self, head: RequestHead, request: InferRequest, outputs: Mapping[str, Array]
    ) -> HttpResponse:
        """The 200 response, compressed if the caller accepts that and the body is not small."""
        headers, body = self._codec.encode(request, outputs)
        accepted = head.headers.get(b"accept-encoding")
        if accepted and len(body) >= _LEAST_COMPRESSED_BYTES:
            headers, body = encode_answer(accepted, headers, body)
        return ok_response(headers, body)
