"""Percentiles of a histogram as the status shows them."""

from __future__ import annotations

from batchpool.core.metrics.totals import Histogram


def percentiles_ms(name: str, times: Histogram) -> dict[str, float | None]:
    """{name_p50_ms, name_p99_ms}; None without a count."""
    found: dict[str, float | None] = {}
    for percent in (50, 99):
        time_s = times.quantile(percent / 100)
        found[f"{name}_p{percent}_ms"] = None if time_s is None else round(time_s * 1e3, 3)
    return found
