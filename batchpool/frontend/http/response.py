"""HTTP responses as values: status, headers and body, for both paths through the front end.

Every response other than 2xx and 304 is JSON {"error": text, "code": word}, whichever part of the
front end refuses; under /v1 it is OpenAI's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from batchpool.core.errors import InternalError, ModelError, PoolError, WorkerLost
from batchpool.frontend.http.request_context import current
from batchpool.wire.openai import error_headers, error_object, is_openai_path
from batchpool.wire.request import HeaderList

_LOG = logging.getLogger("batchpool.frontend")
_OK = 200
LONG_BODY_BYTES = 64 * 1024  # beyond it a caller has to have room for the response
_LOGGED_CODES = frozenset({ModelError.code, WorkerLost.code})


class HttpResponse(NamedTuple):
    """One response. Header names are lower-case bytes; Content-Length is among them.

    code: the error's code as metrics count it, "ok" for no error. error: its message or "".
    """

    status: int
    headers: HeaderList
    body: bytes
    code: str = "ok"
    error: str = ""


def ok_response(headers: HeaderList, body: bytes) -> HttpResponse:
    """A 200 response."""
    return HttpResponse(_OK, headers, body)


def json_response(content: Mapping[str, Any] | Sequence[Any]) -> HttpResponse:
    """A 200 response that is a JSON object or list."""
    return _json(_OK, content, {})


def empty_response() -> HttpResponse:
    """A 200 response without a body, of a command that is done."""
    return HttpResponse(_OK, [(b"content-length", b"0")], b"")


def error_response(
    error: BaseException,
    extra: Mapping[str, Any] | None = None,
    *,
    request_id: bytes = b"",
    model: str = "",
    path: str = "",
) -> HttpResponse:
    """The response for an error.

    extra: more keys of its JSON object. request_id, model: of the request, for the log; path: where
    it went, without a proxy's prefix, which decides the shape of the JSON. On the ASGI path all
    three are taken from the task's `RequestContext`.

    A row that failed in a worker is logged with its batch, so that it can be found in the worker's
    log too. Anything but a `PoolError` is a fault of the server: it is logged with its traceback,
    and the caller gets no details.
    """
    if not isinstance(error, PoolError) or error.code in _LOGGED_CODES:
        _log_error(error, request_id, model)
    if not isinstance(error, PoolError):
        error = InternalError("internal error; the server's log has the details")
    _drop_tracebacks(error)
    context = current()
    if is_openai_path(context.path if context is not None and not path else path):
        response = _json(error.status, error_object(error, extra or {}), error_headers(error))
    else:
        response = _json(error.status, {**error.body(), **(extra or {})}, error.headers())
    return response._replace(code=error.code, error=error.message)


def _drop_tracebacks(error: BaseException) -> None:
    """Forget where an error came from, now that it is answered.

    A frame that keeps the error it raises is in a circle of references with its traceback, and so
    is all that the frames below it worked on, as pieces of bodies: until the garbage collector
    looks, which may be late, and then takes long.
    """
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__context__


def _log_error(error: BaseException, request_id: bytes, model: str) -> None:
    context = current()
    if context is not None and not request_id:
        request_id, model = context.request_id, context.model
    fields: dict[str, Any] = {
        "request_id": request_id.decode("latin-1") or None,
        "model": model or None,
    }
    if isinstance(error, PoolError):
        fields |= {"code": error.code, "error": error.message, **error.facts}
        _LOG.warning("a request failed: %(error)s", fields)
    else:
        _LOG.error("unexpected exception while answering a request", fields, exc_info=error)


def _json(
    status: int, content: Mapping[str, Any] | Sequence[Any], headers: Mapping[str, str]
) -> HttpResponse:
    body = msgspec.json.encode(content)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return HttpResponse(status, fields, body)
