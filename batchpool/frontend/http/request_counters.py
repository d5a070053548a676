"""HTTP metrics of one model in one front end; core/metrics/table.py describes them.

A request is counted once, just before its response is written. A caller that has its response
finds it counted. When a front end is killed, the only responses counted but not received are those
whose connections broke. Counting takes less than a microsecond.
"""

from __future__ import annotations

import time
from bisect import bisect_left

from batchpool.core.metrics.table import BLOCKS, FRONTEND_PATHS, HTTP_OUTCOMES, metric_of

_BLOCK = BLOCKS["frontend"]
_BOUNDS_NS = metric_of("http_request_seconds").bounds
_SECONDS = _BLOCK.word("http_request_seconds")
_SECONDS_SUM = _SECONDS + len(_BOUNDS_NS) + 1
_FAILED_NS = _BLOCK.word("http_failed_seconds_total")
_OK = [_BLOCK.word("http_requests_total", road, *HTTP_OUTCOMES[0]) for road in FRONTEND_PATHS]
_ERRORS = [
    {
        reason: _BLOCK.word("http_requests_total", road, code, reason)
        for code, reason in HTTP_OUTCOMES
    }
    for road in FRONTEND_PATHS
]
# Values of the label `road`: the path that a request took through the front end.
FAST, ASGI, NOT_HTTP = range(len(FRONTEND_PATHS))


class RequestCounters:
    """One block of counter words. at: the index of its first word in `cells`."""

    __slots__ = ("_cells",)

    def __init__(self, cells: memoryview, at: int) -> None:
        self._cells = cells[at : at + _BLOCK.size]

    def count_ok(self, road: int, begun_ns: int) -> None:
        """Count a request that is answered 200 now. begun_ns: CLOCK_MONOTONIC of its head."""
        cells = self._cells
        took_ns = time.monotonic_ns() - begun_ns
        cells[_OK[road]] += 1
        cells[_SECONDS + bisect_left(_BOUNDS_NS, took_ns)] += 1
        cells[_SECONDS_SUM] += took_ns

    def count_error(self, road: int, code: str, begun_ns: int = 0) -> None:
        """Count a request that is answered with the error of this code.

        A caller that went away first has the code of `core.errors.Cancelled`. begun_ns:
        CLOCK_MONOTONIC of its head; 0 where there was none.
        """
        self._cells[_ERRORS[road][code]] += 1
        if begun_ns:
            self._cells[_FAILED_NS] += time.monotonic_ns() - begun_ns
