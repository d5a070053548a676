"""One infer request on the ASGI path: read the body, submit its rows, wait, encode the outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

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
from batchpool.frontend.service.prompt_limits import ADVICE as SHORTER
from batchpool.wire.request import Body, InferRequest

Submitted = TypeVar("Submitted")
Parse = Callable[
    [HttpEndpoint, RequestHead, Body, BackgroundThread, MemoryReservation], Awaitable[InferRequest]
]


async def infer(
    endpoint: HttpEndpoint,
    head: RequestHead,
    request_body: RequestBody,
    background: BackgroundThread,
    memory: MemoryBudget,
) -> HttpResponse | None:
    """The response to one request; None when the caller has gone. Raises what refuses it."""
    done = Reply()
    submit = partial(_submit_rows, head, done)
    found = await submitted(endpoint, head, request_body, background, memory, submit)
    del submit
    if found is None:
        return None
    endpoint, request, pending = found
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


def _submit_rows(
    head: RequestHead, done: Reply, endpoint: HttpEndpoint, request: InferRequest
) -> PendingRequest:
    return endpoint.submit(head, request, request.rows, done)


async def parsed(
    endpoint: HttpEndpoint,
    head: RequestHead,
    body: Body,
    background: BackgroundThread,
    decoded: MemoryReservation,
) -> InferRequest:
    """The request of a whole body, in any wire form.

    decoded: counts the bytes that a compressed body may have when it is decoded in the thread.
    """
    if not endpoint.parses_long(head, len(body)):
        return endpoint.parse(head, body)
    most_bytes = endpoint.most_decoded_bytes(head, len(body))
    begin = partial(decoded.grow_to, most_bytes)
    return await background.run(head.flow, endpoint.parse_long, head, body, begin=begin)


async def submitted(
    endpoint: HttpEndpoint,
    head: RequestHead,
    request_body: RequestBody,
    background: BackgroundThread,
    memory: MemoryBudget,
    submit: Callable[[HttpEndpoint, InferRequest], Submitted],
    parse: Parse = parsed,
    *,
    one_prompt: bool = False,
) -> tuple[HttpEndpoint, InferRequest, Submitted] | None:
    """Read one request and submit its rows; None when the caller has gone. Raises what refuses it.

    submit: submits the rows of a request at an endpoint. parse: as `parsed`. one_prompt:
    of a generator, is all that the body brings. Returns the endpoint
    at which it was, the request, and what `submit` returned.
    """
    endpoint.check_head(head, one_prompt=one_prompt)
    memory.check()
    endpoint = endpoint.admit(head)
    most_bytes = endpoint.max_prompt_bytes if one_prompt else endpoint.max_body_bytes
    reservation = MemoryReservation(memory, head.flow)
    decoded = MemoryReservation(memory, head.flow)
    try:
        body = await request_body.read(most_bytes, reservation, SHORTER if one_prompt else ADVICE)
        if body is None:
            return None
        while True:
            request = await parse(endpoint, head, body, background, decoded)
            note(rows=request.rows.n)
            try:
                return endpoint, request, submit(endpoint, request)
            except Moved:  # parse and submit at the endpoint that the model has by then
                endpoint = endpoint.successor()
    finally:
        reservation.release()
        decoded.release()


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
