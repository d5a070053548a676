"""The counters of one worker, in its row of the shared counters; see core/metrics/table.py."""

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
_ROWS_REFUSED = _BLOCK.word("worker_rows_total", "invalid_input")
GATHER = _BLOCK.word("worker_gather_seconds")
COMPUTE = _BLOCK.word("worker_compute_seconds")
SCATTER = _BLOCK.word("worker_scatter_seconds")


class WorkerMetrics:
    """One worker's block of counters, beginning at cells[at]; without cells, in its own memory."""

    def __init__(self, cells: memoryview | None = None, at: int = 0) -> None:
        if cells is None:
            cells = memoryview(bytearray(8 * _BLOCK.size)).cast("Q")
        self.cells = cells[at : at + _BLOCK.size]

    def took(self, phase: int, time_ns: int) -> None:
        """Count the duration of one phase of a batch: GATHER, COMPUTE or SCATTER."""
        self.cells[phase + bisect_left(_TIMES, time_ns)] += 1
        self.cells[phase + _SUM] += time_ns

    def finish(self, outcome: BatchOutcome, rows: int, failed: int, refused: int = 0) -> None:
        """Count a finished batch. failed: the number of its rows that got an error; refused: of
        those whose input the model refused."""
        self.cells[_BATCHES + outcome] += 1
        self.cells[_ROWS_OK] += rows - failed - refused
        self.cells[_ROWS_FAILED] += failed
        if refused:
            self.cells[_ROWS_REFUSED] += refused
