"""The batcher, its takeover and its supervisor with one ordering rule removed at a time.

Each function patches the real classes with a small wrong copy of one of their functions.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from batchpool.batcher import recovery
from batchpool.batcher.batcher import Batcher
from batchpool.batcher.completion import Completion
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.mapped_lanes import MappedLanes
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.segments import RECORDS, lane_layout
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler import fair_order
from batchpool.core.scheduler.queue import Queue, QueueColumn
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.scheduler.suspect_rows import SuspectRows
from batchpool.core.tensors.stages import Stage
from batchpool.shm.ring import pack, unpack
from tests.sim import lane_migration
from tests.sim.memory import Process
from tests.sim.mutations import Deaf, Patch
from tests.sim.world import World

# -- the batcher ------------------------------------------------------------------------


def completion_entry_before_done(patch: Patch) -> None:
    def complete(self: AdmittedLane, slots: Any, sequences: Any) -> None:
        self._cq.push(pack(slots, sequences))
        self.ring_client()
        self.lane.state[slots] = SlotState.DONE

    patch.setattr(AdmittedLane, "complete", complete)


def status_after_done(patch: Patch) -> None:
    def hasty(self: Completion, model: Any, rows: Any, status: Any, text: str = "") -> None:
        rows = rows[:, np.argsort(rows[QueueColumn.LANE], kind="stable")]
        self._complete(rows)
        for lane, part in self._lanes.by_lane(rows):
            lane.lane.write_status(part[QueueColumn.SLOT], status, text)

    patch.setattr(Completion, "end", hasty)


def any_sequence_is_admitted(patch: Patch) -> None:
    def admit(self: AdmittedLane) -> Any:
        entries = self._sq.peek()
        slots, sequences = unpack(entries)
        good = self.lane.state[slots] == SlotState.SUBMITTED
        slots, sequences = self._without_stale(slots, sequences, good)
        rows = self._read_headers(slots, sequences)
        rows[QueueColumn.ATTEMPT] = 0
        self.lane.attempt[slots] = 0
        self.lane.state[slots] = SlotState.QUEUED
        if len(entries):
            self._sq.advance(len(entries))
        return rows

    patch.setattr(AdmittedLane, "admit", admit)


def any_state_is_admitted(patch: Patch) -> None:
    def admit(self: AdmittedLane) -> Any:
        entries = self._sq.peek()
        slots, sequences = unpack(entries)
        good = self.lane.sequence[slots] == sequences
        slots, sequences = self._without_stale(slots, sequences, good)
        rows = self._read_headers(slots, sequences)
        rows[QueueColumn.ATTEMPT] = 0
        self.lane.attempt[slots] = 0
        self.lane.state[slots] = SlotState.QUEUED
        if len(entries):
            self._sq.advance(len(entries))
        return rows

    patch.setattr(AdmittedLane, "admit", admit)


def stale_entry_hides_the_good_one(patch: Patch) -> None:
    def only_good(self: AdmittedLane, slots: Any, sequences: Any, good: Any) -> Any:
        once = np.zeros(len(slots), dtype=bool)
        once[np.unique(slots, return_index=True)[1]] = True
        return slots[good & once], sequences[good & once]

    patch.setattr(AdmittedLane, "_without_stale", only_good)


def cancels_are_asked_after_admit(patch: Patch) -> None:
    came = AdmittedLane.has_new_cancels
    admit = AdmittedLane.admit

    def late(self: AdmittedLane) -> Any:
        rows = admit(self)
        self.late = came(self)  # type: ignore[attr-defined]
        return rows

    patch.setattr(AdmittedLane, "admit", late)
    patch.setattr(AdmittedLane, "has_new_cancels", lambda self: True)
    cancelled = AdmittedLane.cancelled

    def only_if_came(self: Any, slots: Any, sequences: Any) -> Any:
        return cancelled(self, slots, sequences) & self.late

    patch.setattr(AdmittedLane, "cancelled", only_if_came)


def cancels_are_not_asked_again(patch: Patch) -> None:
    patch.setattr(
        AdmittedLane,
        "recheck_cancels",
        lambda self: setattr(self, "_cancels", self.lane.cancels.get()),
    )


def record_token_after_publish(patch: Patch) -> None:
    prepare, publish = WorkerProxy.prepare, WorkerProxy.publish

    def without_token(self: WorkerProxy, *args: Any) -> Any:
        real, self.worker_segment.token_of = self.worker_segment.token_of, {}
        try:
            return prepare(self, *args)
        finally:
            self.worker_segment.token_of = real

    def then_token(self: WorkerProxy, batch: Any) -> None:
        publish(self, batch)
        self.worker_segment.token[batch.record] = batch.token

    patch.setattr(WorkerProxy, "prepare", without_token)
    patch.setattr(WorkerProxy, "publish", then_token)


def record_token_before_rows(patch: Patch) -> None:
    prepare = WorkerProxy.prepare

    def hasty(self: WorkerProxy, *args: Any) -> Any:
        record = next(r for r in range(RECORDS) if r not in self.batches)
        self.worker_segment.token[record] = self.token + 1
        real, self.worker_segment.token_of = self.worker_segment.token_of, {}
        try:
            return prepare(self, *args)
        finally:
            self.worker_segment.token_of = real

    patch.setattr(WorkerProxy, "prepare", hasty)


def running_after_publish(patch: Patch) -> None:
    def dispatch(self: Batcher, model: Any, proxy: Any, rows: Any, reason: Any, now: int) -> None:
        order = np.lexsort((rows[QueueColumn.SLOT], rows[QueueColumn.LANE]))
        batch = proxy.prepare(rows[:, order], reason, now, 1)
        proxy.publish(batch)
        for lane, part in self.lanes.by_lane(batch.rows):
            lane.lane.state[part[QueueColumn.SLOT]] = SlotState.RUNNING
            lane.running += part.shape[1]

    patch.setattr(Batcher, "_dispatch", dispatch)


def record_freed_before_completions(patch: Patch) -> None:
    finished = Completion.finish_batch

    def hasty(self: Completion, proxy: WorkerProxy, batch: Any) -> None:
        proxy.free(batch)
        proxy.free = lambda batch: None  # type: ignore[method-assign]
        try:
            finished(self, proxy, batch)
        finally:
            del proxy.free

    patch.setattr(Completion, "finish_batch", hasty)


def error_for_all_of_a_failed_batch(patch: Patch) -> None:
    def add_failed(self: SuspectRows, rows: Any, attempts: int, size: int) -> Any:
        if rows[QueueColumn.ATTEMPT].min() >= attempts:
            return rows
        self.add_group(rows)
        return rows[:, :0]

    patch.setattr(SuspectRows, "add_failed", add_failed)


def companions_that_are_gone_do_not_count(patch: Patch) -> None:
    add_failed = SuspectRows.add_failed

    def lonely(self: SuspectRows, rows: Any, attempts: int, size: int) -> Any:
        return add_failed(self, rows, attempts, rows.shape[1])

    patch.setattr(SuspectRows, "add_failed", lonely)


def suspects_have_no_last_attempt(patch: Patch) -> None:
    add_failed = SuspectRows.add_failed
    patch.setattr(
        SuspectRows, "add_failed", lambda self, rows, most, size: add_failed(self, rows, 99, size)
    )


def suspects_stay_when_they_are_late(patch: Patch) -> None:
    patch.setattr(SuspectRows, "take_late", lambda self, now_ns: self.of_lane(-1))


def takeover_mixes_suspects_with_others(patch: Patch) -> None:
    headers = AdmittedLane.queued_rows

    def unfinished(self: AdmittedLane, stage: Stage) -> Any:
        rows = headers(self, stage)
        rows[QueueColumn.ATTEMPT] = 0
        return rows

    patch.setattr(AdmittedLane, "queued_rows", unfinished)


def size_buckets_meet(patch: Patch) -> None:
    patch.setattr(SizeBuckets, "of", lambda self, sizes: 0)
    patch.setattr(SizeBuckets, "of_one", lambda self, sizes: 0)


def refused_rows_are_forgotten(patch: Patch) -> None:
    end = Completion.end

    def only_others(self: Completion, model: Any, rows: Any, status: Any, text: str = "") -> None:
        if status is not Status.OVERLOADED:
            end(self, model, rows, status, text)

    patch.setattr(Completion, "end", only_others)


def worker_gets_lanes_it_has_not_mapped(patch: Patch) -> None:
    patch.setattr(WorkerProxy, "_read_acknowledgements", lambda self, serials: True)


def lane_closed_while_its_rows_run(patch: Patch) -> None:
    def unmap(self: MappedLanes, lane: Any) -> None:
        if lane.closing and lane.number in self.by_number:
            del self.by_number[lane.number]
            self.serials[lane.number] = 0
            self.version += 1
            self._lane_closed(lane.number)

    patch.setattr(MappedLanes, "unmap_if_idle", unmap)


# -- takeover and reaping ---------------------------------------------------------------


def generation_is_not_raised(patch: Patch) -> None:
    take_over = recovery.take_over

    def quietly(batcher: Batcher) -> None:
        for lane in batcher.lanes.by_number.values():
            lane.lane.generation = Deaf(lane.lane.generation)  # type: ignore[assignment]
        take_over(batcher)

    patch.setattr(recovery, "take_over", quietly)


def takeover_forgets_queued_rows(patch: Patch) -> None:
    patch.setattr(
        AdmittedLane, "queued_rows", lambda self, stage: self._read_headers(*np.zeros((2, 0), int))
    )


def takeover_runs_published_records_again(patch: Patch) -> None:
    patch.setattr(recovery, "_published", lambda proxy: set())


def takeover_takes_rows_in_any_state(patch: Patch) -> None:
    in_state = recovery._rows_in_state

    def all_of(batcher: Batcher, rows: Any, state: SlotState, stage: Stage) -> Any:
        states = SlotState.RUNNING, SlotState.QUEUED, SlotState.DONE
        each = [rows[:, i : i + 1].copy() for i in range(rows.shape[1])]
        parts = [in_state(batcher, row, state, stage) for row in each for state in states]
        return np.concatenate([rows[:, :0], *parts], axis=1)

    patch.setattr(recovery, "_rows_in_state", all_of)


def takeover_rings_no_worker(patch: Patch) -> None:
    take_over = recovery.take_over

    def quietly(batcher: Batcher) -> None:
        rings = {proxy: proxy.ring for proxy in batcher.workers.by_number.values()}
        for proxy in rings:
            proxy.ring = lambda: None
        take_over(batcher)
        for proxy, ring in rings.items():
            proxy.ring = ring

    patch.setattr(recovery, "take_over", quietly)


def worker_is_given_up_before_it_is_reaped(patch: Patch) -> None:
    """Its rows run again while its last stores have not landed."""
    supervise, any_step = World.supervise, World._any_step
    late: WeakKeyDictionary[World, list[Process]] = WeakKeyDictionary()

    def hasty(self: World) -> None:
        process = self.dead[0].process if self.dead else None
        if process is not None and process.role == "worker":
            stores = Process("late stores", "worker", lambda: None)
            stores.hidden, process.hidden = process.hidden, {}
            late.setdefault(self, []).append(stores)
        supervise(self)

    def landing(self: World) -> None:
        if late.get(self) and self.random.random() < 0.03:
            late[self].pop(0).land()
        any_step(self)

    patch.setattr(World, "supervise", hasty)
    patch.setattr(World, "_any_step", landing)


def each_name_has_turns_of_its_own(patch: Patch) -> None:
    patch.setattr(fair_order, "NAMED_FROM", 1 << 62)


def last_batch_that_comes_back_is_first(patch: Patch) -> None:
    prepend, returns = Queue.prepend, itertools.count()
    patch.setattr(
        Queue, "prepend", lambda self, rows, dispatch: prepend(self, rows, -next(returns))
    )


def rows_of_a_batch_come_back_by_slot(patch: Patch) -> None:
    def put_back(self: Completion, model: Any, batch: Any, rows: Any) -> None:
        model.queue.prepend(rows, batch.number)

    patch.setattr(Completion, "_put_back", put_back)


def death_counted_before_queued(patch: Patch) -> None:
    requeue = Completion._requeue

    def hasty(self: Completion, rows: Any) -> None:
        for lane, part in self._lanes.by_lane(rows):
            lane.lane.attempt[part[QueueColumn.SLOT]] = part[QueueColumn.ATTEMPT]
        requeue(self, rows)

    patch.setattr(Completion, "_requeue", hasty)


def completion_ring_has_one_entry_a_slot(patch: Patch) -> None:
    def tight(*args: Any) -> Any:
        layout = lane_layout(*args)
        cq = replace(layout.columns["cq"], shape=(layout.capacity,))
        return replace(layout, columns={**layout.columns, "cq": cq})

    patch.setattr(lane_migration, "lane_layout", tight)
