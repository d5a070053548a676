"""Heads of requests that need not be parsed again on their connection."""

from __future__ import annotations

from typing import NamedTuple

from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.raw import RawAgain
from batchpool.wire.request import InferRequest

_LONG_HEAD_BYTES = 4096  # not worth keeping


class KnownHead(NamedTuple):
    """The last head of a connection as bytes, and as it was read. Equal bytes mean the same again.

    length: of head and body. raw: reads the rows where the body holds nothing else; None where the
    body must be parsed again.
    """

    text: bytes
    length: int
    path: bytes
    endpoint: HttpEndpoint
    head: RequestHead
    parsed: InferRequest
    raw: RawAgain | None


def known_head(request: FastRequest, received: bytes) -> KnownHead | None:
    """The head of a request that came whole, in one read and alone in it.

    None if the request was not parsed or ends its connection, or if its head is long or not
    followed by exactly the announced body.
    """
    parsed = request.parsed
    if parsed is None or not request.keep_alive:
        return None
    size = int(request.head.headers.get(b"content-length", b"0"))
    text = received[: len(received) - size]
    if len(text) > _LONG_HEAD_BYTES or not text.endswith(b"\r\n\r\n"):
        return None
    endpoint = request.endpoint
    raw = endpoint.raw_reader(parsed, size)
    return KnownHead(text, len(received), request.path, endpoint, request.head, parsed, raw)
