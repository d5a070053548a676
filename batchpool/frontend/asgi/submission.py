"""One infer request that is kept as a task: read the body, parse it, hand it over, say 202.

Its rows are checked here, so that what could never run is refused at once; no lane is asked, since
a task waits for room where a request would be refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from batchpool.control.task_messages import TaskSubmitted
from batchpool.frontend.asgi.sending import may_take
from batchpool.frontend.asgi.unless_lost import unless_lost
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import note
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import LONG_BODY_BYTES, HttpResponse
from batchpool.frontend.service.body_limits import ADVICE
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.task_answers import accepted_response, result_response
from batchpool.frontend.service.task_link import TaskLink
from batchpool.frontend.service.task_submission import task_message
from batchpool.wire.left_out import LeftOut
from batchpool.wire.preferences import AsyncPreference, idempotency_key


class Submission:
    """One request. fields: all its header lines. prefix: of every path, as a proxy shows it."""

    def __init__(
        self,
        link: TaskLink,
        endpoint: HttpEndpoint,
        head: RequestHead,
        preference: AsyncPreference,
        fields: Iterable[tuple[bytes, bytes]],
        prefix: str,
    ) -> None:
        self._link = link
        self._endpoint = endpoint
        self._head = head
        self._preference = preference
        self._fields = fields
        self._prefix = prefix

    async def run(
        self, request_body: RequestBody, background: BackgroundThread, memory: MemoryBudget
    ) -> HttpResponse | None:
        """The response; None when the caller has gone. Raises what refuses the request."""
        endpoint, head = self._endpoint, self._head
        endpoint.check_head(head)
        key = idempotency_key(self._fields)
        memory.check()
        reservation = MemoryReservation(memory, head.flow)
        decoded = MemoryReservation(memory, head.flow)
        try:
            body = await request_body.read(endpoint.max_body_bytes, reservation, ADVICE)
            if body is None:
                return None
            if endpoint.parses_long(head, len(body)):
                most_bytes = endpoint.most_decoded_bytes(head, len(body))
                request = await background.run(
                    head.flow, endpoint.parse_long, head, body,
                    begin=partial(decoded.grow_to, most_bytes),
                )  # fmt: skip
            else:
                request = endpoint.parse(head, body)
            is_long = len(body) > LONG_BODY_BYTES or endpoint.parses_long(head, len(body))
            del body
            note(rows=request.rows.n)
            left_out = LeftOut()
            if is_long:  # of texts it copies megabytes, and it walks all values
                message = await background.run(
                    head.flow, task_message, endpoint, head, request, key, left_out
                )
            else:
                message = task_message(endpoint, head, request, key, left_out)
            submitted = await self._link.ask(message, TaskSubmitted, left_out=left_out)
        finally:
            reservation.release()
            decoded.release()
        return await self._answer(submitted, request_body)

    async def _answer(
        self, submitted: TaskSubmitted, request_body: RequestBody
    ) -> HttpResponse | None:
        task, wait_s = submitted.task, self._preference.wait_s
        if wait_s:
            answer = self._link.result(task.id, self._head.caller.key, wait_s)
            result = await unless_lost(request_body, answer)
            if result is None:
                return None
            if result.status:
                accepted = self._head.headers.get(b"accept-encoding")
                response = result_response(result, self._prefix, accepted)
                if may_take(response):
                    self._link.mark_read(task.id)
                    if submitted.replayed:
                        response.headers.append((b"idempotency-replayed", b"true"))
                    return response
                # It is kept, and the caller learns where.
            task = result.task
        return accepted_response(task, self._prefix, replayed=submitted.replayed)
