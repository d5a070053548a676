"""A checked infer request as the message that makes a task of it."""

from __future__ import annotations

import os
import time

import msgspec

from batchpool.control.task_messages import SubmitTask
from batchpool.core.errors import TooLarge
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.left_out import LeftOut
from batchpool.wire.request import InferRequest
from batchpool.wire.task_form import pack_answer, pack_input

_TOKEN_BYTES = 16


def task_message(
    endpoint: HttpEndpoint,
    head: RequestHead,
    request: InferRequest,
    key: str,
    left_out: LeftOut | None = None,
) -> SubmitTask:
    """The message for a request. key: of its Idempotency-Key, "" for none. left_out: gets the long
    tensors.

    Raises TooLarge for more rows than the model takes at once, as without the preference.
    """
    rows = request.rows
    most_rows = endpoint.lane_client.allocator.bound
    if rows.n > most_rows:
        raise TooLarge(
            f"{rows.n} rows at once; model {endpoint.name!r} takes at most"
            f" {most_rows} here: send them in smaller requests"
        )
    timeout_ns = request.timeout_ns
    return SubmitTask(
        os.urandom(_TOKEN_BYTES),
        time.time_ns() // 1_000_000,
        endpoint.name,
        rows.n,
        msgspec.Raw(pack_input(rows, left_out)),
        msgspec.Raw(pack_answer(request)),
        caller_name(head),
        head.caller.key,
        key,
        0 if timeout_ns is None else max(1, timeout_ns // 1_000_000),
        origin_name(head),
    )


def caller_name(head: RequestHead) -> str:
    """The caller of a task, in whose name it is run: its key, else its X-Client-Id, else its
    origin."""
    named = head.headers.get(b"x-client-id")
    if named and not head.caller.key:
        return f"client {named.decode('latin-1')[:255]}"
    return origin_name(head)


def origin_name(head: RequestHead) -> str:
    """The origin of a task, whose turns and share of the store it takes: the caller's key, else its
    address or network, since a caller can make up any number of names."""
    caller = head.caller
    return f"key {caller.key}" if caller.key else caller.origin
