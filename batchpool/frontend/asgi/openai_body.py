"""The body of a request under /v1: read whole, and parsed in the thread where it is long."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from batchpool.core.errors import TooLarge
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.encoding import MOST_EXPANSION, decode_body
from batchpool.wire.openai import MOST_BODY_BYTES
from batchpool.wire.request import Body

_Request = TypeVar("_Request")

_LONG_BODY_BYTES = 256 * 1024  # a smaller one takes at most a few milliseconds of the loop


async def read_openai_request(
    view: PoolView,
    head: RequestHead,
    request_body: RequestBody,
    reservation: MemoryReservation,
    read: Callable[[Body], _Request],
    advice: str,
    most_bytes: int = MOST_BODY_BYTES,
) -> _Request | None:
    """The request that `read` makes of the body; None when the caller has gone.

    reservation: counts the bytes, until the caller of this releases it. advice: what helps whose
    body is too large. most_bytes: of a body, beside what every route takes. Raises TooLarge for
    that, and what `read` raises.
    """
    headers, most_bytes = head.headers, min(view.max_body_bytes, MOST_BODY_BYTES, most_bytes)
    announced = headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced) > most_bytes:
        raise TooLarge(
            f"the body has {int(announced)} bytes; at most {most_bytes} are taken here: {advice}"
        )
    body = await request_body.read(most_bytes, reservation, advice)
    if body is None:
        return None
    run = view.background.run
    if headers.get(b"content-encoding"):
        decoded_bytes = min(len(body) * MOST_EXPANSION, most_bytes)
        return await run(
            head.flow,
            lambda: read(decode_body(headers, body, most_bytes, advice)),
            begin=partial(reservation.grow_to, max(decoded_bytes, reservation.size)),
        )
    if len(body) <= _LONG_BODY_BYTES:
        return read(body)
    return await run(head.flow, read, body)
