"""The fast path: infer requests answered inside the HTTP protocol, without an ASGI task.

`FastProtocol` decides when a request's headers are complete. The fast path takes a POST to the
literal path of an infer endpoint, in any form, with a Content-Length. It takes the steps of
`HttpEndpoint` from the parser's own callbacks, one request at a time:

    headers complete   check the head; a refusal is written at once, the body dropped as it comes
    end of the read    if the body is not complete: admit, or refuse in the same way
    message complete   parse, submit; the bytes of one read are parsed as they are
    rows finished      fetch and encode; head and body in one write, if the body is not large

A request that came whole in one read is not admitted: its claim decides alone. A head that its
connection knows (known_head.py) is not parsed again if its whole body came with it.

ASGI, and so Starlette, gets everything else: other paths, methods and spellings, chunked or
compressed bodies, `Expect`, offers of an upgrade, JSON so long that a thread parses it, requests of
browsers, and what the gate refuses. To uvicorn's stop a `FastRequest` is a cycle like any other.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from mypy_extensions import mypyc_attr
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batchpool.core.errors import PoolError
from batchpool.frontend.fast.known_heads import Found, KnownHeads
from batchpool.frontend.fast.request import FastPath, FastRequest
from batchpool.frontend.fast.task_requests import (
    LONGEST_BODY_BYTES,
    TASKS_PATH,
    FastSubmission,
    FastTaskQuestion,
    task_question,
)
from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.connection_limits import ConnectionLimits
from batchpool.frontend.http.gate import Gate
from batchpool.frontend.http.loop_scheduler import LoopScheduler
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.one_message import TooManyFieldsError
from batchpool.frontend.http.read_turns import ReadTurns
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.unparsed import UnparsedBytes
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.preferences import async_preference, idempotency_key

# Headers that change how a request is read or answered, and that only the ASGI path supports.
_ASGI_HEADERS = frozenset(
    {b"content-encoding", b"expect", b"transfer-encoding", b"upgrade"}
    | {b"origin", b"sec-fetch-site"}  # a browser's
)
_PREFER = b"prefer"


# methods: the callbacks of the parser and of the transport share the state of one request.
@mypyc_attr(allow_interpreted_subclasses=True)
class FastProtocol(Connection):
    """One connection with a fast path. `fast_protocol` makes the subclass of a front end."""

    shared: ClassVar[FastPath]
    gate: ClassVar[Gate]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._asks_gate = self.gate.asks(self.own_caller)
        self._receiving: FastRequest | None = None  # its body is still to come
        self._reservation = MemoryReservation(self.memory, give_up=self._refuse_body)  # that body
        self._known: KnownHeads | None = None  # once there is something to know

    def learn(self) -> None:
        """Follow the gate, which a reload has changed: what a known head meant may be over."""
        self._asks_gate = self.gate.asks(self.own_caller)
        self._known = None
        self._whole_head = None  # of a request whose body is still to come

    def connection_lost(self, exc: Exception | None) -> None:
        request: Any = self.cycle
        receiving, self._receiving, self._known = self._receiving, None, None
        super().connection_lost(exc)
        self._reservation.close()
        if not isinstance(request, FastRequest):
            return
        if request.is_waiting():
            request.abandon()
        elif request is receiving and request.discards_body:
            request.log_refused()
        elif request is receiving:
            request.count_gone()

    def receive(self, data: bytes) -> None:
        if not self._unparsed.size and not self.transport.is_closing():
            found = _found(self, data, 0)
            if found is not None and found[3] == len(data):
                # `_active_s` waits for the response: until then the connection is not idle.
                if self.timeout_keep_alive_task is not None:
                    self._unset_keepalive_if_required()
                _receive_known(self, found, data)
                return
        super().receive(data)

    def _parse_piece(self, unparsed: UnparsedBytes) -> None:
        found = _found(self, unparsed.data, unparsed.at) if unparsed.contiguous() else None
        if found is None:
            super()._parse_piece(unparsed)
            return
        known, head, begin, end = found
        at = unparsed.at
        data = bytes(unparsed.take(end - at, is_end=True))
        _receive_known(self, (known, head, begin - at, end - at), data)

    # -- parser callbacks ---------------------------------------------------------------

    def on_message_begin(self) -> None:
        # uvicorn's preparation for ASGI waits until the request turns out to be for ASGI.
        self._begin()
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            fields = self.headers
            fields.append((name.lower(), value))
            if len(fields) > self.limits.fields:
                raise TooManyFieldsError
        else:
            self._trailers += 1

    def _to_asgi(self) -> None:
        url, headers = self.url, self.headers
        HttpToolsProtocol.on_message_begin(self)  # not `Connection`'s, which has begun it already
        self.url = url
        for name, value in headers:
            HttpToolsProtocol.on_header(self, name, value)
        self._begin_asgi()

    def on_headers_complete(self) -> None:
        headers = self._check_head()
        if headers is None:
            return
        endpoint = self.shared.endpoints.get(self.url)
        if endpoint is None:
            taken = self.url.startswith(TASKS_PATH) and self._accept_question(headers)
        else:
            taken = self._accept_head(endpoint, headers)
        if not taken:
            self._to_asgi()

    def on_body(self, body: bytes) -> None:
        request = self._receiving
        if request is None:
            super().on_body(body)
        elif request.discards_body:
            request.dropped_bytes += len(body)
            if request.dropped_bytes > self.shared.discard_bytes:
                self.transport.close()
        elif not request.body:
            request.body = body
        else:
            if isinstance(request.body, bytes):
                request.body = bytearray(request.body)
            request.body += body

    def on_message_complete(self) -> None:
        request = self._receiving
        if request is None:
            super().on_message_complete()
            return
        self._receiving = None
        self._arriving = request.is_arriving = False
        if self._reservation.size:
            self._reservation.release()
        if request.discards_body:
            request.log_refused()
            self.end_request(request)
            return
        body, request.body = request.body, b""
        request.submit_body(body)
        head, self._whole_head = self._whole_head, None
        if head is not None:
            known = self._known
            if known is None:
                known = self._known = KnownHeads()
            known.learn(request, head, len(body))

    # -- requests -----------------------------------------------------------------------

    def _accept_head(self, endpoint: HttpEndpoint, headers: dict[bytes, bytes]) -> bool:
        """Take the request or refuse it by its head; False when it is for ASGI."""
        parser = self.parser
        announced = headers.get(b"content-length", b"0")
        plain = parser.get_method() == b"POST" and _ASGI_HEADERS.isdisjoint(headers)
        if not plain or not announced.isdigit():
            return False
        caller = self.own_caller
        if self._asks_gate:
            passed = self._passed(headers)
            if passed is None:
                return False
            caller = passed
        request: FastRequest | None
        if _PREFER in headers:
            request = self._submission(headers, caller, int(announced))
            if request is None:
                return False
        else:
            request = FastRequest(self, self.shared, self._keeps_alive(headers))
        request.endpoint = endpoint
        request.path = self.url
        request.head = head = RequestHead.of(headers, caller)
        try:
            endpoint.check_head(head)
            if self.memory.is_full:
                self.memory.check()
            if endpoint.parses_long(head, int(announced)):
                return False
        except Exception as exc:
            request.discards_body = True
            request.refuse_early(exc)
        self._receive(request)
        return True

    def _keeps_alive(self, headers: dict[bytes, bytes]) -> bool:
        """True if the connection goes on after this request."""
        parser = self.parser
        keep_alive: bool = parser.should_keep_alive()
        if keep_alive and b"connection" in headers:
            keep_alive = parser.get_http_version() != "1.0"  # uvicorn ends these in any case
        return keep_alive

    def _submission(
        self, headers: dict[bytes, bytes], caller: Caller, size: int
    ) -> FastSubmission | None:
        """A request that is to be kept as a task; None for one that is for ASGI. size: of its
        body, in bytes."""
        link = self.shared.tasks
        preference = async_preference(self.headers)
        if link is None or preference is None or preference.wait_s or size > LONGEST_BODY_BYTES:
            return None
        try:
            key = idempotency_key(self.headers)
        except PoolError:
            return None
        keep_alive = self._keeps_alive(headers)
        request = FastSubmission(self, self.shared, keep_alive, link, self._prefix(headers))
        request.begin(MemoryReservation(self.memory, caller.flow), key)
        return request

    def _accept_question(self, headers: dict[bytes, bytes]) -> bool:
        """Take a GET of a task; False when the request is for ASGI."""
        link, question = self.shared.tasks, task_question(self.url)
        plain = self.parser.get_method() == b"GET" and _ASGI_HEADERS.isdisjoint(headers)
        if link is None or question is None or not plain or _PREFER in headers:
            return False
        if headers.get(b"content-length", b"0") != b"0":
            return False
        caller = self.own_caller
        if self._asks_gate:
            passed = self._passed(headers)
            if passed is None:
                return False
            caller = passed
        keep_alive = self._keeps_alive(headers)
        request = FastTaskQuestion(self, self.shared, keep_alive, link, self._prefix(headers))
        request.begin(question)
        request.path = self.url
        request.head = RequestHead.of(headers, caller)
        self._receive(request)
        return True

    def _prefix(self, headers: dict[bytes, bytes]) -> str:
        return self.gate.site(self.own_caller, headers, "").prefix

    def _passed(self, headers: dict[bytes, bytes]) -> Caller | None:
        """The caller of a request that the gate lets in; None for one that it refuses."""
        try:
            return self.gate.admit(self.own_caller, self.url, self.headers, headers)
        except PoolError:
            return None

    def _receive(self, request: FastRequest) -> None:
        """Let the body of this request come."""
        self.cycle = request  # type: ignore[assignment]
        self._receiving = request
        self._in_head = False
        request.is_arriving = True

    def _count_held(self) -> None:
        if self._receiving is not None:
            self._await_body(self._receiving)
        super()._count_held()

    def _drops_body(self) -> bool:
        request = self._receiving
        return super()._drops_body() if request is None else request.discards_body

    def _await_body(self, request: FastRequest) -> None:
        """Admit a request whose body is not complete, and count the bytes held; or refuse it."""
        if request.discards_body:
            return
        try:
            if not request.head.admitted:
                request.admit()
                self._reservation.flow = request.head.flow
            self._reservation.grow_to(len(request.body))
        except Exception as exc:
            self._refuse_body(exc)

    def _refuse_body(self, error: Exception) -> bool:
        """Drop what comes of the body, and answer with an error; False if no body arrives."""
        request = self._receiving
        if request is not None:
            self._reservation.release()
            request.discards_body = True
            request.dropped_bytes, request.body = len(request.body), b""
            request.refuse_early(error)
        return request is not None

    def end_with(self, error: BaseException) -> None:
        request = self._receiving
        if request is None or self.transport.is_closing():
            super().end_with(error)
        elif request.discards_body:
            self.transport.close()
        else:
            request.keep_alive = False
            request.refuse(error)
            self._receiving = None

    def end_request(self, request: FastRequest) -> None:
        """Mark a request as complete, and go on with the requests behind it."""
        request.response_complete = True
        if not request.keep_alive:
            self.transport.close()
        # No timer for keep-alive: `sweep` closes idle connections.
        self.server_state.total_requests += 1
        self._active_s = self.loop.time()
        if self._unparsed.size:
            self._go_on()


# Functions, not methods: since the class is uvicorn's in part, a compiled call of its methods goes
# by their names, and makes objects of all that is passed.
def _found(connection: FastProtocol, data: bytes, at: int) -> Found | None:
    """The request that begins here, if the parser waits for its first byte, it may begin, and its
    head is known and still means the same."""
    known = connection._known
    if known is None or connection._arriving or connection._head_bytes:
        return None
    if connection.flow.write_paused or not connection.cycle.response_complete:
        return None
    found = None if connection.memory.is_full else known.find(data, at)
    if found is not None:
        head = found[0]
        if connection.shared.endpoints.get(head.path) is not head.endpoint:
            known.forget(head)
            return None
    return found


def _receive_known(connection: FastProtocol, found: Found, data: bytes) -> None:
    """Submit a request whose head is known, and whose body is the rest of the data."""
    known, head, at, end = found
    request = FastRequest(connection, connection.shared, True)
    connection.cycle = request  # type: ignore[assignment]
    request.endpoint = endpoint = known.endpoint
    request.path = known.path
    request.head = head
    if not known.came_again:
        known.come_again()
    reader = known.reader if end - at == known.size else None
    if reader is None:
        request.submit_body(memoryview(data)[at:])
        return
    request.parsed = known.parsed
    try:
        rows = reader.rows(data, at)
        request.pending = endpoint.submit(head, known.parsed, rows, request)
    except Exception as exc:
        reader.forget()
        request.submit_again_or_refuse(exc, memoryview(data)[at:])


def fast_protocol(view: PoolView) -> type[FastProtocol]:
    """The connection class of one front end."""
    attributes = {
        "shared": FastPath(view),
        "gate": view.gate,
        "access": view.access,
        "memory": view.memory,
        "turns": ReadTurns(),
        "scheduler": LoopScheduler(view.client_loop.exchange),
        "metrics": view.endpoints.no_model,
        "limits": ConnectionLimits.of(view.session.server),
    }
    return type("FrontConnection", (FastProtocol,), attributes)
