"""One infer request on the fast path: its state from head to response, and its response."""

from __future__ import annotations

import asyncio
from time import monotonic_ns
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.server import ServerState

from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Moved, Overloaded, PoolError, Retryable
from batchpool.frontend.http.access_log import GONE, LoggedRequest, RequestOutcome
from batchpool.frontend.http.request_counters import FAST
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import LONG_BODY_BYTES, HttpResponse, error_response
from batchpool.frontend.service.body_limits import discard_bytes
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.model_tables import Frame
from batchpool.wire.request import Body, Fields, HeaderList, InferRequest
from batchpool.wire.request_id import made_id

_NEVER_AWAITED = asyncio.Event()
_OK = 200


class FastPath:
    """The state that all fast-path connections of one front end share.

    endpoints: by the path as it is sent. tasks: the task process, None where no tasks are kept.
    discard_bytes: the most that is dropped of a refused body.
    """

    def __init__(self, view: PoolView) -> None:
        self.endpoints = view.endpoints.by_path
        self.background = view.background
        self.access = view.access
        self.tasks = view.tasks
        self.discard_bytes = discard_bytes(view.max_body_bytes)
        self._fields: HeaderList | None = None
        self._heads: dict[int, bytes] = {}

    def pieces(
        self, response: HttpResponse, fields: HeaderList, name: bytes, keep_alive: bool
    ) -> list[bytes]:
        """A response's bytes without its body.

        fields: the headers of every response. name: the request's id, or b"".
        """
        pieces = [self.head(response.status, fields)]
        if isinstance(response.headers, Fields):
            pieces.append(response.headers.lines)
        else:
            for field, value in response.headers:
                pieces += (field, b": ", value, b"\r\n")
        if name:
            pieces += (b"x-request-id: ", name, b"\r\n")
        pieces.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
        return pieces

    def head(self, status: int, fields: HeaderList) -> bytes:
        """The status line and the headers of every response.

        fields: uvicorn makes a new list each second, with another date.
        """
        if fields is not self._fields:
            self._fields = fields
            self._heads.clear()
        head = self._heads.get(status)
        if head is None:
            head = STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % field for field in fields)
            self._heads[status] = head
        return head


class FastConnection(Protocol):
    """The connection of a request, as `FastRequest` uses it."""

    transport: asyncio.Transport
    server_state: ServerState

    def check_response(self, size: int) -> None:
        """Raise Overloaded for a long response that the caller may not take just now."""

    def end_request(self, request: FastRequest) -> None:
        """The request's response is written; go on with the next request."""


# methods: the steps of one request, and what its kinds do otherwise than an infer request
class FastRequest:
    """One request on the fast path.

    uvicorn and `Connection` treat it as a `RequestResponseCycle`, of which they use `disconnected`,
    `keep_alive`, `message_event` and `response_complete`. The client loop treats it as the
    `CompletionListener` of its rows.

    parsed: the checked request, once the body was parsed. pending: set while its rows are under
    way. is_arriving: its body is not complete. discards_body: it was refused before its body was
    complete, so the rest is dropped; `log_later` then has the outcome, the request's id and the
    time in ns for the access log, which gets its line when the body has come.
    """

    __slots__ = (
        "body",
        "connection",
        "discards_body",
        "disconnected",
        "dropped_bytes",
        "endpoint",
        "head",
        "is_arriving",
        "keep_alive",
        "log_later",
        "parsed",
        "path",
        "pending",
        "response_complete",
        "shared",
    )
    message_event: ClassVar[asyncio.Event] = _NEVER_AWAITED
    method: ClassVar[str] = "POST"
    endpoint: HttpEndpoint
    path: bytes
    head: RequestHead

    def __init__(self, connection: FastConnection, shared: FastPath, keep_alive: bool) -> None:
        self.connection = connection
        self.shared = shared
        self.keep_alive = keep_alive
        self.disconnected = False
        self.response_complete = False
        self.is_arriving = False
        self.discards_body = False
        self.body: bytes | bytearray = b""
        self.dropped_bytes = 0
        self.log_later: tuple[RequestOutcome, bytes, int] | None = None
        self.parsed: InferRequest | None = None
        self.pending: PendingRequest | None = None

    # -- submission ---------------------------------------------------------------------

    def admit(self) -> None:
        """Raise what the lane says against the request, whose body is not complete."""
        self.endpoint = self.endpoint.admit(self.head)

    def submit_body(self, body: Body) -> None:
        """Parse a whole body and submit its rows, or refuse the request."""
        head, endpoint = self.head, self.endpoint
        try:
            self.parsed = parsed = endpoint.parse(head, body)
            self.pending = endpoint.submit(head, parsed, parsed.rows, self)
        except Exception as exc:
            self.submit_again_or_refuse(exc, body)

    def submit_again_or_refuse(self, error: Exception, body: Body) -> None:
        """Handle an error of the first attempt to parse and submit this body.

        If the model has moved, the body is parsed and submitted at the model's present endpoint. A
        refusal by the lane comes before any fault of the body, as where the head was admitted
        before its body came; only then is the request refused for that fault.
        """
        admits = not (self.head.admitted or isinstance(error, Retryable))
        if admits or isinstance(error, Moved):
            try:
                endpoint = self.endpoint.admit(self.head)
                if endpoint is not self.endpoint:
                    self.endpoint = endpoint
                    self.parsed = parsed = endpoint.parse(self.head, body)
                    self.pending = endpoint.submit(self.head, parsed, parsed.rows, self)
                    return
            except Exception as exc:
                error = exc
        self.refuse(error)

    # -- completion ---------------------------------------------------------------------

    def finished(self, pending: PendingRequest) -> bool:
        """Respond with the outputs, or the error of a row; False: the caller has gone."""
        self.pending = None
        if self._is_gone():
            self.count_gone()
            return False
        endpoint, head, parsed = self.endpoint, self.head, self.parsed
        assert parsed is not None
        try:
            frame = endpoint.frame(head, parsed, pending.n)
            if frame is not None and frame.size <= LONG_BODY_BYTES:
                self._respond_in_frame(frame, pending)
            elif endpoint.encodes_long(head, parsed, pending.n):
                # Copies: the slots are free at once, and the thread reads nothing of the lane.
                outputs = endpoint.fetch(parsed, pending)
                encoded = self.shared.background.run(
                    head.flow, endpoint.encode, head, parsed, outputs
                )
                encoded.add_done_callback(self._on_encoded)
            else:
                self.respond(endpoint.fetch_and_encode(head, parsed, pending))
        except Exception as exc:
            self.refuse(exc)
        return True

    def failed(self, error: PoolError) -> None:
        """Respond with the error; no rows will come."""
        self.pending = None
        self.refuse(error)

    def is_waiting(self) -> bool:
        """True from the submission of a whole body to its completion."""
        return self.pending is not None

    def abandon(self) -> None:
        """Take back what was submitted: the caller has gone."""
        pending, self.pending = self.pending, None  # it refers to the request
        if pending is not None:
            self.disconnected = True
            self.endpoint.endpoint.abandon(pending)
        self.count_gone()

    def _on_encoded(self, encoded: asyncio.Future[HttpResponse]) -> None:
        if encoded.cancelled():  # the front end has ended
            return
        error = encoded.exception()
        if error is None:
            self.respond(encoded.result())
        else:
            self.refuse(error)

    # -- response -----------------------------------------------------------------------

    def respond(self, response: HttpResponse) -> None:
        """Write the response, with which the request is complete; or a refusal of a long one that
        its caller may not take just now."""
        if len(response.body) > LONG_BODY_BYTES:
            try:
                self.connection.check_response(len(response.body))
            except Overloaded as exc:
                self.refuse(exc)
                return
        self._write(response, *self._id_of_response(response.status))
        self.connection.end_request(self)

    def refuse(self, error: BaseException) -> None:
        """Write the response for an error, with which the request is complete."""
        self.refuse_early(error)
        self.connection.end_request(self)

    def refuse_early(self, error: BaseException) -> None:
        """Write the response for an error; the request goes on until its body has come."""
        name = self.head.request_id() or made_id()
        response = error_response(error, request_id=name, model=self.model())
        self._write(response, name, self.shared.access.wants(response.status, name))

    def _is_gone(self) -> bool:
        return self.disconnected or self.connection.transport.is_closing()

    def _id_of_response(self, status: int) -> tuple[bytes, bool]:
        """The id that the response carries, or b""; and True if the access log gets a line."""
        name = self.head.request_id()
        is_logged = self.shared.access.wants(status, name)
        return name or (made_id() if is_logged else b""), is_logged

    def _write(self, response: HttpResponse, name: bytes, is_logged: bool) -> None:
        """Count a response and write it, unless the caller has gone."""
        if self._is_gone():
            self.count_gone()
            return
        self.count(response)
        connection = self.connection
        fields = connection.server_state.default_headers
        pieces = self.shared.pieces(response, fields, name, self.keep_alive)
        if len(response.body) <= LONG_BODY_BYTES:  # else the copy would take long
            pieces.append(response.body)
            connection.transport.write(b"".join(pieces))
        else:
            connection.transport.write(b"".join(pieces))
            connection.transport.write(response.body)
        if is_logged:
            outcome = RequestOutcome(
                response.status, response.code, response.error, len(response.body)
            )
            if self.discards_body:
                self.log_later = outcome, name, monotonic_ns()
            else:
                self._log(outcome, name, monotonic_ns())

    def _respond_in_frame(self, frame: Frame, pending: PendingRequest) -> None:
        """Respond 200 with a prepared frame, and the tensors as they lie in the lane."""
        lane_client = self.endpoint.lane_client
        tensors = lane_client.octets(pending)
        connection, shared = self.connection, self.shared
        is_logged = False
        if shared.access.is_on:
            name, is_logged = self._id_of_response(_OK)
        else:
            name = self.head.request_id()
        pieces: list[Any] = [
            shared.head(_OK, connection.server_state.default_headers), frame.fields.lines,
        ]  # fmt: skip
        if name:
            pieces += (b"x-request-id: ", name, b"\r\n")
        pieces += (b"\r\n" if self.keep_alive else b"connection: close\r\n\r\n", frame.head)
        pieces += tensors
        self.endpoint.metrics.count_ok(FAST, self.head.at_ns)
        try:
            connection.transport.write(b"".join(pieces))
        finally:
            lane_client.release(pending)
        if is_logged:
            self._log(RequestOutcome(_OK, "ok", "", frame.size), name, monotonic_ns())
        connection.end_request(self)

    # -- metrics and access log ---------------------------------------------------------

    def model(self) -> str:
        """The name of the model, "" for none."""
        return self.endpoint.name

    def rows(self) -> int:
        """The rows of the request, 0 where they are not known."""
        return 0 if self.parsed is None else self.parsed.rows.n

    def count(self, response: HttpResponse) -> None:
        """Count a response, which is about to be written."""
        if response.code == "ok":
            self.endpoint.metrics.count_ok(FAST, self.head.at_ns)
        else:
            self.endpoint.metrics.count_error(FAST, response.code, self.head.at_ns)

    def count_gone(self) -> None:
        """Count and log that the caller has gone before its response."""
        self.endpoint.metrics.count_error(FAST, GONE.code, self.head.at_ns)
        self.log_gone()

    def log_gone(self) -> None:
        """Log that the caller has gone before its response."""
        name = self.head.request_id()
        if self.shared.access.wants(GONE.status, name):
            self._log(GONE, name or made_id(), monotonic_ns())

    def log_refused(self) -> None:
        """Log a request that was refused before its body, now that its body has ended."""
        if self.log_later is not None:
            self._log(*self.log_later)

    def _log(self, outcome: RequestOutcome, name: bytes, ended_ns: int) -> None:
        head = self.head
        if self.is_arriving or self.discards_body:
            bytes_in = len(self.body) + self.dropped_bytes
        else:
            bytes_in = int(head.headers.get(b"content-length", b"0"))
        request = LoggedRequest(
            "fast",
            head.caller.address,
            self.method,
            self.path,
            head.headers,
            head.at_ns,
            name,
            self.model(),
            self.rows(),
            bytes_in,
            head.caller.key,
        )
        self.shared.access.write(request, outcome, ended_ns)
