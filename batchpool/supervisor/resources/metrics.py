"""The supervisor's counters: labels of the rows, live processes, restarts, and use of the lanes.

They are written in every pass of its loop, from its own tables. Lanes of local clients are counted
here too, since only the supervisor sees all lanes; values that their clients wrote are bounded
before they are added.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence

from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.layout.states import PoolState
from batchpool.core.metrics.segments import WORKER_SLOTS_MOST
from batchpool.core.metrics.table import BLOCKS
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.stats.counters import BATCHER, SUPERVISOR, Counters
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.resources.lane_table import LaneEntry

_MOST_AT_ONCE = 2**32  # claims refused between two looks
REMEMBERED_NS = 3600 * 10**9
_FORGET_EACH_NS = 60 * 10**9
_POOL, _LANES, _PROCESS = (BLOCKS[writer] for writer in ("pool", "supervisor", "process"))
_WORKS = ("running", "serving")


class SupervisorMetrics:
    """Writes the supervisor's counters. epoch_ns: Unix time at CLOCK_MONOTONIC's zero."""

    def __init__(self, counters: Counters, epoch_ns: int) -> None:
        self._counters = counters
        self._epoch_ns = epoch_ns
        self._refused: dict[int, list[int]] = {}  # a lane's serial -> its words at the last look
        self._gone_ns: dict[tuple[str, int, str], int] = {}  # kind, number, name
        self._forget_at_ns = 0
        self._restarts: dict[int, int] = {}  # the id of a slot -> its restarts so far
        self._known_slots: list[ProcessSlot] = []  # kept, so that no id is used again

    # -- worker slots ----------------------------------------------------------------------------

    def row_for(self, worker_slot: WorkerSlot, worker_slots: Iterable[WorkerSlot]) -> int:
        """A row for the worker that is about to be started in a slot; -1 if all are taken.

        The row that this worker's predecessor had, so that its counts go on; while that one
        lives, as during a reload, another of the same label.
        """
        counters = self._counters
        taken = {
            other.row
            for other in worker_slots
            if other is not worker_slot and other.child is not None
        }
        model, worker, device, stage = worker_slot.label
        label = model, str(worker), device, stage.label
        rows = counters.worker_slot_rows()
        for row in rows:
            if counters.worker_slot_label(row) == label and row not in taken:
                return row
        row = next((row for row in range(WORKER_SLOTS_MOST) if row not in rows), -1)
        if row >= 0:
            counters.label_worker_slot(row, model, worker, device, stage)
        return row

    def reloaded(self, done: bool, now_ns: int) -> None:
        """A reload has ended. now_ns: CLOCK_MONOTONIC."""
        cells, at = self._counters.cells, self._counters.place("pool")
        cells[at + _POOL.word("reloads_total", "done" if done else "failed")] += 1
        cells[at + _POOL.word("last_reload_timestamp_seconds")] = self._epoch_ns + now_ns

    # -- each pass --------------------------------------------------------------------------

    def look(
        self,
        started_ns: int,
        state_page: PoolStatePage,
        models: Mapping[int, str],
        watched: Sequence[tuple[ProcessSlot, Child | None]],
        worker_slots: Iterable[WorkerSlot],
        lanes: Iterable[LaneEntry],
        now_ns: int,
        tasks: tuple[ProcessSlot, Child | None] | None = None,
    ) -> None:
        """Write the present values. started_ns: the start of this process. models: the names of
        all served models by entry.
        watched: the batcher and front ends. tasks: the task process, where there is to be one.
        now_ns: CLOCK_MONOTONIC."""
        self._process(SUPERVISOR, os.getpid(), started_ns, up=True)
        cells, state = self._counters.cells, state_page.state.get()
        at = self._counters.place("pool")
        for case in PoolState:
            cells[at + _POOL.word("pool_state", case.name.lower())] = int(case == state)
        for entry in range(MODELS_MOST):
            if self._counters.alive[entry] and entry not in models:
                self._counters.alive[entry] = 0
        for entry, name in models.items():
            self._counters.name_model(entry, name)
            self._counters.alive[entry] = 1
            at = self._counters.place("supervisor", entry) + _LANES.word("model_workers")
            cells[at] = int(state_page.serving[entry])
        for row, (slot, child) in enumerate(watched, BATCHER):
            self._count_process(row, slot, child)
        if tasks is not None:
            self._count_process(self._counters.tasks_row, *tasks)
        self._look_at_worker_slots(list(worker_slots))
        self._look_at_lanes(list(lanes))
        if now_ns >= self._forget_at_ns:
            self._forget_at_ns = now_ns + _FORGET_EACH_NS
            self._forget_the_gone(models, now_ns)

    def _forget_the_gone(self, models: Mapping[int, str], now_ns: int) -> None:
        """Remove the labels of models and workers that ended an hour ago: their last counts were
        scraped by then."""
        counters, served = self._counters, set(models.values())
        names = enumerate(counters.model_names())
        empty = [row for row in counters.worker_slot_rows() if not counters.held[row]]
        gone = [
            *(("model", n, name) for n, name in names if name and name not in served),
            *(("worker_slot", row, counters.worker_slot_name(row)) for row in empty),
        ]
        self._gone_ns = {what: self._gone_ns.get(what, now_ns) for what in gone}
        for (kind, number, _), since_ns in self._gone_ns.items():
            if now_ns - since_ns < REMEMBERED_NS:
                continue
            if kind == "model":
                counters.name_model(number, "")
            else:
                counters.forget_worker_slot(number)

    def _look_at_worker_slots(self, worker_slots: Sequence[WorkerSlot]) -> None:
        held = {worker_slot.row for worker_slot in worker_slots}
        for row in self._counters.worker_slot_rows():
            self._counters.held[row] = int(row in held)
        for worker_slot in worker_slots:
            if worker_slot.row >= 0:
                self._count_process(
                    self._counters.worker_slot_row(worker_slot.row),
                    worker_slot.process_slot,
                    worker_slot.child,
                )

    def _count_process(self, row: int, slot: ProcessSlot, child: Child | None) -> None:
        if child is None:
            self._process(row, 0, 0, up=False)
        else:
            self._process(row, child.pid, child.started_ns, up=child.state in _WORKS)
        if id(slot) not in self._restarts:
            self._known_slots.append(slot)
            self._restarts[id(slot)] = 0
        new = slot.restarts - self._restarts[id(slot)]
        if new:
            self._restarts[id(slot)] += new
            at = self._counters.place("process", row) + _PROCESS.word("process_restarts_total")
            self._counters.cells[at] += new

    def _process(self, row: int, pid: int, started_ns: int, *, up: bool) -> None:
        cells, at = self._counters.cells, self._counters.place("process", row)
        cells[at + _PROCESS.word("process_up")] = int(up)
        cells[at + _PROCESS.word("process_start_time_seconds")] = self._epoch_ns + started_ns
        cells[at + _PROCESS.word("process_pid")] = pid

    # -- lanes ----------------------------------------------------------------------------

    def _look_at_lanes(self, lanes: Sequence[LaneEntry]) -> None:
        gauges: dict[tuple[int, str], list[int]] = {}
        for lane in lanes:
            self.count_refused(lane)
            if not lane.closing:
                sums = gauges.setdefault((lane.model, _client(lane)), [0, 0, 0])
                slots = lane.layout.slots
                for i, more in enumerate((1, slots, min(lane.claimed(), slots))):
                    sums[i] += more
        names = ("lanes", "lane_slots", "lane_claimed_slots")
        for entry in range(MODELS_MOST):
            if not self._counters.alive[entry]:
                continue
            at = self._counters.place("supervisor", entry)
            for client in ("http", "local"):
                found = gauges.get((entry, client), [0, 0, 0])
                for name, value in zip(names, found, strict=True):
                    self._counters.cells[at + _LANES.word(name, client)] = value

    def count_refused(self, lane: LaneEntry) -> None:
        """Count the claims that its client refused since the last look; the last time is when the
        lane goes."""
        now = [lane.word("refused"), lane.word("refused_share")]
        before = self._refused.setdefault(lane.serial, [0, 0])
        client = _client(lane)
        at = self._counters.place("supervisor", lane.model)
        for reason, new, old in zip(("full", "share"), now, before, strict=True):
            if old < new < old + _MOST_AT_ONCE and (client, reason) != ("local", "share"):
                word = _LANES.word("claims_refused_total", client, reason)
                self._counters.cells[at + word] += new - old
        self._refused[lane.serial] = now

    def forget(self, lane: LaneEntry) -> None:
        """The lane goes: count what is left of it."""
        self.count_refused(lane)
        del self._refused[lane.serial]


def _client(lane: LaneEntry) -> str:
    return "local" if lane.local else "http"
