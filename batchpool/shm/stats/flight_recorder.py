"""The flight recorder: the last batches of the pool, which the batcher writes as each completes.

It is a ring of rows in shared memory that outlives the batcher; the next batcher continues it. A
row begins and ends with its serial number, so that a row that is incomplete, because it is being
written or because its writer died, is recognised: its ends differ. A reader copies the ring twice
and uses the rows that are equal in both copies, since the writer may have overwritten a row during
one copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics.segments import BATCH_WORDS, BATCHES_KEPT, flight_recorder_layout
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.segment import map_checked
from batchpool.shm.stats.recent_errors import RecentErrors

LOST = 6  # an outcome beside those of core/layout/states.py: the worker died with the batch
_ROW = struct.Struct(f"<{BATCH_WORDS}Q")


@dataclass(frozen=True)
class RecordedBatch:
    """One batch in the flight recorder.

    model: the index of its model. worker_slot: the row of its worker in the counters. process,
    token: identify a batch of one worker process. size: rows with padding. reason: a
    DispatchReason. attempt: the number of failed batches that its rows were in before. outcome: a
    BatchOutcome, or LOST. queued_ns: the wait of its oldest row. The times are CLOCK_MONOTONIC in
    ns, 0 where unknown: launched and finished if the worker was lost, dispatched if an earlier
    batcher did it.
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
    """The flight recorder in a shared segment, or in memory of its own without one.

    recent_errors: the ring of errors in the same segment.
    """

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
        # Continues behind a row that its writer left incomplete: unreadable for one round.
        self._serial = int(self._rows[:, 0].max())

    def write(
        self,
        *,
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
        """Record a completed batch; see RecordedBatch. Only the batcher calls this."""
        self._serial = serial = self._serial + 1
        _ROW.pack_into(
            self._memory, self._at + serial % BATCHES_KEPT * _ROW.size,
            serial, model, worker_slot, process, token, rows, size, reason, attempt, outcome,
            extents, queued_ns, dispatched_ns, launched_ns, finished_ns, completed_ns, serial,
        )  # fmt: skip

    def last(self, n: int = BATCHES_KEPT) -> list[RecordedBatch]:
        """The last n batches (fewer if there are no more), the newest last."""
        whole = self._whole()
        order = whole[:, 0].argsort()[max(0, len(whole) - n) :]
        return [RecordedBatch(*row[:-1]) for row in whole[order].tolist()]

    def has(self, process: int, token: int) -> bool:
        """True if this batch of a worker process is among those kept."""
        whole = self._whole()
        return bool(((whole[:, 3] == process) & (whole[:, 4] == token)).any())

    def _whole(self) -> Array:
        """The complete rows [n, BATCH_WORDS], in no order."""
        first = self._rows.copy()
        second = self._rows.copy()
        serials = second[:, 0]
        places = serials % np.uint64(BATCHES_KEPT) == np.arange(BATCHES_KEPT, dtype=np.uint64)
        ends = (serials > 0) & (serials == second[:, -1]) & places
        rows: Array = second[ends & (first == second).all(axis=1)]
        return rows


def batch_fields(
    batch: RecordedBatch, models: Sequence[str], workers: Sequence[str], now_ns: int
) -> dict[str, Any]:
    """A recorded batch as plain values by name, for people and for JSON.

    models, workers: names by model index and by worker slot. now_ns: CLOCK_MONOTONIC. age_s: the
    time since it was completed. Times in ms: queued: the wait of its oldest row; sent: from
    dispatch until the worker launched it; ran: in the worker; back: from there until its rows were
    completed. None where a time is unknown, as that of a worker that died.
    """
    outcome = "LOST" if batch.outcome == LOST else _name(BatchOutcome, batch.outcome)
    return {
        "age_s": round((now_ns - batch.completed_ns) / 1e9, 3),
        "model": _at(models, batch.model),
        "worker": _at(workers, batch.worker_slot),
        "process": batch.process,
        "token": batch.token,
        "rows": batch.rows,
        "size": batch.size,
        "reason": _name(DispatchReason, batch.reason),
        "attempt": batch.attempt,
        "outcome": outcome,
        "extents": batch.extents,
        "queued_ms": round(batch.queued_ns / 1e6, 3) if batch.dispatched_ns else None,
        "sent_ms": _between(batch.dispatched_ns, batch.launched_ns),
        "ran_ms": _between(batch.launched_ns, batch.finished_ns),
        "back_ms": _between(batch.finished_ns, batch.completed_ns),
    }


def _between(start_ns: int, end_ns: int) -> float | None:
    return round((end_ns - start_ns) / 1e6, 3) if start_ns and end_ns else None


def _at(names: Sequence[str], index: int) -> str:
    return names[index] if index < len(names) and names[index] else str(index)


def _name(kind: type[BatchOutcome] | type[DispatchReason], value: int) -> str:
    try:
        return kind(value).name
    except ValueError:
        return str(value)
