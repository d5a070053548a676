"""Answer: status, headers and body of one HTTP response, on both HTTP roads.

Every answer that is not 200 is JSON {"error": text, "code": word}, whoever refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from batchpool.core.errors import InternalError, ModelError, PoolError, WorkerLost
from batchpool.frontend.http.request_context import current
from batchpool.wire.request import HeaderList

_LOG = logging.getLogger("batchpool.frontend")
_OK = 200
_FAILURES = frozenset({ModelError.code, WorkerLost.code})


class HttpResponse(NamedTuple):
    """One response. Header names are lower-case bytes; Content-Length is among them.

    code, error: the error's, as metrics count it, and its text; "ok" and "" of what is none.
    """

    status: int
    headers: HeaderList
    body: bytes
    code: str = "ok"
    error: str = ""


def found(headers: HeaderList, body: bytes) -> HttpResponse:
    """A 200 answer."""
    return HttpResponse(_OK, headers, body)


def json_answer(content: Mapping[str, Any]) -> HttpResponse:
    """A 200 answer that is a JSON object."""
    return _json(_OK, content, {})


def refusal(
    error: BaseException,
    extra: Mapping[str, Any] | None = None,
    *,
    name: bytes = b"",
    model: str = "",
) -> HttpResponse:
    """The answer that says why not. extra: more keys for its JSON object.

    The log hears of rows that failed, and where, so that it can be found in a worker's log too.
    Anything but a `PoolError` is a fault of ours: the log gets the traceback, the caller no
    details. name, model: of the request; on ASGI's road they are known.
    """
    if not isinstance(error, PoolError) or error.code in _FAILURES:
        _tell(error, name, model)
    if not isinstance(error, PoolError):
        error = InternalError("internal error; the server's log has the details")
    answer = _json(error.status, {**error.body(), **(extra or {})}, error.headers())
    return answer._replace(code=error.code, error=error.message)


def _tell(error: BaseException, name: bytes, model: str) -> None:
    visit = current()
    if visit is not None and not name:
        name, model = visit.name, visit.model
    said: dict[str, Any] = {"request_id": name.decode("latin-1") or None, "model": model or None}
    if isinstance(error, PoolError):
        said |= {"code": error.code, "error": error.message, **error.facts}
        _LOG.warning("a request failed: %(error)s", said)
    else:
        _LOG.error("unexpected exception while answering a request", said, exc_info=error)


def _json(status: int, content: Mapping[str, Any], headers: Mapping[str, str]) -> HttpResponse:
    body = msgspec.json.encode(content)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return HttpResponse(status, fields, body)
