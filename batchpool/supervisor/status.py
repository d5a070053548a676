"""The state of the pool: a structured status for `batchpool status`, and one line for systemd.

All figures are read from shared memory and the supervisor's own tables; no process is asked.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from batchpool.core.layout.states import PoolState
from batchpool.core.metrics.totals import Histogram, Totals
from batchpool.core.scheduler.limits import Limits
from batchpool.core.tensors.stages import Stage
from batchpool.shm.heartbeat import Heartbeats
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.generation_status import generation_counts
from batchpool.supervisor.percentiles import percentiles_ms
from batchpool.supervisor.plan.cpu_stage_counts import stage_place
from batchpool.supervisor.plan.plan import WorkerPlan
from batchpool.supervisor.resources.resources import PoolResources

_SILENT_S = 1.0  # without a heartbeat, of which there are at least four in a second


def pool_status(
    resources: PoolResources, process_fleet: ProcessFleet, started_ns: int
) -> dict[str, Any]:
    """The status as plain values for JSON. started_ns: the pool's start, CLOCK_MONOTONIC."""
    now_ns = time.monotonic_ns()
    plan = resources.plan
    state_page = resources.state_page
    totals = resources.counters.totals()
    models = {}
    for index, model in plan.entries.items():
        lanes_of = [lane for lane in resources.lanes if lane.model == index and not lane.closing]
        models[model.spec.name] = {
            "ready": state_page.accepts(index),
            "workers": _warm(process_fleet, index, model.workers),
            "threads": model.workers[0].threads.number_in(os.environ),
            "fill": _share(
                sum(lane.claimed() for lane in lanes_of),
                sum(lane.layout.slots for lane in lanes_of),
            ),
            **counts_of(totals, model.spec.name, model.config.max_batch),
            "options": model.config.options,
        }
        for stage in model.cpu_stages:
            place = stage_place(len(model.workers_of(stage)))
            models[model.spec.name][stage.label] = place
        if model.spec.generates:
            models[model.spec.name]["generation"] = generation_counts(totals, model.spec.name)
        if len(model.stages) > 1:
            models[model.spec.name]["stages"] = {
                stage.label: {
                    "workers": _warm(process_fleet, index, model.workers_of(stage)),
                    **stage_counts(
                        totals, model.spec.name, stage, Limits.of(model.config, stage).max_batch
                    ),
                }
                for stage in model.stages
            }
    lanes = [
        {
            "lane": lane.number,
            "model": process_fleet.entries[lane.model].spec.name,
            "owner": lane.owner,
            "slots": lane.layout.slots,
            "claimed": lane.claimed(),
            "bytes": lane.layout.total_bytes,
        }
        for lane in resources.lanes
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
    """The counts of one model. max_batch: as configured.

    Times are in milliseconds and as exact as the buckets of their histograms; None without a count.
    """
    infer = {"model": model, "stage": Stage.INFER.label}
    rows = totals.histogram("batch_rows", **infer)
    extents = totals.value("batch_extents_total", **infer)
    ended = totals.values("rows_ended_total", "reason", model=model)
    outcomes = totals.values("batches_finished_total", "outcome", **infer)
    finished = sum(n for outcome, n in outcomes.items() if outcome != "lost")
    answers = totals.values("http_requests_total", "code", model=model)
    learnt = totals.value("batch_rows_limit", **infer)
    counts: dict[str, Any] = {
        "queued": int(totals.value("queue_rows", model=model)),
        "max_batch": int(learnt) or max_batch,
        "admitted": int(totals.value("rows_admitted_total", model=model)),
        "completed": sum(n for reason, n in ended.items() if reason != "client_gone"),
        "batches": rows.count,
        "rows": int(rows.total),
        "expired": ended.get("deadline_exceeded", 0),
        "refused": ended.get("overloaded", 0),
        "invalid": ended.get("invalid_input", 0),
        "cancelled": ended.get("cancelled", 0),
        "lost": ended.get("worker_lost", 0),
        "retried": sum(totals.values("rows_retried_total", "reason", model=model).values()),
        "failed": outcomes.get("failed", 0),
        "no_memory": outcomes.get("no_memory", 0),
        "reasons": {
            name.upper(): n for name, n in totals.values("batches_total", "reason", **infer).items()
        },
        "claims_refused": sum(
            totals.values("claims_refused_total", "reason", model=model).values()
        ),
        "http": answers,
        "mean_batch": _mean(rows),
        "mean_extents": round(extents / finished, 2) if finished else None,
    }
    http = totals.histogram("http_request_seconds", model=model)
    return counts | _stage_times(totals, infer) | percentiles_ms("http_request", http)


def stage_counts(totals: Totals, model: str, stage: Stage, max_batch: int) -> dict[str, Any]:
    """The counts of one stage of a model with several; as `counts_of`."""
    labels = {"model": model, "stage": stage.label}
    rows = totals.histogram("batch_rows", **labels)
    return {
        "queued": int(totals.value("queue_rows", **labels)),
        "max_batch": int(totals.value("batch_rows_limit", **labels)) or max_batch,
        "batches": rows.count,
        "rows": int(rows.total),
        "mean_batch": _mean(rows),
        **_stage_times(totals, labels),
    }


def _stage_times(totals: Totals, labels: dict[str, str]) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in ("queue", "batch"):
        found |= percentiles_ms(name, totals.histogram(f"{name}_seconds", **labels))
    return found


def _warm(process_fleet: ProcessFleet, entry: int, workers: Sequence[WorkerPlan]) -> str:
    """The warm workers of one stage and all of them: "1/2"."""
    stages = {worker.stage for worker in workers}
    slots = [s for s in process_fleet.workers.worker_slots if s.entry == entry and s.serves]
    return f"{sum(slot.plan.stage in stages for slot in slots)}/{len(workers)}"


def _mean(histogram: Histogram) -> float | None:
    return round(histogram.total / histogram.count, 2) if histogram.count else None


def _share(part: int, whole: int) -> float:
    return round(part / whole, 4) if whole else 0.0


def _processes(
    process_fleet: ProcessFleet, heartbeats: Heartbeats, now_ns: int
) -> list[dict[str, Any]]:
    """One row for each process. progress_age_s: time since the last heartbeat; None before one."""
    rows = [
        {
            "name": "supervisor",
            "pid": os.getpid(),
            "state": "running",
            "restarts": 0,
            "last_error": "",
        }
    ]
    watched = [_row(process_fleet.batcher.slot, process_fleet.batcher.child)]
    for slot, child in zip(
        process_fleet.frontends.slots, process_fleet.frontends.children, strict=True
    ):
        watched.append(_row(slot, child))
    if process_fleet.tasks.is_wanted:
        watched.append(_row(process_fleet.tasks.slot, process_fleet.tasks.child))
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


def status_line(
    resources: PoolResources, process_fleet: ProcessFleet, reload: str = "", last_reload: str = ""
) -> str:
    """The state of the pool in one line for `systemctl status`: loading, serving, draining or
    stopping.

    It names what is missing, as a model without a worker. reload: the state of a reload, "" for
    none. last_reload: the outcome of the last one.
    """
    if process_fleet.ending:
        return f"stopping: {_count(len(process_fleet.everybody()), 'worker')} to end"
    if process_fleet.stopping or process_fleet.closed:
        rows = sum(lane.rows() for lane in resources.lanes)
        text = f"draining: {_count(rows, 'row')} under way"
        return text if process_fleet.stopping else text + _reload_text(reload, last_reload)
    models = {entry: model.spec.name for entry, model in resources.plan.entries.items()}
    worker_slots = [
        worker_slot
        for worker_slot in process_fleet.workers.worker_slots
        if worker_slot.entry in models
    ]
    cold = [worker_slot for worker_slot in worker_slots if not worker_slot.ready]
    workers = len(worker_slots)
    warm = f"{workers - len(cold)} of {workers} workers" if cold else _count(workers, "worker")
    if not process_fleet.was_ready:
        if not cold:
            if not process_fleet.tasks.serves():
                return "starting the tasks"
            return "starting the front ends"
        return f"loading {models[cold[0].entry]} on {_device_text(cold[0])}; {warm} warm"
    text = f"serving {_count(len(models), 'model')}, {warm}"
    lacking = [name for i, name in models.items() if not resources.state_page.serves(i)]
    if lacking:
        text += f"; no worker for {', '.join(lacking)}"
    if process_fleet.batcher.child is None or resources.state_page.stalled.get():
        text += "; the batcher stands still"
    return text + _reload_text(reload, last_reload)


def _reload_text(reload: str, last: str) -> str:
    if reload:
        return f"; reloading: {reload}"
    return f"; last reload {last}" if last.startswith("failed") else ""


def _device_text(worker_slot: WorkerSlot) -> str:
    gpu = worker_slot.plan.cuda_visible
    return worker_slot.plan.device if gpu is None else f"GPU {gpu}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
