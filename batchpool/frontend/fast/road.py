"""What the connections of one fast road share."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from batchpool.core.errors import Moved
from batchpool.frontend.asgi.app import discard_bytes
from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.response import HttpResponse
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.request import Body, Fields, HeaderList


class FastPath:
    """What the connections of one front end share.

    doors: by the path as it is sent.  discard_bytes: how much of a refused body is dropped.
    """

    def __init__(self, front: PoolView) -> None:
        self.endpoints = front.paths
        self.aside = front.aside
        self.bodies = front.bodies
        self.discard_bytes = discard_bytes(front)
        self._fields: HeaderList | None = None
        self._heads: dict[int, bytes] = {}

    def fail(self, cycle: FastRequest, error: Exception, body: Body) -> None:
        """A request with this body could not be submitted: refuse it, unless its model has moved;
        then it begins anew at the door that the model has now."""
        if isinstance(error, Moved):
            try:
                cycle.endpoint = endpoint = cycle.endpoint.successor().admit(cycle.arrival)
                cycle.request = request = endpoint.parse(cycle.arrival, body)
                cycle.pending = endpoint.submit(cycle.arrival, request, cycle)
                return
            except Exception as exc:
                error = exc
        cycle.connection.refuse(cycle, error)

    def pieces(
        self, answer: HttpResponse, fields: HeaderList, name: bytes, keep_alive: bool
    ) -> list[bytes]:
        """An answer without its body. fields: of every answer. name: of this request, or b""."""
        pieces = [self.head(answer.status, fields)]
        if isinstance(answer.headers, Fields):
            pieces.append(answer.headers.lines)
        else:
            for field, value in answer.headers:
                pieces += (field, b": ", value, b"\r\n")
        if name:
            pieces += (b"x-request-id: ", name, b"\r\n")
        pieces.append(b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
        return pieces

    def head(self, status: int, fields: HeaderList) -> bytes:
        """The status line and the fields of every answer; uvicorn makes them anew each second."""
        if fields is not self._fields:
            self._fields = fields
            self._heads.clear()
        head = self._heads.get(status)
        if head is None:
            head = STATUS_LINE[status] + b"".join(b"%s: %s\r\n" % field for field in fields)
            self._heads[status] = head
        return head
