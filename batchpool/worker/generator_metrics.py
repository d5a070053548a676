"""The counters of a generator's worker, in its row of the shared counters."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import numpy.typing as npt

from batchpool.core.metrics.table import BLOCKS, SEQUENCE_ENDS, TOKEN_KINDS, metric_of

_BLOCK = BLOCKS["worker"]
_BOUNDS = metric_of("worker_step_seconds").bounds
_EDGES = np.array(_BOUNDS, dtype=np.int64)
_SUM = len(_BOUNDS) + 1
_PROMPT, _GENERATED = (_BLOCK.word("worker_tokens_total", kind) for kind in TOKEN_KINDS)
_ENDS = {end: _BLOCK.word("worker_sequences_total", end) for end in SEQUENCE_ENDS}
_RESUMED = _BLOCK.word("worker_sequences_resumed_total")
_RUNNING = _BLOCK.word("worker_sequences_running")
_RESERVED = _BLOCK.word("worker_kv_tokens_reserved")
_STEP = _BLOCK.word("worker_step_seconds")
_FIRST_TOKEN = _BLOCK.word("worker_first_token_seconds")
_TOKEN_GAP = _BLOCK.word("worker_token_gap_seconds")
_ROWS = {kind: _BLOCK.word("worker_rows_total", kind) for kind in ("ok", "failed", "invalid_input")}
_ROW_OF = {"model_error": "failed", "invalid_input": "invalid_input", "returned": ""}


class GeneratorMetrics:
    """One worker's block of counters, beginning at cells[at]; without cells, in its own memory."""

    def __init__(self, cells: memoryview | None = None, at: int = 0) -> None:
        if cells is None:
            cells = memoryview(bytearray(8 * _BLOCK.size)).cast("Q")
        self.cells = cells[at : at + _BLOCK.size]

    def joined(self, prompt_tokens: int, made: int) -> None:
        """A sequence joined, with so many tokens that another worker had made."""
        self.cells[_PROMPT] += prompt_tokens + made
        if made:
            self.cells[_RESUMED] += 1

    def ended(self, reason: str) -> None:
        """A sequence ended, by one of SEQUENCE_ENDS."""
        self.cells[_ENDS[reason]] += 1
        row = _ROW_OF.get(reason, "ok")
        if row:
            self.cells[_ROWS[row]] += 1

    def runs(self, sequences: int, reserved: int) -> None:
        """So many sequences run, with so many tokens set aside for them."""
        self.cells[_RUNNING] = sequences
        self.cells[_RESERVED] = reserved

    def step(
        self,
        took_ns: int,
        tokens: int,
        first_ns: npt.NDArray[np.int64],
        gaps_ns: npt.NDArray[np.int64],
    ) -> None:
        """Count a step that made so many tokens. first_ns: of the sequences whose first token it
        made, since their submission. gaps_ns: of the others, since their last token."""
        self.cells[_STEP + bisect_left(_BOUNDS, took_ns)] += 1
        self.cells[_STEP + _SUM] += took_ns
        self.cells[_GENERATED] += tokens
        self._add(_FIRST_TOKEN, first_ns)
        self._add(_TOKEN_GAP, gaps_ns)

    def _add(self, at: int, times_ns: npt.NDArray[np.int64]) -> None:
        n = len(times_ns)
        if n == 0:
            return
        cells = self.cells
        cells[at + _SUM] += int(times_ns.sum())
        low = bisect_left(_BOUNDS, int(times_ns.min()))
        if low == bisect_left(_BOUNDS, int(times_ns.max())):  # as nearly always: they step together
            cells[at + low] += n
            return
        counts = np.bincount(np.searchsorted(_EDGES, times_ns))
        for bucket in np.flatnonzero(counts).tolist():
            cells[at + bucket] += int(counts[bucket])
