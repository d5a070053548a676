"""The access log: one line for each request, whichever path it took through the front end.

    127.0.0.1 POST /v2/models/mlp/infer 200 duration_ms=3.125 request_id=7f... code=ok model=mlp
    rows=8 bytes_in=64 bytes_out=211 client=nightly road=fast

Fields:

    peer, method, status
    path         without the query, which may hold secrets
    duration_ms  from complete headers until the response was written
    error        the message that the caller got
    model        absent where the path names none of the server's
    tokens       made by a generator, also for a caller that left
    client       the X-Client-Id
    key          the name of the key that the caller showed, where the server asks for one
    bytes_in     of the request's body, as many as came
    bytes_out    of the response's body
    road         fast or asgi; none for bytes that were no HTTP request

Good answers to probes (health, readiness, /metrics) get no line.

A caller that left before its response has the status 499. A request that is refused before its
body has come gets its line when the rest of the body has come.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from batchpool.core.errors import Cancelled
from batchpool.core.text.escape import cut
from batchpool.core.text.log_limits import TraceSample
from batchpool.log.own_loggers import ACCESS
from batchpool.wire.request import Headers

_LOG = logging.getLogger(ACCESS)
LEAST_ERROR = 400  # status
_MAX_CHARACTERS = 256


class LoggedRequest(NamedTuple):
    """A request as its line in the access log shows it.

    headers: with lower-case names. begun_ns: CLOCK_MONOTONIC. model: "" if the path names none of
    the server's. rows: 0 if they are not known. bytes_in: of the body, as many as came. key: the
    name of its caller's. tokens: that a generator has made, 0 for other models.
    """

    road: str
    peer: str
    method: str
    path: bytes
    headers: Headers
    begun_ns: int
    request_id: bytes
    model: str = ""
    rows: int = 0
    bytes_in: int = 0
    key: str = ""
    tokens: int = 0


class RequestOutcome(NamedTuple):
    """The result of a request. error: the message its caller got. bytes_out: of the body."""

    status: int
    code: str
    error: str = ""
    bytes_out: int = 0


_PROBE = re.compile(r"/metrics|/v2/health/(live|ready)|/v2/models/.+/ready")
GONE = RequestOutcome(Cancelled.status, Cancelled.code)


_TASK = re.compile(r"(/v2/tasks/t_[0-9a-v]{8})[0-9a-v]+")  # who has the rest has the result


def _shown_path(path: bytes) -> str:
    """A path without its query, and without most of a task's id."""
    text = path.partition(b"?")[0].decode("latin-1")
    return _TASK.sub(r"\1...", text) if "/v2/tasks/t_" in text else text


class AccessLog:
    """The access log of one front end. is_on: False if no request gets a line."""

    def __init__(self, server: Mapping[str, Any]) -> None:
        self.learn(server)

    def learn(self, server: Mapping[str, Any]) -> None:
        """Take the keys access_log and access_log_sample of the configuration's [server]."""
        which = server["access_log"]
        self.is_on: bool = which != "off"
        self._sample = TraceSample(server["access_log_sample"] if which == "all" else 0)

    def wants(self, status: int, request_id: bytes, path: str = "") -> bool:
        """True if a request gets a line; to be called once for each request.

        request_id: b"" if the request has none. path: without prefix and query; good answers to
        probes, which come every few seconds and say nothing, get no line.
        """
        if not self.is_on:
            return False
        if status >= LEAST_ERROR:
            return True
        return _PROBE.fullmatch(path) is None and self._sample.has(request_id)

    def write(self, request: LoggedRequest, outcome: RequestOutcome, ended_ns: int) -> None:
        """Write the line of a request that `wants` chose. ended_ns: CLOCK_MONOTONIC."""
        client = request.headers.get(b"x-client-id")
        fields = {
            "peer": request.peer,
            "method": request.method,
            "path": cut(_shown_path(request.path), _MAX_CHARACTERS),
            "status": outcome.status,
            "duration_ms": round((ended_ns - request.begun_ns) / 1e6, 3),
            "request_id": request.request_id.decode("latin-1"),
            "code": outcome.code,
            "error": cut(outcome.error, _MAX_CHARACTERS) or None,
            "model": request.model or None,
            "rows": request.rows or None,
            "tokens": request.tokens or None,
            "bytes_in": request.bytes_in,
            "bytes_out": outcome.bytes_out,
            "client": cut(client.decode("latin-1"), _MAX_CHARACTERS) if client else None,
            "key": request.key or None,
            "road": request.road,
        }
        _LOG.info("%(peer)s %(method)s %(path)s %(status)d", fields)
