"""The headers of a request whose answer may come later: Prefer (RFC 7240) and Idempotency-Key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchpool.core.errors import InvalidRequest
from batchpool.wire.request import Headers, brief

PREFER = b"prefer"
IDEMPOTENCY_KEY = b"idempotency-key"
MOST_WAIT_S = 60
_KEY = re.compile(rb"[!-~]{1,255}")


class AsyncPreference(NamedTuple):
    """`respond-async` was preferred. wait_s: the caller waits so long for the answer itself."""

    wait_s: int


def async_preference(fields: Iterable[tuple[bytes, bytes]]) -> AsyncPreference | None:
    """The preference in all Prefer fields of a request; None where it prefers no such answer.

    The first value of a preference counts, and one that cannot be understood is ignored, as RFC
    7240 has it. fields: all header lines, with lower-case names.
    """
    found: dict[bytes, bytes] = {}
    for name, value in fields:
        if name == PREFER:
            for part in value.split(b","):
                token, _, text = part.partition(b";")[0].partition(b"=")
                found.setdefault(token.strip().lower(), text.strip().strip(b'"'))
    if b"respond-async" not in found:
        return None
    wait = found.get(b"wait", b"")
    return AsyncPreference(min(MOST_WAIT_S, int(wait[:9])) if wait.isdigit() else 0)


def idempotency_key(headers: Headers) -> str:
    """The Idempotency-Key of a request, "" without one.

    Raises InvalidRequest for one that is empty, too long, or holds more than visible ASCII.
    """
    key = headers.get(IDEMPOTENCY_KEY)
    if key is None:
        return ""
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest(
            f"header Idempotency-Key is {brief(key.decode('latin-1'))}; 1 to 255 visible ASCII"
            " characters were expected"
        )
    return key.decode()
