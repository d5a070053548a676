"""Heads of requests that need not be parsed again on their connection."""

from __future__ import annotations

from typing import NamedTuple

from batchpool.frontend.fast.request import FastRequest
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.raw import FixedSizeReader
from batchpool.wire.request import InferRequest

_LONG_HEAD_BYTES = 4096  # not worth keeping


class KnownHead(NamedTuple):
    """The last head of a connection as bytes, and as it was read. Equal bytes mean the same again.

    text: exactly the bytes that the parser took for the head, from rest until it was complete.
    length: of head and body, which has as many bytes as the parser gave. raw: reads the rows where
    the body holds nothing else; None where the body must be parsed again.
    """

    text: bytes
    length: int
    path: bytes
    endpoint: HttpEndpoint
    head: RequestHead
    parsed: InferRequest
    raw: FixedSizeReader | None


def known_head(request: FastRequest, head: bytes | None, size: int) -> KnownHead | None:
    """The head of a request whose message is complete.

    head: the bytes behind which the parser, at rest before them, had the whole head and nothing
    of the body; None if the head did not come in one piece. size: of the body.

    None if the request was not parsed or ends its connection, or if its head is long.
    """
    parsed = request.parsed
    if parsed is None or head is None or len(head) > _LONG_HEAD_BYTES or not request.keep_alive:
        return None
    endpoint = request.endpoint
    raw = endpoint.fixed_size_reader(parsed, size)
    return KnownHead(head, len(head) + size, request.path, endpoint, request.head, parsed, raw)
