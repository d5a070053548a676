"""Dead letters: a record that failed for good, with the error and the place where it stood.

A letter is the record as it came, with headers of its own behind those of the record. One that the
broker finds too large goes as a short letter: what was left out is still in the source's topic, at
the place that the headers tell.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from batchpool.core.errors import PoolError
from batchpool.core.text.escape import cut

_HEADERS = "batchpool."  # of a letter's own headers
_MOST_ERROR_CHARACTERS = 2000
_MOST_KEY_BYTES = 4096  # of a short letter
_SHORT = "value and headers"


class Letter(NamedTuple):
    """A record for the topic of dead letters."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def whole_letter(record: Any, error: PoolError) -> Letter:
    """The record as it came, with the error. One that has neither key nor value, which a broker
    keeps and a producer refuses, gets an empty value."""
    value = b"" if record.key is None and record.value is None else record.value
    return Letter(record.key, value, [*record.headers, *_own_headers(record, error)])


def short_letter(record: Any, error: PoolError) -> Letter:
    """The error and the place alone, with the record's key where that is short."""
    key = record.key
    if key is not None and len(key) > _MOST_KEY_BYTES:
        key = None
    own = _own_headers(record, error)
    return Letter(key, b"", [*own, (f"{_HEADERS}left_out", _SHORT.encode())])


def _own_headers(record: Any, error: PoolError) -> list[tuple[str, bytes | None]]:
    said = {
        "code": error.code,
        "error": cut(error.message, _MOST_ERROR_CHARACTERS),
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
    }
    # The error quotes what a stranger wrote, which may hold halves of surrogate pairs.
    written = {name: text.encode(errors="backslashreplace") for name, text in said.items()}
    return [(_HEADERS + name, text) for name, text in written.items()]
