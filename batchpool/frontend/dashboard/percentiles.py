"""Percentiles of a histogram as the page shows them."""

from __future__ import annotations

from batchpool.core.metrics.totals import Histogram

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def percentiles_ms(times: Histogram) -> dict[str, float | None]:
    """p50, p90 and p99 in milliseconds; None without samples."""
    found = {word: times.quantile(share) for word, share in _SHARES.items()}
    return {word: None if value is None else value * 1e3 for word, value in found.items()}
