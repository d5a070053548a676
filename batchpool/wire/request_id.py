"""The request id: the name of a request for its caller, its response and the log.

    X-Request-Id   1 to 128 visible ASCII characters; anything else is replaced by a generated id
    traceparent    W3C trace context: its trace id, where there is no X-Request-Id

The response has it in X-Request-Id. It is not the protocol's `id`, which is in the bodies of a
request and of its 200 response only, and which is not checked.
"""

from __future__ import annotations

import random
import re

from batchpool.wire.request import Headers

REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"

_MOST_BYTES = 128
_VISIBLE = re.compile(rb"[!-~]{1,%d}" % _MOST_BYTES)
# https://www.w3.org/TR/trace-context/#traceparent-header: version ff, and ids of zeros only, are
# invalid; a version above 00 may have more fields behind the flags.
_TRACE = re.compile(
    rb"(?!ff)(?P<version>[0-9a-f]{2})-(?P<trace>(?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}"
    rb"-[0-9a-f]{2}(?P<more>-.*)?"
)


def request_id(headers: Headers) -> bytes:
    """The request id in these headers; b"" where they have none."""
    return chosen_id(headers.get(REQUEST_ID), headers.get(TRACEPARENT))


def chosen_id(given: bytes | None, parent: bytes | None) -> bytes:
    """As `request_id`, of the values of these two headers; None where there is none."""
    if given is not None:
        # Letters and digits, as most ids have no other, are known in a tenth of the time.
        if given.isalnum() and len(given) <= _MOST_BYTES:
            return given
        if _VISIBLE.fullmatch(given):
            return given
    trace = None if parent is None else _TRACE.fullmatch(parent)
    if trace is not None and not (trace["version"] == b"00" and trace["more"]):
        return trace["trace"]
    return b"" if given is None else made_id()


def made_id() -> bytes:
    """A generated request id: 16 hexadecimal digits."""
    return b"%016x" % random.getrandbits(64)
