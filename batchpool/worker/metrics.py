"""What a worker counts of its batches, in the words of its seat; see core/metrics/table.py."""

from __future__ import annotations

from bisect import bisect_left

from batchpool.core.layout.states import BatchOutcome
from batchpool.core.metrics.table import BLOCKS, metric_of

_BLOCK = BLOCKS["worker"]
_TIMES = metric_of("worker_compute_seconds").bounds
_SUM = len(_TIMES) + 1
_BATCHES = _BLOCK.word("worker_batches_total", BatchOutcome.OK.name.lower()) - int(BatchOutcome.OK)
_ROWS_OK = _BLOCK.word("worker_rows_total", "ok")
_ROWS_FAILED = _BLOCK.word("worker_rows_total", "failed")
GATHER = _BLOCK.word("worker_gather_seconds")
COMPUTE = _BLOCK.word("worker_compute_seconds")
SCATTER = _BLOCK.word("worker_scatter_seconds")


class WorkerMetrics:
    """One worker's block of words, beginning at `at` of cells; by itself, in no pool's counters."""

    def __init__(self, cells: memoryview | None = None, at: int = 0) -> None:
        if cells is None:
            cells = memoryview(bytearray(8 * _BLOCK.size)).cast("Q")
        self.cells = cells[at : at + _BLOCK.size]

    def took(self, phase: int, time_ns: int) -> None:
        """One batch was so long in a phase: GATHER, COMPUTE or SCATTER."""
        self.cells[phase + bisect_left(_TIMES, time_ns)] += 1
        self.cells[phase + _SUM] += time_ns

    def ran(self, outcome: BatchOutcome, rows: int, failed: int) -> None:
        """A batch is over. failed: how many of its rows got an error."""
        self.cells[_BATCHES + outcome] += 1
        self.cells[_ROWS_OK] += rows - failed
        self.cells[_ROWS_FAILED] += failed
