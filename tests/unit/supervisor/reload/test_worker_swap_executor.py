"""A swap of workers without processes: their slots, and the messages to the batcher."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.process_messages import EndWorker
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, ProcessSlot
from batchpool.supervisor.children.roles import WORKER
from batchpool.supervisor.children.worker_slot import WorkerSlot
from batchpool.supervisor.fleet.workers import WorkerFleet
from batchpool.supervisor.plan.diff import revised
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.worker_swap_executor import WorkerSwapExecutor
from tests.unit.supervisor.plan.test_diff import plan


class ProcessDouble:
    """A process that ends when it is killed, unless it is stuck."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stuck = False

    def poll(self) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        if not self.stuck:
            self.returncode = -number


class ChannelDouble:
    """Keeps the messages that a worker is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any, fds: Any = ()) -> None:
        self.sent.append(message)


class WorkersDouble:
    """Workers as far as a swap uses them. duties: (on, off) by pid, in order."""

    def __init__(self, old: Plan) -> None:
        self.worker_slots = [
            WorkerSlot.of(old, m.entry, worker) for m in old.models for worker in m.workers
        ]
        self.off_plan: list[WorkerSlot] = []
        self.observer: Any = None
        self.duties: list[tuple[int, int]] = []
        self.left: list[int] = []
        self.no_room = False
        self._pid = 0
        for worker_slot in self.worker_slots:
            self.start(worker_slot)
            worker_slot.ready = True

    def start(self, worker_slot: WorkerSlot) -> None:
        if self.no_room:
            raise StartError("no room")
        self._pid += 1
        process = cast(Any, ProcessDouble(self._pid))
        channel = cast(Any, ChannelDouble())
        worker_slot.child = Child(WORKER, worker_slot.process_slot, process, channel, -1, 0)
        worker_slot.start_at_ns = None

    def relieve(self, on: WorkerSlot | None, off: WorkerSlot | None) -> None:
        self.duties.append((_pid(on), _pid(off)))
        for worker_slot in (on, off):
            if worker_slot is not None:
                worker_slot.on_duty = worker_slot is on

    def warm(self, worker_slot: WorkerSlot) -> None:
        worker_slot.ready = True
        self.observer.warm(worker_slot)

    def end(self, worker_slot: WorkerSlot, *, owned: bool = True) -> None:
        """Its process has ended, killed or by itself."""
        child = worker_slot.child
        assert child is not None
        child.process.returncode = child.process.returncode or 1
        worker_slot.child, worker_slot.ready = None, False
        assert self.observer.lost(worker_slot, child) is owned

    def give_up(self, worker_slot: WorkerSlot) -> None:
        for worker_slots in (self.worker_slots, self.off_plan):
            if worker_slot in worker_slots:
                worker_slots.remove(worker_slot)
        self.left.append(_pid(worker_slot))

    def pids(self) -> list[int]:
        return [_pid(worker_slot) for worker_slot in self.worker_slots]


def _pid(worker_slot: WorkerSlot | None) -> int:
    return 0 if worker_slot is None or worker_slot.child is None else worker_slot.child.pid


def sent(worker_slot: WorkerSlot) -> list[Any]:
    """The messages that a worker got."""
    assert worker_slot.child is not None
    return cast(ChannelDouble, worker_slot.child.channel).sent


class LanesDouble:
    """Entries that have lanes still, and whether those that come are open."""

    def __init__(self) -> None:
        self.open = True
        self.entries = {0, 1}

    def ready(self) -> bool:
        return self.open

    def has_any(self, entry: int) -> bool:
        return entry in self.entries


class Scene:
    """Two workers, pids 1 and 2, of a plan that goes over to another."""

    def __init__(
        self, old: dict[str, Any] | None = None, new: dict[str, Any] | None = None
    ) -> None:
        self.old = plan(**{"workers_per_device": 2, **(old or {})})
        changed = plan(**{"workers_per_device": 2, "max_wait_ms": 1.0, **(new or {})})
        self.new = revised(self.old, changed, ["a"], self.old.max_lanes)
        self.workers = WorkersDouble(self.old)
        self.lanes = LanesDouble()
        self.commits = 0
        workers = cast(WorkerFleet, self.workers)
        self.later_ns = 0
        self.swap_executor = WorkerSwapExecutor(
            self.old, self.new, workers, self.lanes, self._commit, self._clock_ns
        )
        self.step()

    def _commit(self) -> None:
        self.commits += 1

    def _clock_ns(self) -> int:
        return time.monotonic_ns() + self.later_ns

    def stick(self, worker_slot: WorkerSlot) -> Child:
        """Its process will not end."""
        assert worker_slot.child is not None
        cast(Any, worker_slot.child.process).stuck = True
        return worker_slot.child

    def step(self) -> None:
        self.swap_executor.step()

    def heir(self) -> WorkerSlot:
        """The one that loads."""
        (found,) = (
            s for s in self.workers.off_plan if s.swap_role == "replacement" and not s.ready
        )
        return found

    def serve(self) -> None:
        self.workers.warm(self.heir())
        self.step()

    def standby(self) -> WorkerSlot:
        return next(
            worker_slot
            for worker_slot in self.workers.off_plan
            if worker_slot.swap_role == "standby"
        )


def test_all_new_and_with_no_history() -> None:
    scene = Scene()
    workers = scene.workers
    slots = [worker_slot.process_slot for worker_slot in workers.worker_slots]
    slots[0].restarts = 3
    scene.serve()
    assert workers.pids() == [3, 2]
    heir = workers.worker_slots[0].process_slot
    assert (heir.name, heir.restarts, heir.last_error) == (slots[0].name, 0, "")
    assert [worker_slot.name for worker_slot in workers.off_plan] == [
        "standby of worker 0 of a",
        "replacement of worker 1 of a",
    ]
    assert scene.commits == 0
    scene.serve()
    assert (workers.pids(), scene.commits) == ([3, 4], 1)
    assert workers.duties == [(3, 1), (4, 2)]
    for standby in list(workers.off_plan):
        assert standby.child is not None
        assert standby.child.process.returncode is None, "it may have rows"
        workers.observer.idle(standby)
        assert sent(standby) == []
        scene.step()
        assert (sent(standby), standby.child.process.returncode) == ([EndWorker()], None)
        assert not scene.swap_executor.over, "its memory is not free yet"
        workers.end(standby)
    scene.step()
    assert scene.swap_executor.over
    assert (workers.off_plan, workers.observer) == ([], None)
    assert all(worker_slot.model is scene.new.models[0] for worker_slot in workers.worker_slots)
    assert all(worker_slot.server is scene.new.server for worker_slot in workers.worker_slots)


def test_no_room_for_an_heir_turns_back() -> None:
    scene = Scene()
    scene.workers.no_room = True
    scene.serve()  # and the next one cannot start
    assert scene.swap_executor.swap.failure == "worker 1 of a cannot start: no room"
    assert scene.workers.pids() == [1, 2]
    assert scene.workers.duties == [(3, 1), (1, 3)]
    (heir,) = scene.workers.off_plan
    scene.workers.observer.idle(heir)
    scene.step()
    scene.workers.end(heir)
    scene.step()
    assert scene.swap_executor.over
    assert scene.workers.off_plan == []
    assert all(
        worker_slot.model is scene.old.models[0] for worker_slot in scene.workers.worker_slots
    )


def test_a_dead_standby_is_loaded_anew_by_the_old_plan() -> None:
    scene = Scene()
    scene.serve()
    scene.workers.end(scene.standby())
    scene.step()
    scene.workers.end(scene.heir())
    scene.step()
    refill = scene.standby()
    assert (refill.model, _pid(refill)) == (scene.old.models[0], 5)
    assert scene.workers.pids() == [3, 2], "until then the heir serves"
    scene.workers.warm(refill)
    scene.step()
    assert scene.workers.pids() == [5, 2]
    assert scene.workers.duties[-1] == (5, 3)


@pytest.mark.parametrize("heir_dies", [False, True])
def test_a_worker_slot_for_which_nobody_can_be_had_is_filled_as_any_other(heir_dies: bool) -> None:
    scene = Scene()
    scene.serve()
    scene.workers.end(scene.standby())
    scene.workers.end(scene.heir())
    scene.workers.no_room = True
    if heir_dies:
        scene.workers.end(scene.workers.worker_slots[0])
    scene.step()
    empty = scene.workers.worker_slots[0]
    assert (empty.child, empty.start_at_ns, empty.on_duty) == (None, 0, True)
    assert empty.model is scene.old.models[0]
    assert scene.workers.duties[-1] == (0, 0 if heir_dies else 3)
    for heir in list(scene.workers.off_plan):
        scene.workers.observer.idle(heir)
        scene.step()
        scene.workers.end(heir)
    scene.step()
    assert scene.swap_executor.over
    assert scene.workers.worker_slots[0] is empty


def test_a_worker_that_was_not_there_needs_no_standby() -> None:
    """It crashed again and again: that may be what the reload is to mend."""
    scene = Scene()
    first, second = scene.workers.worker_slots
    scene.workers.end(first, owned=False)
    first.start_at_ns = 99
    second.ready = False  # it has just been started again
    scene.serve()
    scene.serve()
    assert (first.start_at_ns, scene.workers.pids()) == (None, [3, 4])
    assert second.child is not None
    assert second.child.process.returncode == -9, "it loads in vain"
    scene.workers.end(second)
    scene.step()
    assert scene.swap_executor.over


def test_more_workers_and_fewer() -> None:
    more = Scene(old={"workers_per_device": 1})
    more.serve()
    more.serve()
    assert (more.workers.pids(), more.commits) == ([2, 3], 1)
    assert more.workers.duties == [(2, 1), (3, 0)]

    undone = Scene(old={"workers_per_device": 1}, new={"workers_per_device": 3})
    undone.serve()
    undone.serve()
    undone.workers.end(undone.workers.worker_slots[1])
    undone.step()
    assert undone.workers.pids() == [1]

    fewer = Scene(new={"workers_per_device": 1})
    fewer.serve()
    assert (fewer.workers.pids(), fewer.commits) == ([3], 1)
    assert fewer.workers.duties == [(3, 1), (0, 2)]
    assert [worker_slot.swap_role for worker_slot in fewer.workers.off_plan] == [
        "standby",
        "standby",
    ]


def test_the_end_of_the_pool_ends_only_who_loads() -> None:
    scene = Scene()
    scene.serve()
    heir, observer = scene.heir(), scene.workers.observer
    scene.swap_executor.abandon()
    assert heir.child is not None
    assert heir.child.process.returncode == -9
    assert (observer, scene.workers.observer) == (scene.swap_executor, None)
    assert scene.workers.pids() == [3, 2]
    assert _pid(scene.standby()) == 1, "it may have rows in flight"


def test_others_are_none_of_its_business() -> None:
    scene = Scene()
    stranger = WorkerSlot(
        0, scene.old.models[0].workers[0], ProcessSlot("x"), scene.old.models[0], ServerConfig()
    )
    observer = scene.workers.observer
    observer.warm(stranger)
    observer.idle(stranger)
    assert not observer.lost(stranger, cast(Child, SimpleNamespace()))


def test_a_moved_models_old_workers_serve_until_their_lanes_are_gone() -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"slots": 64})
    old = scene.workers.worker_slots[0]
    scene.serve()
    scene.lanes.open = False
    scene.serve()
    assert (scene.commits, scene.workers.duties) == (0, [(2, 0), (3, 0)])
    assert [worker_slot.name for worker_slot in scene.workers.worker_slots] == [
        "worker 0 of a", "replacement of worker 0 of a", "replacement of worker 1 of a",
    ], "no client has a lane to them yet"  # fmt: skip
    scene.lanes.open = True
    scene.step()
    assert scene.commits == 1
    assert [(slot.entry, slot.name) for slot in scene.workers.worker_slots] == [
        (0, "predecessor of worker 0 of a"), (1, "worker 0 of a"), (1, "worker 1 of a"),
    ]  # fmt: skip
    assert scene.swap_executor.swap.rolled_out
    assert not scene.swap_executor.over
    scene.lanes.entries.remove(0)
    scene.step()
    assert scene.workers.duties[2:] == [(0, 1)]
    assert old.name == "predecessor of worker 0 of a"
    scene.workers.observer.idle(old)
    scene.step()
    scene.workers.end(old)
    scene.step()
    assert scene.swap_executor.over
    assert scene.workers.pids() == [2, 3]


@pytest.mark.parametrize("loads", [False, True])
def test_a_predecessor_that_is_not_there_is_not_waited_for(loads: bool) -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"workers_per_device": 1, "slots": 64})
    old = scene.workers.worker_slots[0]
    scene.serve()
    scene.workers.end(old, owned=False)
    old.start_at_ns = 99
    if loads:
        scene.workers.start(old)
    scene.lanes.entries.remove(0)
    scene.step()
    assert old.start_at_ns is None
    if loads:
        scene.workers.end(old)
        scene.step()
    assert scene.swap_executor.over
    assert scene.workers.pids() == [2]


def test_a_failed_heir_of_another_entry_leaves_the_old_worker_where_it_is() -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"slots": 64})
    scene.serve()
    scene.workers.end(scene.heir())
    scene.step()
    (heir,) = scene.workers.off_plan
    assert (heir.name, scene.workers.duties) == ("replacement of worker 0 of a", [(2, 0), (0, 2)])
    scene.workers.observer.idle(heir)
    scene.step()
    scene.workers.end(heir)
    scene.step()
    assert (scene.swap_executor.over, scene.commits, scene.workers.pids()) == (True, 0, [1])
