"""Metrics that the supervisor writes: rows, living processes, and lanes with sane words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.layout.segments import lane_layout, state_page_layout
from batchpool.core.layout.states import PoolState
from batchpool.core.metrics.segments import WORKER_SLOTS_MOST
from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.metrics.totals import Totals
from batchpool.shm.pool_state import PoolStatePage
from batchpool.shm.segment import create
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import BATCHER as BATCHER_ROLE
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.plan.plan import WorkerPlan
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry, LaneTable
from batchpool.supervisor.resources.metrics import REMEMBERED_NS, SupervisorMetrics
from tests.unit.counters import new_counters
from tests.unit.specs import MIXED

S = 10**9
EPOCH = 1_700_000_000 * S


def child_of(post: ProcessSlot, pid: int, state: str = "serving") -> Child:
    process = cast(Any, SimpleNamespace(pid=pid))
    return Child(BATCHER_ROLE, post, process, cast(Any, None), -1, 5 * S, state)


def worker_slot_of(worker: int, model: str = "m", device: str = "cpu") -> WorkerSlot:
    plan = WorkerPlan(worker, device, None, 1)
    of = cast(Any, SimpleNamespace(spec=SimpleNamespace(name=model)))
    return WorkerSlot(0, plan, ProcessSlot(f"worker {worker} of {model}"), of, 600.0)


class Books:
    """A ledger with what it looks at: a batcher, a front end, a seat, and lanes."""

    def __init__(self) -> None:
        self.counters = new_counters(1)
        self.metrics = SupervisorMetrics(self.counters, EPOCH)
        fd = create(state_page_layout(), sealed=False)
        self.state_page = PoolStatePage(fd, writable=True)
        os.close(fd)
        self.posts = [ProcessSlot("batcher"), ProcessSlot("frontend 0")]
        self.children: list[Child | None] = [
            child_of(post, pid) for pid, post in enumerate(self.posts, 11)
        ]
        self.worker_slots = [worker_slot_of(0)]
        self.models = {0: "m"}
        self.now_ns = 8 * S
        self.lanes = LaneTable(8, self.metrics.forget)
        self.bells = HeldBells.of_frontend()

    def look(self) -> Totals:
        watched = list(zip(self.posts, self.children, strict=True))
        models, now_ns = self.models, self.now_ns
        self.metrics.look(
            7 * S, self.state_page, models, watched, self.worker_slots, self.lanes, now_ns
        )
        return self.counters.totals()

    def start(self, worker_slot: WorkerSlot, pid: int) -> None:
        worker_slot.row = self.metrics.row_for(worker_slot, self.worker_slots)
        worker_slot.child = child_of(worker_slot.process_slot, pid)

    def lane(self, *, local: bool) -> LaneEntry:
        layout = lane_layout(MIXED, 6)
        return self.lanes.add(0, "x", layout, self.bells, client=int(local), pinned=False)

    def close(self) -> None:
        for entry in self.lanes:
            self.lanes.remove(entry.number)
        self.bells.close()


@pytest.fixture
def books() -> Iterator[Books]:
    books = Books()
    yield books
    books.close()


def write(lane: LaneEntry, **words: int) -> None:
    for name, value in words.items():
        os.pwrite(lane.fd, (value % 2**64).to_bytes(8, "little"), lane.layout.words[name])


def test_processes_are_told_while_they_are_there(books: Books) -> None:
    books.start(books.worker_slots[0], 13)
    books.state_page.state.set(int(PoolState.READY))
    books.state_page.serving[0] = 1
    totals = books.look()
    pids = {"batcher": 11, "frontend 0": 12, "worker 0 of m": 13, "supervisor": os.getpid()}
    assert totals.values("process_pid", "process") == pids
    assert totals.values("process_up", "process") == dict.fromkeys(pids, 1)
    started_s = totals.value("process_start_time_seconds", process="batcher")
    assert started_s == (EPOCH + 5 * S) / S
    assert totals.values("pool_state", "state") == {"ready": 1}
    assert totals.value("model_workers", model="m") == 1
    books.children[0] = None
    books.worker_slots[0].child = None
    totals = books.look()
    assert totals.values("process_pid", "process").keys() == {"frontend 0", "supervisor"}
    assert totals.value("process_up", process="batcher") == 0


def test_one_that_only_starts_is_not_up(books: Books) -> None:
    child = books.children[0]
    assert child is not None
    child.state = "starting"
    totals = books.look()
    assert totals.value("process_up", process="batcher") == 0
    assert totals.value("process_pid", process="batcher") == 11


def test_restarts_are_counted_over_worker_slots_too(books: Books) -> None:
    worker_slot = books.worker_slots[0]
    books.start(worker_slot, 13)
    worker_slot.process_slot.restarts = 2
    books.posts[0].restarts = 1
    assert books.look().values("process_restarts_total", "process") == {
        "batcher": 1, "worker 0 of m": 2,
    }  # fmt: skip
    worker_slot.child = None
    books.worker_slots[0] = heir = worker_slot_of(0)  # a seat of its own, with a history of its own
    books.start(heir, 14)
    heir.process_slot.restarts = 1
    assert books.look().value("process_restarts_total", process="worker 0 of m") == 3


def test_a_worker_counts_on_in_its_predecessors_row(books: Books) -> None:
    worker_slot = books.worker_slots[0]
    books.start(worker_slot, 13)
    first = worker_slot.row
    worker_slot.child = None
    books.start(worker_slot, 14)
    assert worker_slot.row == first
    other = worker_slot_of(1)
    books.worker_slots.append(other)
    books.start(other, 15)
    assert other.row != first


def test_two_workers_of_one_label_have_rows_of_their_own_while_both_live(books: Books) -> None:
    old = books.worker_slots[0]
    books.start(old, 13)
    heir = worker_slot_of(0)
    books.worker_slots.append(heir)
    books.start(heir, 14)
    assert heir.row != old.row
    totals = books.look()
    assert totals.value("process_pid", process="worker 0 of m") == 14
    assert totals.value("process_up", process="worker 0 of m") == 1
    old.child = None
    books.worker_slots.remove(old)
    third = worker_slot_of(0)
    books.worker_slots.append(third)
    books.start(third, 15)
    assert third.row == old.row


def test_there_may_be_no_row_left(books: Books) -> None:
    for worker in range(WORKER_SLOTS_MOST):
        books.counters.label_worker_slot(worker, "m", worker, "cpu")
    worker_slot = worker_slot_of(WORKER_SLOTS_MOST)
    assert books.metrics.row_for(worker_slot, [worker_slot]) == -1
    worker_slot.row = -1
    worker_slot.child = child_of(worker_slot.process_slot, 99)
    books.worker_slots = [worker_slot]
    books.look()


def test_lanes_are_told_by_who_has_them(books: Books) -> None:
    http, local = books.lane(local=False), books.lane(local=True)
    write(http, claimed=2, refused=3, refused_share=4)
    write(local, claimed=1, refused=5)
    totals = books.look()
    assert totals.values("lanes", "client") == {"http": 1, "local": 1}
    assert totals.values("lane_slots", "client") == {"http": 6, "local": 6}
    assert totals.values("lane_claimed_slots", "client") == {"http": 2, "local": 1}
    assert totals.values("claims_refused_total", "reason", client="http") == {
        "full": 3, "share": 4,
    }  # fmt: skip
    assert totals.value("claims_refused_total", client="local") == 5
    http.closing = True
    totals = books.look()
    assert totals.values("lanes", "client") == {"local": 1}
    assert totals.value("lane_claimed_slots", client="http") == 0


def test_what_a_lane_refused_is_kept_when_it_goes(books: Books) -> None:
    lane = books.lane(local=False)
    write(lane, refused=3)
    books.look()
    write(lane, refused=10)
    books.lanes.remove(lane.number)
    again = books.lane(local=False)
    write(again, refused=1)
    books.look()
    assert books.look().value("claims_refused_total", client="http", reason="full") == 11


@pytest.mark.parametrize("nonsense", [-1, 2**63, 2**40, 0])
def test_nonsense_of_a_client_is_not_believed(books: Books, nonsense: int) -> None:
    lane = books.lane(local=True)
    write(lane, refused=3)
    books.look()
    write(lane, refused=nonsense, refused_share=nonsense, claimed=nonsense)
    totals = books.look()
    assert totals.value("claims_refused_total") == 3
    assert 0 <= totals.value("lane_claimed_slots") <= 6


def counted(books: Books, name: str) -> dict[str, int]:
    return books.look().values(name, "model")


def admit(books: Books, entry: int, rows: int) -> None:
    at = books.counters.place("batcher", entry) + BLOCKS["batcher"].word("rows_admitted_total")
    books.counters.cells[at] += rows


def test_a_model_that_is_gone_is_told_for_an_hour_and_then_no_more(books: Books) -> None:
    books.models = {0: "m", 1: "other", 2: "m"}  # a reload gave m another entry
    books.look()
    for entry in books.models:
        admit(books, entry, 5)
    books.models = {2: "m"}
    assert counted(books, "rows_admitted_total") == {"m": 10, "other": 5}
    books.now_ns += REMEMBERED_NS // 2
    assert counted(books, "rows_admitted_total") == {"m": 10, "other": 5}
    books.models[1] = "other"
    assert counted(books, "rows_admitted_total") == {"m": 10, "other": 5}, "it is back"
    del books.models[1]
    for _ in range(2):
        books.now_ns += REMEMBERED_NS - S
        found = counted(books, "rows_admitted_total")
    assert found == {"m": 10}, "what counts for a name that is served stays"
    assert books.counters.model_names() == ["m", "", "m"]
    assert "other" not in {labels[0] for labels, _ in books.look().series(metric_of("batch_rows"))}


def test_rows_of_workers_that_are_gone_become_free(books: Books) -> None:
    old, new, kept = worker_slot_of(0, "old"), worker_slot_of(0, "new"), worker_slot_of(0, "m")
    for worker_slot in (old, kept):
        worker_slot.row = books.metrics.row_for(worker_slot, [])
    books.worker_slots = [old, kept]
    books.look()
    at = books.counters.place("worker", old.row) + BLOCKS["worker"].word("worker_rows_total", "ok")
    books.counters.cells[at] = 7
    books.worker_slots = [kept]
    for later_ns in (60 * S, REMEMBERED_NS - S):
        books.now_ns += later_ns
        assert books.look().values("worker_rows_total", "model") == {"old": 7}
    books.now_ns += 60 * S
    books.look()
    assert books.counters.worker_slot_names() == ["", "worker 0 of m"]
    assert books.look().values("worker_rows_total", "model") == {}
    assert books.metrics.row_for(kept, []) == kept.row, "its own, and not the first that is free"
    assert books.metrics.row_for(new, [kept]) == old.row
    assert books.counters.worker_slot_names() == ["worker 0 of new", "worker 0 of m"]
