"""One snapshot of the pool, as the JSON object that the page shows.

    {time_s, version,
     pool:      {state, url, uptime_s, why}      why: the status is missing or old, "" if not
     models:    [{name, ready, workers, max_batch, queued, slots, requests_per_s, rows_per_s,
                  latency, stages, generation, batches, reasons, codes}]
     workers:   [{name, model, device, pid, state, restarts, last_error, batches_per_s,
                  rows_per_s, gpu}]
     processes: [{name, pid, state, restarts, progress_age_s, last_error}]
     batches:   [{time_s, model, rows, reason, worker, outcome, ms}]     newest first
     errors:    [{time_s, model, worker, code, text, times}]             newest first}

Rates, percentiles, sizes and reasons are of the last seconds (`dashboard/rates.py`). Unknown values
are null: rates before there are two readings, percentiles without samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import error_for
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics.table import metric_of
from batchpool.core.metrics.totals import Histogram, Totals
from batchpool.core.tensors.stages import Stage, stages_of
from batchpool.frontend.dashboard.generation_view import generation_view
from batchpool.frontend.dashboard.percentiles import percentiles_ms
from batchpool.frontend.dashboard.rates import Span
from batchpool.shm.stats.flight_recorder import LOST, RecordedBatch
from batchpool.shm.stats.recent_errors import RecentError

Json = dict[str, Any]
# The parts of a row's way through one stage, and the metric of each.
_TIMES = {"queue": "queue_seconds", "batch": "batch_seconds"}
_OUTCOMES = {int(outcome): outcome.name.lower() for outcome in BatchOutcome} | {LOST: "lost"}
_REASONS = {int(reason): reason.name.lower() for reason in DispatchReason}
_WORK = tuple(f"worker_{part}_seconds" for part in ("gather", "compute", "scatter"))
_NOUNS = {stage.label: stage.worker_noun for stage in Stage}
_MOST_ERRORS = 10
_MOST_LANES = 6  # shown by themselves; more local clients are added up


@dataclass(frozen=True)
class SnapshotInputs:
    """The inputs of a snapshot.

    state: of the pool. status: as the supervisor gave it, None if it never did. why: the reason
    that the status is missing or old, else "". now_s: Unix time at now_ns, CLOCK_MONOTONIC.
    batches, recent_errors: the last ones, the newest last. worker_names, model_names: by the
    numbers in those. gpus: {index: metrics}.
    """

    span: Span
    facts: Sequence[ModelFacts]
    state: str
    status: Mapping[str, Any] | None
    why: str
    now_s: float
    now_ns: int
    batches: Sequence[RecordedBatch]
    worker_names: Sequence[str]
    model_names: Sequence[str]
    recent_errors: Sequence[RecentError]
    gpus: Mapping[str, Mapping[str, float]]
    version: str


def compose(inputs: SnapshotInputs) -> Json:
    """The snapshot of these inputs."""
    status = inputs.status or {}
    lanes = sorted(status.get("lanes", ()), key=_front_ends_first)
    models = status.get("models", {})
    spans, nothing = inputs.span.by_model(), Span(Totals(), Totals(), inputs.span.seconds)
    processes = [p for p in status.get("processes", []) if not _is_worker(p["name"])]
    return {
        "time_s": inputs.now_s,
        "version": inputs.version,
        "pool": {
            "state": inputs.state,
            "url": status.get("url"),
            "uptime_s": status.get("uptime_s"),
            "why": inputs.why,
        },
        "models": [
            model_view(
                facts,
                models.get(facts.spec.name, {}),
                [lane for lane in lanes if lane["model"] == facts.spec.name],
                spans.get(facts.spec.name, nothing),
            )
            for facts in inputs.facts
        ],
        "workers": worker_views(inputs),
        "processes": [{"progress_age_s": None, **process} for process in processes],
        "batches": [batch_view(inputs, batch) for batch in reversed(inputs.batches)],
        "errors": error_views(inputs),
    }


def _is_worker(name: str) -> bool:
    """Also True for a reload's processes, such as "replacement of worker 0 of minilm"."""
    return any(f"{stage.worker_noun} " in name for stage in Stage)


def _is_local(lane: Mapping[str, Any]) -> bool:
    """True if a local client owns the lane, False for a front end."""
    return bool(lane["owner"].startswith("client"))


def _front_ends_first(lane: Mapping[str, Any]) -> tuple[bool, str]:
    return _is_local(lane), lane["owner"]


# -- models -----------------------------------------------------------------------------


def model_view(
    facts: ModelFacts, status: Mapping[str, Any], lanes: Sequence[Mapping[str, Any]], span: Span
) -> Json:
    """One model. status: the supervisor's status of it, {} when it is not known."""
    name = facts.spec.name
    infer = {"model": name, "stage": Stage.INFER.label}
    rows = span.histogram("batch_rows", **infer)
    return {
        "name": name,
        "ready": status.get("ready"),
        "workers": status.get("workers"),
        "max_batch": status.get("max_batch", facts.max_batch),
        "queued": int(span.now.value("queue_rows", model=name)),
        "slots": {
            "watermark": facts.watermark,
            "claimed": sum(lane["claimed"] for lane in lanes),
            "total": sum(lane["slots"] for lane in lanes),
            "lanes": lane_views(lanes),
        },
        "requests_per_s": span.rate_per_s("http_requests_total", model=name, reason="ok"),
        "rows_per_s": span.rate_per_s("rows_ended_total", model=name, reason="ok"),
        "latency": {
            "request": percentiles_ms(span.histogram("http_request_seconds", model=name)),
            **stage_times_ms(span, infer),
        },
        "stages": stage_views(facts, status, span),
        "generation": generation_view(facts, span),
        "batches": {
            "per_s": span.rate_per_s("batches_total", **infer),
            "mean_rows": rows.total / rows.count if rows.count else None,
            "rows": sizes(rows, facts.max_batch),
        },
        "reasons": span.rises("batches_total", "reason", **infer),
        "codes": codes(name, span),
    }


def stage_views(facts: ModelFacts, status: Mapping[str, Any], span: Span) -> list[Json]:
    """{name, workers, busy, queued, mean_rows, latency} of each stage; [] for a model of one stage.

    busy: the share of the workers' time that their batches took; the larger one is the bottleneck.
    """
    found = []
    stages = stages_of(facts.spec)
    for stage in stages if len(stages) > 1 else ():
        labels = {"model": facts.spec.name, "stage": stage.label}
        rows = span.histogram("batch_rows", **labels)
        workers = status.get("stages", {}).get(stage.label, {}).get("workers")
        found.append(
            {
                "name": stage.label,
                "workers": workers,
                "busy": _busy(span, labels, int((workers or "0").partition("/")[0])),
                "queued": int(span.now.value("queue_rows", **labels)),
                "mean_rows": rows.total / rows.count if rows.count else None,
                "latency": stage_times_ms(span, labels),
            }
        )
    return found


def _busy(span: Span, labels: Mapping[str, str], workers: int) -> float | None:
    if not (span.seconds and workers):
        return None
    took_s = sum(span.histogram(metric, **labels).total for metric in _WORK)
    return min(1.0, took_s / span.seconds / workers)


def stage_times_ms(span: Span, labels: Mapping[str, str]) -> dict[str, dict[str, float | None]]:
    """Percentiles of the waits and the batches of one stage."""
    return {
        part: percentiles_ms(span.histogram(metric, **labels)) for part, metric in _TIMES.items()
    }


def lane_views(lanes: Iterable[Mapping[str, Any]]) -> list[Json]:
    """{owner, claimed, slots} of each lane; many local clients are added up in one object."""
    shown = [{key: lane[key] for key in ("owner", "claimed", "slots")} for lane in lanes]
    clients = [lane for lane in shown if _is_local(lane)]
    if len(shown) <= _MOST_LANES or len(clients) < 2:
        return shown
    together = {
        "owner": f"{len(clients)} local clients",
        "claimed": sum(lane["claimed"] for lane in clients),
        "slots": sum(lane["slots"] for lane in clients),
    }
    return [*(lane for lane in shown if lane not in clients), together]


def sizes(rows: Histogram, most: int) -> list[list[int]]:
    """[most rows, batches] of each bucket that a batch of at most `most` rows can fall in."""
    found = []
    for bound, count in zip(rows.bounds, rows.counts, strict=False):
        found.append([int(min(bound, most)), count])
        if bound >= most:
            break
    return found


def codes(model: str, span: Span) -> list[Json]:
    """{code, total, per_s} of failures by code.

    The codes are those of responses other than 200, of refused claims of local clients ("local:
    full"), and of rows that ran again ("rerun: worker_lost").
    """
    found = []
    for metric, prefix, labels in (
        ("http_requests_total", "", {}),
        ("claims_refused_total", "local: ", {"client": "local"}),
        ("rows_retried_total", "rerun: ", {}),
    ):
        rises = span.rises(metric, "reason", model=model, **labels)
        for code, total in span.now.values(metric, "reason", model=model, **labels).items():
            if code != "ok":
                per_s = rises.get(code, 0) / span.seconds if span.seconds else None
                found.append({"code": prefix + code, "total": total, "per_s": per_s})
    return found


# -- workers and batches ----------------------------------------------------------------


def worker_views(inputs: SnapshotInputs) -> list[Json]:
    """The supervisor's status of each worker, with the worker's own counts."""
    devices = {
        f"{_NOUNS.get(stage, stage)} {worker} of {model}": (model, worker, device, stage)
        for (model, worker, device, stage, *_), _ in inputs.span.now.series(
            metric_of("worker_batches_total")
        )
    }
    found = []
    for process in (inputs.status or {}).get("processes", []):
        name = process["name"]
        if not _is_worker(name):
            continue
        model, worker, device, stage = devices.get(name, ("", "", "", ""))
        own = {"model": model, "worker": worker, "device": device, "stage": stage}
        found.append(
            {
                **process,
                "model": model,
                "device": device or None,
                "batches_per_s": inputs.span.rate_per_s("worker_batches_total", **own),
                "rows_per_s": inputs.span.rate_per_s("worker_rows_total", **own),
                "gpu": gpu_view(device, inputs.gpus),
            }
        )
    return found


def gpu_view(device: str, gpus: Mapping[str, Mapping[str, float]]) -> Json | None:
    """Memory and use of a device by all processes; None if unknown. device: as "gpu 0"."""
    values = gpus.get(device.removeprefix("gpu "))
    if values is None:
        return None
    return {
        "used_bytes": values.get("gpu_memory_used_bytes"),
        "total_bytes": values.get("gpu_memory_total_bytes"),
        "utilization": values.get("gpu_utilization_ratio"),
    }


def batch_view(inputs: SnapshotInputs, batch: RecordedBatch) -> Json:
    """One batch of the flight recorder. ms: from its dispatch to its completion."""
    known = batch.dispatched_ns > 0
    return {
        "time_s": inputs.now_s - (inputs.now_ns - batch.completed_ns) / 1e9,
        "model": _named(inputs.model_names, batch.model),
        "rows": batch.rows,
        "reason": _REASONS.get(batch.reason, "unknown"),
        "worker": _named(inputs.worker_names, batch.worker_slot),
        "outcome": _OUTCOMES.get(batch.outcome, "unknown"),
        "ms": (batch.completed_ns - batch.dispatched_ns) / 1e6 if known else None,
    }


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else "unknown"


def error_views(inputs: SnapshotInputs) -> list[Json]:
    """The last errors. Equal ones are one object with their number and the time of the last."""
    found: dict[tuple[str, str, str], Json] = {}
    for recent_error in reversed(inputs.recent_errors):
        error = error_for(recent_error.status, recent_error.text)
        model = _named(inputs.model_names, recent_error.model)
        key = model, error.code, error.message
        if key in found:
            found[key]["times"] += 1
        else:
            found[key] = {
                "time_s": inputs.now_s - (inputs.now_ns - recent_error.at_ns) / 1e9,
                "model": model,
                "worker": _named(inputs.worker_names, recent_error.worker_slot),
                "code": error.code,
                "text": error.message,
                "times": 1,
            }
    return list(found.values())[:_MOST_ERRORS]
