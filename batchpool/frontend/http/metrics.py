"""What a front end counts of one model's requests, in words of its own; see core/metrics/table.py.

A request is counted once, just before its answer is written: who has an answer finds it counted,
and of a front end that is killed at most those answers are counted and not received whose
connections broke. It costs less than a microsecond.
"""

from __future__ import annotations

import time
from bisect import bisect_left

from batchpool.core.metrics.table import ANSWERS, BLOCKS, ROADS, metric_of

_BLOCK = BLOCKS["frontend"]
_TIMES = metric_of("http_request_seconds").bounds
_TOOK = _BLOCK.word("http_request_seconds")
_TOOK_SUM = _TOOK + len(_TIMES) + 1
_OK = [_BLOCK.word("http_requests_total", road, *ANSWERS[0]) for road in ROADS]
_REFUSED = [
    {reason: _BLOCK.word("http_requests_total", road, code, reason) for code, reason in ANSWERS}
    for road in ROADS
]
FAST, ASGI, NO_ROAD = range(len(ROADS))
GONE = "cancelled"


class EndpointMetrics:
    """One block of a front end, beginning at `at` of cells."""

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview, at: int) -> None:
        self._cells = cells[at : at + _BLOCK.size]

    def answered(self, road: int, at_ns: int) -> None:
        """A request that came in then (CLOCK_MONOTONIC) is answered 200, now."""
        cells = self._cells
        took_ns = time.monotonic_ns() - at_ns
        cells[_OK[road]] += 1
        cells[_TOOK + bisect_left(_TIMES, took_ns)] += 1
        cells[_TOOK_SUM] += took_ns

    def refused(self, road: int, reason: str) -> None:
        """A request is answered with the error of this code; GONE: nobody is there for it."""
        self._cells[_REFUSED[road][reason]] += 1
