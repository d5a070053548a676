"""One infer request on the ASGI road: read the body, walk it through its Door, answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from batchpool.client.lane_client import PendingRequest
from batchpool.client.reply import Reply
from batchpool.core.errors import Cancelled, Moved
from batchpool.frontend.http.body_budget import BodyBudget, BodyReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import note
from batchpool.frontend.http.response import HttpResponse
from batchpool.frontend.service.endpoint import Endpoint, RequestHead
from batchpool.wire.request import Body, InferRequest

_Result = TypeVar("_Result")


class BackgroundThread:
    """A thread for the few requests whose parsing or encoding takes long, one after another.

    One only: it competes with the loop for the interpreter, which a single step of reading
    50 MB of JSON keeps for up to 0.4 s; with two the loop would wait for both.

    beat: called before and after each work, since the loop may not have its turn for several.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "batchpool-aside")
        self.beat: Callable[[], None] = lambda: None

    def begin(self, work: Callable[..., _Result], *arguments: object) -> asyncio.Future[_Result]:
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._thread, self._do, work, arguments)

    def _do(self, work: Callable[..., _Result], arguments: tuple[object, ...]) -> _Result:
        self.beat()
        try:
            return work(*arguments)
        finally:
            self.beat()

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


async def infer(
    endpoint: Endpoint,
    arrival: RequestHead,
    upload: RequestBody,
    aside: BackgroundThread,
    bodies: BodyBudget,
) -> HttpResponse | None:
    """The answer to one request; None when the caller has gone. Raises what refuses it."""
    endpoint = endpoint.admit(arrival)
    reply = Reply()
    held = BodyReservation(bodies)
    try:
        body = await upload.read(endpoint.max_body_bytes, held)
        if body is None:
            return None
        endpoint, request, pending = await _submit(endpoint, arrival, body, reply, aside)
        del body
    finally:
        held.release()
    if not await _finished(endpoint, pending, reply, upload):
        return None
    if endpoint.encodes_long(arrival, request, pending.n):
        # Copies: the slots are free at once, and no thread reads what is another's by then.
        outputs = endpoint.fetch(request, pending)
        return await aside.begin(endpoint.encode, arrival, request, outputs)
    return endpoint.fetch_and_encode(arrival, request, pending)


async def _submit(
    endpoint: Endpoint, arrival: RequestHead, body: Body, reply: Reply, aside: BackgroundThread
) -> tuple[Endpoint, InferRequest, PendingRequest]:
    """Parse and submit at this door, or at the one that its model has by then."""
    while True:
        if endpoint.parses_long(arrival, len(body)):
            request = await aside.begin(endpoint.parse, arrival, body)
        else:
            request = endpoint.parse(arrival, body)
        note(rows=request.rows.n)
        try:
            return endpoint, request, endpoint.submit(arrival, request, reply)
        except Moved:
            endpoint = endpoint.successor()


async def _finished(
    endpoint: Endpoint, pending: PendingRequest, reply: Reply, upload: RequestBody
) -> bool:
    """Wait for the rows; False when the caller goes first. Raises why they are not finished."""
    watch = asyncio.create_task(_leave_when_lost(endpoint, pending, reply, upload))
    try:
        await reply
    except Cancelled:
        return False
    except BaseException:
        endpoint.forget(pending, reply)
        raise
    finally:
        watch.cancel()
    return True


async def _leave_when_lost(
    endpoint: Endpoint, pending: PendingRequest, reply: Reply, upload: RequestBody
) -> None:
    await upload.until_lost()
    endpoint.leave(pending, reply)
