"""The access log: one line for a request, whichever HTTP road it took.

    127.0.0.1 POST /v2/models/mlp/infer 200 duration_ms=3.125 request_id=7f... code=ok rows=8
    bytes_in=64 bytes_out=211 client=nightly road=fast

peer, method, path (without the query, which may hold secrets), status; duration_ms: from when
the headers were complete until the answer was written; client: the X-Client-Id; bytes_in: of the
body as announced, or as it came; bytes_out: of the answer's body; road: fast or asgi, none for
what was no HTTP. A caller that left before its answer has the status 499.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from batchpool.core.errors import Cancelled
from batchpool.core.printable import cut
from batchpool.core.sampling import Sample
from batchpool.pool.logs import ACCESS
from batchpool.wire.request import Headers

GONE = Cancelled.status, Cancelled.code
_LOG = logging.getLogger(ACCESS)
LEAST_ERROR = 400  # status
_MOST_CHARACTERS = 256


class AccessLog:
    """One front end's. is_on: whether any request may get a line."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.learn(server)

    def learn(self, server: Mapping[str, Any]) -> None:
        """Go by these keys of [server]: access_log, access_log_sample."""
        which = server["access_log"]
        self.is_on: bool = which != "off"
        self._sample = Sample(server["access_log_sample"] if which == "all" else 0)

    def wants(self, status: int, name: bytes) -> bool:
        """Whether a request gets a line. name: its id, b"" if it has none. Ask once for each."""
        return self.is_on and (status >= LEAST_ERROR or self._sample.has(name))

    def tell(
        self,
        *,
        road: str,
        peer: str,
        method: str,
        path: bytes,
        headers: Headers,
        begun_ns: int,
        status: int,
        code: str,
        name: bytes,
        rows: int,
        bytes_in: int,
        bytes_out: int,
    ) -> None:
        """Write the line. begun_ns: CLOCK_MONOTONIC."""
        client = headers.get(b"x-client-id")
        said = {
            "peer": peer,
            "method": method,
            "path": cut(path.partition(b"?")[0].decode("latin-1"), _MOST_CHARACTERS),
            "status": status,
            "duration_ms": round((time.monotonic_ns() - begun_ns) / 1e6, 3),
            "request_id": name.decode("latin-1"),
            "code": code,
            "rows": rows or None,
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "client": cut(client.decode("latin-1"), _MOST_CHARACTERS) if client else None,
            "road": road,
        }
        _LOG.info("%(peer)s %(method)s %(path)s %(status)d", said)
