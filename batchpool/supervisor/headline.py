"""The pool's state in one line, for those who read `systemctl status`."""

from __future__ import annotations

from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.fleet.processes import ProcessFleet
from batchpool.supervisor.resources.resources import PoolResources


def headline(
    resources: PoolResources, process_fleet: ProcessFleet, reload: str = "", last_reload: str = ""
) -> str:
    """What the pool does now: loads, serves (and what it lacks), or drains; and reloads.

    reload: what a reload does now, "" for none. last_reload: how the last one ended.
    """
    if process_fleet.stopping or process_fleet.closed:
        rows = sum(entry.claimed() for entry in resources.lanes)
        text = f"draining: {_count(rows, 'row')} under way"
        return text if process_fleet.stopping else text + _reload(reload, last_reload)
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
            return "starting the front ends"
        return f"loading {models[cold[0].entry]} on {_place(cold[0])}; {warm} warm"
    text = f"serving {_count(len(models), 'model')}, {warm}"
    lacking = [name for i, name in models.items() if not resources.state_page.serves(i)]
    if lacking:
        text += f"; no worker for {', '.join(lacking)}"
    if process_fleet.batcher is None or resources.state_page.stalled.get():
        text += "; the batcher stands still"
    return text + _reload(reload, last_reload)


def _reload(reload: str, last: str) -> str:
    if reload:
        return f"; reloading: {reload}"
    return f"; last reload {last}" if last.startswith("failed") else ""


def _place(worker_slot: WorkerSlot) -> str:
    gpu = worker_slot.plan.cuda_visible
    return worker_slot.plan.device if gpu is None else f"GPU {gpu}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
