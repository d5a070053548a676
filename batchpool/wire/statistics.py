"""The JSON objects of the statistics routes, from the pool's counters.

    field                           counted
    inference_count                 rows whose batch ran
    execution_count                 batches that came back with outputs
    last_inference                  when the last of these came back, ms of Unix time; 0: never
    success                         HTTP requests answered 200, head to answer
    fail                            HTTP requests answered otherwise, or whose caller left
    queue                           rows, submission (or end of preprocess) to dispatch
    compute_input, _infer, _output  batches: inputs gathered, the model's call, outputs stored
    cache_hit, cache_miss           0: there is no response cache
    batch_stats                     empty: times are not counted apart by the size of a batch

Batches and times are those of `infer`; what a model's other stages take in processes of their own
stands in the metrics, and where the workers run them, it is part of compute_infer.
Requests of local clients are not counted as requests, only their rows are. Each `count` is of its
own unit, so that ns / count is a mean of it. All values only grow while the pool lives; those of
compute lose the part of a worker that went for good an hour after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from batchpool.core.metrics.table import metric_of
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.stages import Stage

_NS_PER_MS = 10**6
_SUCCESS = "http_request_seconds"
_TIMES = {
    "queue": "queue_seconds",
    "compute_input": "worker_gather_seconds",
    "compute_infer": "worker_compute_seconds",
    "compute_output": "worker_scatter_seconds",
}


def statistics(names: Iterable[str], version: str, totals: Totals) -> dict[str, Any]:
    """The statistics of these models. version: of each of them. totals: of all models."""
    of_models, nothing = totals.by_model(), Totals()
    return {
        "model_stats": [
            model_statistics(name, version, of_models.get(name, nothing)) for name in names
        ]
    }


def model_statistics(name: str, version: str, totals: Totals) -> dict[str, Any]:
    """The statistics of one model; times in ns. totals: may have other models too."""
    infer = {"model": name, "stage": Stage.INFER.label}
    (last_ns,) = totals.words("last_inference_timestamp_seconds", **infer)
    return {
        "name": name,
        "version": version,
        "last_inference": last_ns // _NS_PER_MS,
        "inference_count": _count(totals, "rows_ended_total", model=name, reason="ok"),
        "execution_count": _count(totals, "batches_finished_total", **infer, outcome="ok"),
        "inference_stats": {
            "success": _duration(totals.words(_SUCCESS, model=name)),
            "fail": _failures(name, totals),
            **{field: _duration(totals.words(metric, **infer)) for field, metric in _TIMES.items()},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def _failures(name: str, totals: Totals) -> dict[str, int]:
    answers = totals.values("http_requests_total", "reason", model=name)
    (time_ns,) = totals.words("http_failed_seconds_total", model=name)
    return {"count": sum(n for reason, n in answers.items() if reason != "ok"), "ns": time_ns}


def _count(totals: Totals, name: str, **labels: str) -> int:
    assert metric_of(name).per_unit == 1
    return sum(totals.words(name, **labels))


def _duration(words: list[int]) -> dict[str, int]:
    """Count and sum of a histogram of times, whose words count its buckets and then add it up."""
    return {"count": sum(words[:-1]), "ns": words[-1]}
