"""Totals as if writers had counted them, and what the supervisor would say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.metrics.totals import Totals

Count = tuple[str, tuple[str, ...], int]  # (metric, its case, words up by)


def block(writer: str, *counts: Count, times: Mapping[str, Sequence[float]] | None = None) -> Any:
    """The words of one block. times: {histogram: values in its unit}."""
    where = BLOCKS[writer]
    words = [0] * where.used
    for name, case, count in counts:
        words[where.word(name, *case)] += count
    for name, values in (times or {}).items():
        metric = metric_of(name)
        at = where.at[metric.name]
        for value in values:
            word = round(value * metric.per_unit)
            bucket = next((i for i, b in enumerate(metric.bounds) if word <= b), len(metric.bounds))
            words[at + bucket] += 1
            words[at + len(metric.bounds) + 1] += word
    return words


def totals(*blocks: tuple[str, tuple[str, ...], Any]) -> Totals:
    """(writer, its own labels, words) each."""
    found = Totals()
    for writer, own, words in blocks:
        found.add(writer, own, words)
    return found


STATUS: dict[str, Any] = {
    "state": "ready",
    "url": "http://127.0.0.1:8000",
    "uptime_s": 12.5,
    "models": {"affine": {"ready": True, "workers": "1/1", "max_batch": 8}},
    "processes": [
        {"name": "supervisor", "pid": 1, "state": "running", "restarts": 0, "last_error": ""},
        {
            "name": "batcher", "pid": 2, "state": "running", "restarts": 1,
            "last_error": "was killed by SIGKILL", "progress_age_s": 0.1,
        },
        {"name": "worker 0 of affine", "pid": 3, "state": "serving", "restarts": 2,
         "last_error": "<b>"},
        {"name": "replacement of worker 0 of affine", "pid": 4, "state": "starting", "restarts": 0,
         "last_error": ""},
    ],
    "lanes": [
        {"lane": 3, "model": "affine", "owner": "client 1 (pid 9)", "slots": 10, "claimed": 1},
        {"lane": 1, "model": "affine", "owner": "frontend 1 (pid 8)", "slots": 32, "claimed": 4},
        {"lane": 0, "model": "affine", "owner": "frontend 0 (pid 7)", "slots": 32, "claimed": 2},
        {"lane": 2, "model": "other", "owner": "frontend 0 (pid 7)", "slots": 99, "claimed": 99},
    ],
}  # fmt: skip
