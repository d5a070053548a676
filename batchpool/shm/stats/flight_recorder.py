"""The flight recorder: the last batches of the pool, written by the batcher as each completes.

A ring of rows in shared memory, which outlives the batcher; its successor writes on. A row
begins and ends with its serial number, so that one which its writer left, or is just now
writing, is told from a whole one: its ends differ. A reader takes the ring twice and believes
what was the same both times, since the writer may have been through a row in between.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from batchpool.core.metrics.segments import BATCH_WORDS, BATCHES_KEPT, flight_recorder_layout
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.segment import map_checked
from batchpool.shm.stats.recent_errors import RecentErrors

LOST = 4  # an outcome beside those of core/layout/states.py: the worker died with the batch
_ROW = struct.Struct(f"<{BATCH_WORDS}Q")


@dataclass(frozen=True)
class BatchEntry:
    """One batch, as its row tells it, without the serial number at its end.

    model: the entry of its model. seat: the row of its worker in the counters. process, token: name
    one batch of one worker process. size: rows with padding. reason: why it left (Reason).
    attempt: failed batches that its rows were in before. outcome: Outcome, or LOST. queued_ns:
    how long its oldest row had waited. Times are CLOCK_MONOTONIC in ns, 0 where nobody knows:
    launched and finished of a worker that was lost, dispatched by a batcher that died.
    """

    serial: int
    model: int
    worker_slot: int
    process: int
    token: int
    rows: int
    size: int
    reason: int
    attempt: int
    outcome: int
    extents: int
    queued_ns: int
    dispatched_ns: int
    launched_ns: int
    finished_ns: int
    completed_ns: int


class FlightRecorder:
    """The recorder of a pool, or one of this process's own. incidents: the errors beside it."""

    def __init__(self, fd: int = -1, *, writable: bool = True) -> None:
        layout = flight_recorder_layout()
        self._at = layout.columns["batches"].offset
        self._memory: memoryview
        if fd < 0:
            self._memory = memoryview(bytearray(layout.total_bytes))
        else:
            self._memory = memoryview(map_checked(fd, layout, writable=writable).map)
        words = np.frombuffer(self._memory, np.uint64, BATCHES_KEPT * BATCH_WORDS, self._at)
        self._rows = words.reshape(BATCHES_KEPT, BATCH_WORDS)
        self.recent_errors = RecentErrors(self._memory, layout.columns["incidents"].offset)
        # Also past a row that was never finished: the ring shows a hole there, for one round.
        self._serial = int(self._rows[:, 0].max())

    def write(
        self,
        model: int,
        worker_slot: int,
        process: int,
        token: int,
        rows: int,
        size: int,
        reason: int,
        attempt: int,
        outcome: int,
        extents: int,
        queued_ns: int,
        dispatched_ns: int,
        launched_ns: int,
        finished_ns: int,
        completed_ns: int,
    ) -> None:
        """A batch is complete. Only the batcher calls this; see BatchEntry."""
        self._serial = serial = self._serial + 1
        _ROW.pack_into(
            self._memory, self._at + serial % BATCHES_KEPT * _ROW.size,
            serial, model, worker_slot, process, token, rows, size, reason, attempt, outcome, extents,
            queued_ns, dispatched_ns, launched_ns, finished_ns, completed_ns, serial,
        )  # fmt: skip

    def last(self, n: int = BATCHES_KEPT) -> list[BatchEntry]:
        """The last n batches (fewer if there are no more), the newest last."""
        whole = self._whole()
        order = whole[:, 0].argsort()[max(0, len(whole) - n) :]
        return [BatchEntry(*row[:-1]) for row in whole[order].tolist()]

    def has(self, process: int, token: int) -> bool:
        """Whether this batch of a worker process stands among those kept."""
        whole = self._whole()
        return bool(((whole[:, 3] == process) & (whole[:, 4] == token)).any())

    def _whole(self) -> Array:
        """The rows [n, BATCH_WORDS] that stand whole, in no order."""
        first = self._rows.copy()
        second = self._rows.copy()
        serials = second[:, 0]
        places = serials % np.uint64(BATCHES_KEPT) == np.arange(BATCHES_KEPT, dtype=np.uint64)
        ends = (serials > 0) & (serials == second[:, -1]) & places
        rows: Array = second[ends & (first == second).all(axis=1)]
        return rows
