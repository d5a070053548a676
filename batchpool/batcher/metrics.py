"""Counters of one model, in shared memory, which outlives the batcher; see core/metrics/table.py.

Counting is done per batch, not per row: the values in which rows differ are counted by a few array
operations, or by plain ones where there are few rows. A count is stored before the counted event
is published, so that a client that has its answer finds it counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from enum import IntEnum
from operator import neg

import numpy as np

from batchpool.core.errors import Status
from batchpool.core.few_rows import LISTED_ROWS
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics.table import (
    BATCH_OUTCOMES,
    BLOCKS,
    REASONS,
    RETRIES,
    ROW_OUTCOMES,
    metric_of,
)
from batchpool.core.scheduler.queue import I64
from batchpool.shm.segment import Cells

_BLOCK = BLOCKS["batcher"]
_ROW_BOUNDS = metric_of("batch_rows").bounds
_TIMES = metric_of("queue_seconds").bounds
_TIMES_ARRAY: I64 = np.array(_TIMES, dtype=np.int64)
_BUCKETS = len(_TIMES) + 1
_LONGEST_NS = 86_400 * 10**9  # a wait longer than this is an error of the client's clock
_OK = int(BatchOutcome.OK)
_LOST = BATCH_OUTCOMES.index("lost")

_ADMITTED = _BLOCK.word("rows_admitted_total")
_REASONS = _BLOCK.word("batches_total", REASONS[0]) - 1  # the first DispatchReason is 1
_ROWS = _BLOCK.word("batch_rows")
_ROWS_SUM = _ROWS + len(_ROW_BOUNDS) + 1
_QUEUE = _BLOCK.word("queue_seconds")
_QUEUE_SUM = _QUEUE + _BUCKETS
_FINISHED = _BLOCK.word("batches_finished_total", BATCH_OUTCOMES[0])
_EXTENTS = _BLOCK.word("batch_extents_total")
_BATCH = _BLOCK.word("batch_seconds")
_BATCH_SUM = _BATCH + _BUCKETS
_ENDED = _BLOCK.word("rows_ended_total", ROW_OUTCOMES[0])
_RETRIED = _BLOCK.word("rows_retried_total", RETRIES[0])
_LAST = _BLOCK.word("last_inference_timestamp_seconds")
_QUEUED = _BLOCK.word("queue_rows")
_LIMIT = _BLOCK.word("batch_rows_limit")

assert [reason.name.lower() for reason in DispatchReason] == list(REASONS)
assert list(map(int, DispatchReason)) == list(range(1, len(REASONS) + 1))
assert [BatchOutcome(i + 1).name.lower() for i in range(_LOST)] == list(BATCH_OUTCOMES[:_LOST])


class End(IntEnum):
    """The ways in which rows end, as indices of ROW_OUTCOMES."""

    OK = ROW_OUTCOMES.index("ok")
    MODEL_ERROR = ROW_OUTCOMES.index("model_error")
    WORKER_LOST = ROW_OUTCOMES.index("worker_lost")
    DEADLINE = ROW_OUTCOMES.index("deadline_exceeded")
    CANCELLED = ROW_OUTCOMES.index("cancelled")
    OVERLOADED = ROW_OUTCOMES.index("overloaded")
    CLIENT_GONE = ROW_OUTCOMES.index("client_gone")
    NOT_READY = ROW_OUTCOMES.index("not_ready")
    INVALID_INPUT = ROW_OUTCOMES.index("invalid_input")
    TOO_LARGE = ROW_OUTCOMES.index("too_large")


class Retry(IntEnum):
    """The reasons for running rows again, as indices of RETRIES."""

    MODEL_ERROR = RETRIES.index("model_error")
    WORKER_LOST = RETRIES.index("worker_lost")
    NO_MEMORY = RETRIES.index("no_memory")
    NOT_STARTED = RETRIES.index("not_started")
    INVALID_INPUT = RETRIES.index("invalid_input")
    RETURNED = RETRIES.index("returned")


END_OF: dict[int, End] = {
    status: End[status.name] for status in Status if status.name in End.__members__
}


class BatcherMetrics:
    """One model's block of counters, beginning at cells[at]; without cells, in its own memory.

    epoch_ns: Unix time at CLOCK_MONOTONIC's zero. queued: the number of rows last passed to `show`.
    """

    def __init__(self, cells: memoryview | None = None, at: int = 0, epoch_ns: int = 0) -> None:
        if cells is None:
            cells = memoryview(bytearray(8 * _BLOCK.size)).cast("Q")
        block = cells[at : at + _BLOCK.size]
        self._cells: Cells = block
        self._array: I64 = np.frombuffer(block, dtype=np.int64)
        first = _BLOCK.word("queue_seconds")
        self._waits = self._array[first : first + _BUCKETS]
        self._now = np.zeros((), dtype=np.int64)
        self._epoch_ns = epoch_ns
        self.queued = 0
        self.show(0)

    # -- counting ---------------------------------------------------------------------------

    def admit(self, n: int) -> None:
        """Count n admitted rows."""
        self._cells[_ADMITTED] += n

    def dispatch(self, submits_ns: I64, reason: DispatchReason, now_ns: int) -> int:
        """Count a dispatched batch; return the longest wait of its rows in ns.

        submits_ns: [n], when its rows were submitted.
        """
        cells, n = self._cells, len(submits_ns)
        cells[_REASONS + reason] += 1
        cells[_ROWS + bisect_left(_ROW_BOUNDS, n)] += 1
        cells[_ROWS_SUM] += n
        if n == 1:
            wait_ns = now_ns - submits_ns.item()
            if 0 <= wait_ns <= _LONGEST_NS:
                cells[_QUEUE + bisect_left(_TIMES, wait_ns)] += 1
                cells[_QUEUE_SUM] += wait_ns
                return wait_ns
        if n <= LISTED_ROWS:
            return self._wait_listed(submits_ns.tolist(), now_ns)
        self._now[()] = now_ns
        waits = self._now - submits_ns
        longest_ns, least_ns = waits.item(waits.argmax()), waits.item(waits.argmin())
        if longest_ns > _LONGEST_NS or least_ns < 0:
            waits = waits.clip(0, _LONGEST_NS)
            longest_ns, least_ns = waits.item(waits.argmax()), waits.item(waits.argmin())
        first, last = bisect_left(_TIMES, least_ns), bisect_left(_TIMES, longest_ns)
        if last - first <= 1:  # the waits of one batch mostly fall into two buckets
            above = int(np.count_nonzero(waits > _TIMES[first])) if last > first else 0
            cells[_QUEUE + first] += n - above
            cells[_QUEUE + last] += above
        else:
            counts = np.bincount(_TIMES_ARRAY.searchsorted(waits), minlength=_BUCKETS)
            np.add(self._waits, counts, out=self._waits)
        cells[_QUEUE_SUM] += int(np.add.reduce(waits))
        return longest_ns

    def _wait_listed(self, submits_ns: list[int], now_ns: int) -> int:
        """Count the waits of a few rows; returns the longest."""
        cells, n = self._cells, len(submits_ns)
        longest_ns, least_ns = now_ns - min(submits_ns), now_ns - max(submits_ns)
        if longest_ns > _LONGEST_NS or least_ns < 0:
            submits_ns = [min(max(each, now_ns - _LONGEST_NS), now_ns) for each in submits_ns]
            longest_ns, least_ns = now_ns - min(submits_ns), now_ns - max(submits_ns)
        cells[_QUEUE_SUM] += now_ns * n - sum(submits_ns)
        bucket, last = bisect_left(_TIMES, least_ns), bisect_left(_TIMES, longest_ns)
        if bucket < last:
            submits_ns.sort(reverse=True)  # the shortest waits first
        counted = 0
        while bucket < last:
            # A wait of just the bucket's bound is in the bucket.
            upto = bisect_right(submits_ns, _TIMES[bucket] - now_ns, key=neg)
            cells[_QUEUE + bucket] += upto - counted
            counted, bucket = upto, bucket + 1
        cells[_QUEUE + last] += n - counted
        return longest_ns

    def finish(self, outcome: int, extents: int, took_ns: int, done_ns: int = 0) -> None:
        """Count a finished batch. took_ns: the time since its dispatch; 0 if unknown. done_ns: now,
        CLOCK_MONOTONIC."""
        cells = self._cells
        if outcome == _OK:
            cells[_LAST] = self._epoch_ns + done_ns
        cells[_FINISHED + outcome - 1] += 1
        cells[_EXTENTS] += extents
        if took_ns:
            cells[_BATCH + bisect_left(_TIMES, took_ns)] += 1
            cells[_BATCH_SUM] += took_ns

    def lose(self) -> None:
        """Count a batch that was lost with its worker."""
        self._cells[_FINISHED + _LOST] += 1

    def end(self, end: int, n: int) -> None:
        """Count n rows that ended; end: an `End`."""
        self._cells[_ENDED + end] += n

    def retry(self, retry: int, n: int) -> None:
        """Count n rows that will run again; retry: a `Retry`."""
        self._cells[_RETRIED + retry] += n

    def show(self, queued: int) -> None:
        """Store the number of rows that wait now, suspects included."""
        self.queued = self._cells[_QUEUED] = queued

    def limit(self, rows: int) -> None:
        """Store the largest allowed batch."""
        self._cells[_LIMIT] = rows

    # -- reading ----------------------------------------------------------------------------

    @property
    def admitted(self) -> int:
        return self._cells[_ADMITTED]

    @property
    def completed(self) -> int:
        """Rows that were returned to their clients, with an answer or an error."""
        return sum(self.ended(end) for end in End if end is not End.CLIENT_GONE)

    @property
    def cancelled(self) -> int:
        return self.ended(End.CANCELLED)

    @property
    def rows(self) -> int:
        """Rows in all dispatched batches."""
        return self._cells[_ROWS_SUM]

    @property
    def reasons(self) -> dict[str, int]:
        """Dispatched batches by reason."""
        found = {reason.name: self._cells[_REASONS + reason] for reason in DispatchReason}
        return {name: n for name, n in found.items() if n}

    def ended(self, end: End) -> int:
        return self._cells[_ENDED + end]
