"""Answer: status, headers and body of one HTTP response, on both HTTP roads.

Every answer that is not 200 is JSON {"error": text, "code": word}, whoever refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from batchpool.core.errors import InternalError, PoolError
from batchpool.wire.request import HeaderList

_LOG = logging.getLogger("batchpool.frontend")
_OK = 200


class Answer(NamedTuple):
    """One response. Header names are lower-case bytes; Content-Length is among them."""

    status: int
    headers: HeaderList
    body: bytes


def found(headers: HeaderList, body: bytes) -> Answer:
    """A 200 answer."""
    return Answer(_OK, headers, body)


def json_answer(content: Mapping[str, Any]) -> Answer:
    """A 200 answer that is a JSON object."""
    return _json(_OK, content, {})


def refusal(error: BaseException, extra: Mapping[str, Any] | None = None) -> Answer:
    """The answer that says why not. extra: more keys for its JSON object.

    Anything but a `PoolError` is a fault of ours: the log gets the traceback, the caller no
    details.
    """
    if not isinstance(error, PoolError):
        _LOG.error("unexpected exception while answering a request", exc_info=error)
        error = InternalError("internal error; the server's log has the details")
    return _json(error.status, {**error.body(), **(extra or {})}, error.headers())


def _json(status: int, content: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
    body = msgspec.json.encode(content)
    fields = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    fields += [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return Answer(status, fields, body)
