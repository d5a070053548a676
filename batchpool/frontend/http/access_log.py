"""The access log: one line for a request, whichever HTTP road it took.

    127.0.0.1 POST /v2/models/mlp/infer 200 duration_ms=3.125 request_id=7f... code=ok model=mlp
    rows=8 bytes_in=64 bytes_out=211 client=nightly road=fast

peer, method, path (without the query, which may hold secrets), status; duration_ms: from when
the headers were complete until the answer was written; error: what the caller was told; model: if
it is one of ours; client: the X-Client-Id; bytes_in: of the body, as many as came; bytes_out: of
the answer's body; road: fast or asgi, none for what was no HTTP. A caller that left before its
answer has the status 499. A request that is refused before its body is there has its line when
what comes of the body has come.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchpool.core.errors import Cancelled
from batchpool.core.text.escape import cut
from batchpool.core.text.log_limits import TraceSample
from batchpool.log.setup import ACCESS
from batchpool.wire.request import Headers

_LOG = logging.getLogger(ACCESS)
LEAST_ERROR = 400  # status
_MOST_CHARACTERS = 256


class RequestOutcome(NamedTuple):
    """What became of a request. error: what its caller was told. bytes_out: of the body."""

    status: int
    code: str
    error: str = ""
    bytes_out: int = 0


GONE = RequestOutcome(Cancelled.status, Cancelled.code)


class AccessLog:
    """One front end's. is_on: whether any request may get a line."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.learn(server)

    def learn(self, server: Mapping[str, Any]) -> None:
        """Go by these keys of [server]: access_log, access_log_sample."""
        which = server["access_log"]
        self.is_on: bool = which != "off"
        self._sample = TraceSample(server["access_log_sample"] if which == "all" else 0)

    def wants(self, status: int, name: bytes) -> bool:
        """Whether a request gets a line. name: its id, b"" if it has none. Ask once for each."""
        return self.is_on and (status >= LEAST_ERROR or self._sample.has(name))

    def tell(
        self,
        outcome: RequestOutcome,
        *,
        road: str,
        peer: str,
        method: str,
        path: bytes,
        headers: Headers,
        begun_ns: int,
        ended_ns: int,
        name: bytes,
        model: str = "",
        rows: int = 0,
        bytes_in: int = 0,
    ) -> None:
        """Write the line. begun_ns, ended_ns: CLOCK_MONOTONIC."""
        client = headers.get(b"x-client-id")
        said = {
            "peer": peer,
            "method": method,
            "path": cut(path.partition(b"?")[0].decode("latin-1"), _MOST_CHARACTERS),
            "status": outcome.status,
            "duration_ms": round((ended_ns - begun_ns) / 1e6, 3),
            "request_id": name.decode("latin-1"),
            "code": outcome.code,
            "error": cut(outcome.error, _MOST_CHARACTERS) or None,
            "model": model or None,
            "rows": rows or None,
            "bytes_in": bytes_in,
            "bytes_out": outcome.bytes_out,
            "client": cut(client.decode("latin-1"), _MOST_CHARACTERS) if client else None,
            "road": road,
        }
        _LOG.info("%(peer)s %(method)s %(path)s %(status)d", said)
