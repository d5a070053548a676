"""The pool's account of itself, for `batchpool status`."""

from __future__ import annotations

import os
import time
from typing import Any

from batchpool.core.layout.states import PoolState
from batchpool.core.metrics.totals import Histogram, Totals
from batchpool.shm.heartbeat import Heartbeats
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.resources.resources import PoolResources

_SILENT_S = 1.0  # without a stamp, which comes at least every quarter of a second


def compose(
    resources: PoolResources, process_fleet: ProcessFleet, started_ns: int
) -> dict[str, Any]:
    """Plain values for JSON, from what stands in shared memory: nobody is asked."""
    now_ns = time.monotonic_ns()
    plan = resources.plan
    state_page = resources.state_page
    totals = resources.counters.totals()
    models = {}
    for index, model in plan.entries.items():
        lanes_of = [e for e in resources.lanes if e.model == index and not e.closing]
        models[model.spec.name] = {
            "ready": state_page.serves(index),
            "workers": f"{int(state_page.serving[index])}/{len(model.workers)}",
            "fill": _share(
                sum(e.claimed() for e in lanes_of), sum(e.layout.slots for e in lanes_of)
            ),
            **counts_of(totals, model.spec.name, model.config.max_batch),
        }
    lanes = [
        {
            "lane": entry.number,
            "model": process_fleet.entries[entry.model].spec.name,
            "owner": entry.owner,
            "slots": entry.layout.slots,
            "claimed": entry.claimed(),
            "bytes": entry.layout.total_bytes,
        }
        for entry in resources.lanes
    ]
    return {
        "state": PoolState(state_page.state.get()).name.lower(),
        "url": plan.url,
        "socket": plan.socket,
        "uptime_s": round((now_ns - started_ns) / 1e9, 1),
        "processes": _processes(process_fleet, resources.heartbeats, now_ns),
        "models": models,
        "lanes": lanes,
    }


def counts_of(totals: Totals, model: str, max_batch: int) -> dict[str, Any]:
    """What has been counted for one model. max_batch: as configured.

    Times in milliseconds, from histograms: as exact as their buckets; None before there is one.
    """
    rows = totals.histogram("batch_rows", model=model)
    extents = totals.value("batch_extents_total", model=model)
    ended = totals.values("rows_ended_total", "reason", model=model)
    outcomes = totals.values("batches_finished_total", "outcome", model=model)
    finished = sum(n for outcome, n in outcomes.items() if outcome != "lost")
    answers = totals.values("http_requests_total", "code", model=model)
    learnt = totals.value("batch_rows_limit", model=model)
    counts: dict[str, Any] = {
        "queued": int(totals.value("queue_rows", model=model)),
        "max_batch": int(learnt) or max_batch,
        "admitted": int(totals.value("rows_admitted_total", model=model)),
        "completed": sum(n for reason, n in ended.items() if reason != "client_gone"),
        "batches": rows.count,
        "rows": int(rows.total),
        "expired": ended.get("deadline_exceeded", 0),
        "refused": ended.get("overloaded", 0),
        "cancelled": ended.get("cancelled", 0),
        "lost": ended.get("worker_lost", 0),
        "retried": sum(totals.values("rows_retried_total", "reason", model=model).values()),
        "failed": outcomes.get("failed", 0),
        "no_memory": outcomes.get("no_memory", 0),
        "reasons": {
            name.upper(): n
            for name, n in totals.values("batches_total", "reason", model=model).items()
        },
        "claims_refused": sum(
            totals.values("claims_refused_total", "reason", model=model).values()
        ),
        "http": answers,
        "mean_batch": _mean(rows),
        "mean_extents": round(extents / finished, 2) if finished else None,
    }
    for name in ("queue", "batch", "http_request"):
        times = totals.histogram(f"{name}_seconds", model=model)
        for percent in (50, 99):
            time_s = times.quantile(percent / 100)
            counts[f"{name}_p{percent}_ms"] = None if time_s is None else round(time_s * 1e3, 3)
    return counts


def _mean(histogram: Histogram) -> float | None:
    return round(histogram.total / histogram.count, 2) if histogram.count else None


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _processes(
    process_fleet: ProcessFleet, heartbeats: Heartbeats, now_ns: int
) -> list[dict[str, Any]]:
    """progress_age_s: since the last stamp of a watched process; None before its first."""
    rows = [
        {
            "name": "supervisor",
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "last_error": "",
        }
    ]
    watched = [_row(process_fleet.batcher_slot, process_fleet.batcher)]
    for slot, child in zip(process_fleet.frontend_slots, process_fleet.frontends, strict=True):
        watched.append(_row(slot, child))
    for number, (row, child) in enumerate(zip(watched, process_fleet.watched(), strict=True)):
        last_ns = None if child is None else heartbeats.last_ns(number, child.started_ns)
        age_s = row["progress_age_s"] = (
            None if last_ns is None else round(max(0, now_ns - last_ns) / 1e9, 2)
        )
        if row["state"] in ("running", "serving") and (age_s or 0) > _SILENT_S:
            row["state"] = "not answering"
    return [
        *rows,
        *watched,
        *(
            _row(worker_slot.process_slot, worker_slot.child, worker_slot.name)
            for worker_slot in process_fleet.workers
        ),
    ]


def _row(slot: ProcessSlot, child: Child | None, name: str = "") -> dict[str, Any]:
    state = "gone" if child is None else "killed" if child.terminating else child.state
    return {
        "name": name or slot.name,
        "pid": None if child is None else child.pid,
        "state": state,
        "restarts": slot.restarts,
        "last_error": slot.last_error,
    }
