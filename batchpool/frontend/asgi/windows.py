"""The rows of one request at one model: all at once, or in windows where the lane lets one caller
have fewer of them.

A window that finds the lane full waits for those before it; the first one is refused. Of several
windows no more are under way than half of the lane has room for, so that others find room too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from batchpool.client.chunks import can_join, cut, window_rows
from batchpool.client.pending_request import PendingRequest
from batchpool.client.reply import Reply
from batchpool.core.errors import OF_A_ROW, Moved, Overloaded, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.asgi.infer import finished
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.request import InferRequest

Outputs = dict[str, Array]


class _Window(NamedTuple):
    """Rows under way. start: the place of the first of them in the request."""

    endpoint: HttpEndpoint
    pending: PendingRequest
    done: Reply
    start: int


class Windows:
    """The rows of one request on their way. names: of the outputs that are wanted."""

    def __init__(
        self,
        endpoint: HttpEndpoint,
        head: RequestHead,
        request: InferRequest,
        names: Sequence[str],
        request_body: RequestBody,
    ) -> None:
        self._endpoint = endpoint
        self._head = head
        self._request = request
        self._names = names
        self._request_body = request_body
        self._under_way: deque[_Window] = deque()
        self._n = request.rows.n

    async def outputs(self) -> list[Outputs] | None:
        """Copies of the outputs of each window in order; None when the caller has gone.

        Raises the error of the first row that has one, with its place in the request; Overloaded;
        and Moved where the model has other tensors now.
        """
        found: list[Outputs] = []
        lane = self._endpoint.lane_client.allocator
        size = most = self._n
        bound = self._endpoint.lane_client.most_rows(self._request.rows)
        if size > bound:
            size = window_rows(bound, self._endpoint.endpoint.facts.max_batch)
            size = min(size, lane.share)
            most = max(1, lane.share // size)
        start = 0
        try:
            for rows in cut(self._request.rows, size):
                n = rows.n  # the tensors are dropped once they stand in their slots
                while len(self._under_way) >= most or not self._submit(rows, start):
                    if not await self._take_oldest(found):
                        return None
                start += n
            while self._under_way:
                if not await self._take_oldest(found):
                    return None
        finally:
            for left in self._under_way:
                left.endpoint.endpoint.discard(left.pending, left.done)
        return found

    def _submit(self, rows: Rows, start: int) -> bool:
        """Submit a window; False where it has to wait for those before it."""
        done = Reply()
        try:
            pending = self._endpoint.submit(self._head, self._request, rows, done)
        except Overloaded:
            if not self._under_way:
                raise
            return False
        except Moved:
            before, self._endpoint = self._endpoint, self._endpoint.successor()
            if not can_join(before.endpoint.facts.spec, self._endpoint.endpoint.facts.spec):
                raise
            return self._submit(rows, start)
        self._under_way.append(_Window(self._endpoint, pending, done, start))
        self._head.admitted = True  # each later window has the model's limit for itself
        return True

    async def _take_oldest(self, found: list[Outputs]) -> bool:
        """Wait for the oldest window and append its outputs; False when the caller has gone."""
        window = self._under_way.popleft()
        try:
            if not await finished(window.endpoint, window.pending, window.done, self._request_body):
                return False
            found.append(window.endpoint.endpoint.fetch(window.pending, self._names))
            return True
        except PoolError as error:
            if isinstance(error, OF_A_ROW) and self._n > 1:
                error.row = window.start + (error.row or 0)
            raise
        finally:
            del window  # it may hold the error that is raised, whose traceback refers to it
