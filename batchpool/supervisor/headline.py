"""The pool's state in one line, for those who read `systemctl status`."""

from __future__ import annotations

from batchpool.supervisor.children.worker_slot import Seat
from batchpool.supervisor.fleet.processes import Staff
from batchpool.supervisor.resources.resources import Holdings


def headline(holdings: Holdings, staff: Staff, reload: str = "", last_reload: str = "") -> str:
    """What the pool does now: loads, serves (and what it lacks), or drains; and reloads.

    reload: what a reload does now, "" for none. last_reload: how the last one ended.
    """
    if staff.stopping or staff.closed:
        rows = sum(entry.claimed() for entry in holdings.lanes)
        text = f"draining: {_count(rows, 'row')} under way"
        return text if staff.stopping else text + _reload(reload, last_reload)
    models = {entry: model.spec.name for entry, model in holdings.plan.entries.items()}
    seats = [seat for seat in staff.workers.seats if seat.model in models]
    cold = [seat for seat in seats if not seat.ready]
    workers = len(seats)
    warm = f"{workers - len(cold)} of {workers} workers" if cold else _count(workers, "worker")
    if not staff.was_ready:
        if not cold:
            return "starting the front ends"
        return f"loading {models[cold[0].model]} on {_place(cold[0])}; {warm} warm"
    text = f"serving {_count(len(models), 'model')}, {warm}"
    lacking = [name for i, name in models.items() if not holdings.board.serves(i)]
    if lacking:
        text += f"; no worker for {', '.join(lacking)}"
    if staff.batcher is None or holdings.board.stalled.get():
        text += "; the batcher stands still"
    return text + _reload(reload, last_reload)


def _reload(reload: str, last: str) -> str:
    if reload:
        return f"; reloading: {reload}"
    return f"; last reload {last}" if last.startswith("failed") else ""


def _place(seat: Seat) -> str:
    gpu = seat.plan.cuda_visible
    return seat.plan.device if gpu is None else f"GPU {gpu}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
