"""The headers of a request whose answer may come later: Prefer (RFC 7240) and Idempotency-Key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from batchpool.core.errors import InvalidRequest
from batchpool.wire.request import brief

PREFER = b"prefer"
IDEMPOTENCY_KEY = b"idempotency-key"
MOST_WAIT_S = 60
_KEY = re.compile(rb"[!-~]{1,255}")
# What stands between separators, where those in quoted strings are none. A string that nobody ends
# goes on to the end of the field, so no text is read twice.
_QUOTED = rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)'
_BETWEEN_COMMAS, _BETWEEN_SEMICOLONS = (
    re.compile(rb"(?:%s|[^%s\"])+" % (_QUOTED, separator), re.DOTALL) for separator in (b",", b";")
)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


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
            for preference in _BETWEEN_COMMAS.findall(value):
                first, *_ = _BETWEEN_SEMICOLONS.findall(preference) or (b"",)
                token, _, text = first.partition(b"=")
                found.setdefault(token.strip().lower(), _unquoted(text.strip()))
    if b"respond-async" not in found:
        return None
    wait = found.get(b"wait", b"")
    return AsyncPreference(min(MOST_WAIT_S, int(wait[:9])) if wait.isdigit() else 0)


def _unquoted(text: bytes) -> bytes:
    """The value of a preference, a token or a quoted string."""
    if len(text) < 2 or not text.startswith(b'"') or not text.endswith(b'"'):
        return text
    return _ESCAPED.sub(rb"\1", text[1:-1])


def idempotency_key(fields: Iterable[tuple[bytes, bytes]]) -> str:
    """The Idempotency-Key of a request, "" without one. fields: as for `async_preference`.

    Raises InvalidRequest for one that is empty, too long, or holds more than visible ASCII, and for
    several, alike or not: by which of them another task is found is not for this server to choose.
    """
    keys = [value for name, value in fields if name == IDEMPOTENCY_KEY]
    if not keys:
        return ""
    key = keys[0]
    if len(keys) > 1:
        shown = " and ".join(brief(each.decode("latin-1")) for each in keys[:2])
        raise InvalidRequest(
            f"header Idempotency-Key came {len(keys)} times, as {shown}; one was expected"
        )
    if _KEY.fullmatch(key) is None:
        raise InvalidRequest(
            f"header Idempotency-Key is {brief(key.decode('latin-1'))}; 1 to 255 visible ASCII"
            " characters were expected"
        )
    return key.decode()
