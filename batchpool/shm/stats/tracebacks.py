"""Tracebacks of a model's exceptions, which workers keep for the dead letters of tasks.

A lane has room for one line of an error only. So each worker writes the ends of its last different
tracebacks into cells of its own, and who gets an error looks there by the batch where it happened.
Errors of one text share a cell, the latest of them, so that a series of them drives out no other.

Each cell has its serial number at both ends, so that one which is being written is told from a
whole one; a worker may write anything into its cells, which are text for people and nothing else.

    serial  pid  batch  bytes of the error  bytes of the traceback  error and traceback  serial
"""

from __future__ import annotations

import struct
import traceback
from typing import Protocol

import numpy as np

from batchpool.core.metrics.segments import TRACEBACK_BYTES, TRACEBACKS_KEPT, tracebacks_layout
from batchpool.shm.segment import map_checked

_ERROR_BYTES = 256
_TEXT_BYTES = TRACEBACK_BYTES - 6 * 8
_CELL = struct.Struct(f"<5Q{_TEXT_BYTES}sQ")
_FRAMES_MOST = 24  # the innermost
_CHAIN_MOST = 4  # exceptions that were raised while others were handled
_MESSAGE_CHARS = 1000
_CUT = b"...\n"
_TOP = "Traceback (most recent call last):\n"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"
assert _CELL.size == TRACEBACK_BYTES


class NoteTraceback(Protocol):
    """Keeps the traceback of an exception. error: its text for callers. batch: the token of the
    batch that failed with it."""

    def __call__(self, exc: BaseException, error: str, batch: int) -> None: ...


class Tracebacks:
    """The cells of all workers in a shared segment."""

    def __init__(self, fd: int, *, writable: bool = True) -> None:
        layout = tracebacks_layout()
        memory = memoryview(map_checked(fd, layout, writable=writable).map)
        column = layout.columns["tracebacks"]
        rows, kept, size = column.shape
        self._cells = memory[column.offset : column.offset + rows * kept * size]
        self._words = np.frombuffer(self._cells, np.uint64).reshape(rows * kept, size // 8)

    def note(self, row: int, pid: int, exc: BaseException, error: str, batch: int) -> None:
        """Keep the traceback of an exception. row: the worker's row in the counters. pid: its own.
        error: the text that callers get. batch: the token of the batch that failed with it."""
        first = row * TRACEBACKS_KEPT
        own = self._words[first : first + TRACEBACKS_KEPT]
        head = _head(error)
        place = int(own[:, 0].argmin())  # the oldest
        for at in range(TRACEBACKS_KEPT):
            if self._error(first + at) == head and int(own[at, 1]) == pid:
                place = at
        serial = int(own[:, 0].max()) + 1
        text = head + _end_of(exc, _TEXT_BYTES - len(head))
        _CELL.pack_into(
            self._cells, (first + place) * TRACEBACK_BYTES,
            serial, pid, batch, len(head), len(text) - len(head), text, serial,
        )  # fmt: skip

    def find(self, pid: int, batch: int, error: str) -> str:
        """The traceback of this batch of a worker; else of its latest error with this text; "" if
        there is none any more."""
        head, found = _head(error), (-1, "")
        for place in np.flatnonzero(self._words[:, 1] == pid).tolist():
            at = place * TRACEBACK_BYTES
            cell = bytes(self._cells[at : at + TRACEBACK_BYTES])
            serial, _, of_batch, n_error, n_text, text, again = _CELL.unpack(cell)
            if serial != again or cell != bytes(self._cells[at : at + TRACEBACK_BYTES]):
                continue
            shown: str = text[n_error : n_error + n_text].decode(errors="replace")
            if of_batch == batch:
                return shown
            if _is_same(text[:n_error], head):
                found = max(found, (serial, shown))
        return found[1]

    def _error(self, place: int) -> bytes:
        at = place * TRACEBACK_BYTES + 5 * 8
        n = min(int(self._words[place, 3]), _ERROR_BYTES)
        return bytes(self._cells[at : at + n])


def _head(error: str) -> bytes:
    return error.encode(errors="replace")[:_ERROR_BYTES]


def _is_same(one: bytes, other: bytes) -> bool:
    """True for the same error, of which either may be cut."""
    return bool(one and other) and (one.startswith(other) or other.startswith(one))


def _end_of(exc: BaseException, most: int) -> bytes:
    """The end of an exception's traceback, which names the error, in so many bytes."""
    parts: list[str] = []
    link: BaseException | None = exc
    joint = ""
    while link is not None and len(parts) < _CHAIN_MOST:
        frames = "".join(traceback.format_tb(link.__traceback__, limit=-_FRAMES_MOST))
        parts.append(f"{_TOP}{frames}{_last_line(link)}\n{joint}")
        if link.__cause__ is not None:
            link, joint = link.__cause__, _CAUSE
        else:
            link, joint = None if link.__suppress_context__ else link.__context__, _CONTEXT
    raw = "".join(reversed(parts)).encode(errors="replace")
    if len(raw) <= most:
        return raw
    return _CUT + raw[len(_CUT) - most :]


def _last_line(exc: BaseException) -> str:
    """The type and the message of an exception; a message may be long, or raise."""
    try:
        text = str(exc)[:_MESSAGE_CHARS]
    except BaseException:
        text = "(its message cannot be shown)"
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
