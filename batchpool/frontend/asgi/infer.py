"""One infer request on the ASGI path: read the body, submit its rows, wait, encode the outputs."""

from __future__ import annotations

import asyncio
from functools import partial

from batchpool.client.pending_request import PendingRequest
from batchpool.client.reply import Reply
from batchpool.core.errors import Cancelled, Moved
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import note
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse
from batchpool.frontend.service.body_limits import ADVICE
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.request import Body, InferRequest


async def infer(
    endpoint: HttpEndpoint,
    head: RequestHead,
    request_body: RequestBody,
    background: BackgroundThread,
    memory: MemoryBudget,
) -> HttpResponse | None:
    """The response to one request; None when the caller has gone. Raises what refuses it."""
    endpoint.check_head(head)
    memory.check()
    endpoint = endpoint.admit(head)
    done = Reply()
    reservation = MemoryReservation(memory, head.flow)
    decoded = MemoryReservation(memory, head.flow)
    try:
        body = await request_body.read(endpoint.max_body_bytes, reservation, ADVICE)
        if body is None:
            return None
        endpoint, request, pending = await _submit(endpoint, head, body, done, background, decoded)
        del body
    finally:
        reservation.release()
        decoded.release()
    try:
        if not await finished(endpoint, pending, done, request_body):
            return None
    finally:
        del done  # it may hold the error that is raised, whose traceback refers to it
    if endpoint.encodes_long(head, request, pending.n):
        # Copies: the slots are free at once, and the thread reads nothing of the lane.
        outputs = endpoint.fetch(request, pending)
        return await background.run(head.flow, endpoint.encode, head, request, outputs)
    return endpoint.fetch_and_encode(head, request, pending)


async def _submit(
    endpoint: HttpEndpoint,
    head: RequestHead,
    body: Body,
    done: Reply,
    background: BackgroundThread,
    decoded: MemoryReservation,
) -> tuple[HttpEndpoint, InferRequest, PendingRequest]:
    """Parse and submit at this endpoint, or at the one that a moved model has by then.

    decoded: counts the bytes that a compressed body may have when it is decoded in the thread.
    """
    while True:
        if endpoint.parses_long(head, len(body)):
            most_bytes = endpoint.most_decoded_bytes(head, len(body))
            request = await background.run(
                head.flow,
                endpoint.parse_long,
                head,
                body,
                begin=partial(decoded.grow_to, most_bytes),
            )
        else:
            request = endpoint.parse(head, body)
        note(rows=request.rows.n)
        try:
            return endpoint, request, endpoint.submit(head, request, request.rows, done)
        except Moved:
            endpoint = endpoint.successor()


async def finished(
    endpoint: HttpEndpoint, pending: PendingRequest, done: Reply, request_body: RequestBody
) -> bool:
    """Wait for the rows; False when the caller goes first. Raises why they are not finished."""
    watch = asyncio.create_task(_cancel_when_lost(endpoint, pending, done, request_body))
    try:
        await done
    except Cancelled:
        return False
    except BaseException:
        endpoint.endpoint.discard(pending, done)
        raise
    finally:
        watch.cancel()
        # `done` holds `pending`, or the error that is raised, whose traceback refers to both.
        pending.tag = None
        del done
    return True


async def _cancel_when_lost(
    endpoint: HttpEndpoint, pending: PendingRequest, done: Reply, request_body: RequestBody
) -> None:
    await request_body.until_lost()
    endpoint.endpoint.cancel(pending, done)
