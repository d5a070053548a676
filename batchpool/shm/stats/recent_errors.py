"""Incidents: the last errors that rows were handed back with, written by the batcher.

Beside the flight recorder, in the same segment: a ring of rows, each with its serial number at
both ends, so that a row which is being written, or never was finished, is told from a whole one.
A row is written only when a model or a worker failed for good, never for what runs again.

    serial  at_ns  model  seat  status  length  text[456]  serial
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from batchpool.core.metrics.segments import ERROR_BYTES, ERRORS_KEPT

_TEXT_BYTES = ERROR_BYTES - 7 * 8
_ROW = struct.Struct(f"<6Q{_TEXT_BYTES}sQ")
assert _ROW.size == ERROR_BYTES


@dataclass(frozen=True)
class RecentError:
    """One error. model: the entry of its model. seat: the row of its worker in the counters.
    status: core/errors.py's Status. at_ns: CLOCK_MONOTONIC."""

    serial: int
    at_ns: int
    model: int
    worker_slot: int
    status: int
    text: str


class RecentErrors:
    """The ring that begins at `at` of a recorder's memory."""

    def __init__(self, memory: memoryview, at: int) -> None:
        self._memory = memory
        self._at = at
        self._serial = max((row[0] for row in self._rows()), default=0)

    def note(self, model: int, worker_slot: int, status: int, text: str, at_ns: int) -> None:
        """Rows are handed back with this error. Only the batcher calls this."""
        self._serial = serial = self._serial + 1
        raw = text.encode(errors="replace")[:_TEXT_BYTES]
        at = self._at + serial % ERRORS_KEPT * ERROR_BYTES
        _ROW.pack_into(
            self._memory, at, serial, at_ns, model, worker_slot, status, len(raw), raw, serial
        )  # fmt: skip

    def last(self, n: int = ERRORS_KEPT) -> list[RecentError]:
        """The last n (fewer if there are no more), the newest last."""
        first, second = self._rows(), self._rows()
        whole = [row for row, again in zip(first, second, strict=True) if row == again]
        whole = [row for row in whole if row[0] and row[0] == row[-1]]
        return [
            RecentError(*row[:5], row[6][: row[5]].decode(errors="replace"))
            for row in sorted(whole)[-n:]
        ]

    def _rows(self) -> list[tuple[int, int, int, int, int, int, bytes, int]]:
        end = self._at + ERRORS_KEPT * ERROR_BYTES
        return list(_ROW.iter_unpack(bytes(self._memory[self._at : end])))
