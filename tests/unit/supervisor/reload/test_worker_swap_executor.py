"""A reload carried out on workers that are none: who sits where, and what the batcher is told."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.config.schema import ServerConfig
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child, Post
from batchpool.supervisor.children.worker_slot import Seat
from batchpool.supervisor.fleet.workers import Workforce, new_seat
from batchpool.supervisor.plan.diff import revised
from batchpool.supervisor.plan.plan import Plan
from batchpool.supervisor.reload.worker_swap_executor import Succession
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


class WorkersDouble:
    """What a succession asks of a workforce. duties: (on, off), by the names of their versions."""

    def __init__(self, old: Plan) -> None:
        self.seats = [new_seat(old, m.entry, worker) for m in old.models for worker in m.workers]
        self.beside: list[Seat] = []
        self.witness: Any = None
        self.duties: list[tuple[int, int]] = []
        self.left: list[int] = []
        self.no_room = False
        self._pid = 0
        for seat in self.seats:
            self.start(seat)
            seat.ready = True

    def start(self, seat: Seat) -> None:
        if self.no_room:
            raise StartError("no room")
        self._pid += 1
        process = cast(Any, ProcessDouble(self._pid))
        seat.child = Child("worker", seat.post, process, cast(Any, None), -1, 0)
        seat.start_at_ns = None

    def relieve(self, on: Seat | None, off: Seat | None) -> None:
        self.duties.append((_pid(on), _pid(off)))
        for seat in (on, off):
            if seat is not None:
                seat.on_duty = seat is on

    def warm(self, seat: Seat) -> None:
        seat.ready = True
        self.witness.warm(seat)

    def end(self, seat: Seat, *, owned: bool = True) -> None:
        """Its process has ended, killed or by itself."""
        child = seat.child
        assert child is not None
        child.process.returncode = child.process.returncode or 1
        seat.child, seat.ready = None, False
        assert self.witness.lost(seat, child) is owned

    def leave_behind(self, seat: Seat) -> None:
        for seats in (self.seats, self.beside):
            if seat in seats:
                seats.remove(seat)
        self.left.append(_pid(seat))

    def pids(self) -> list[int]:
        return [_pid(seat) for seat in self.seats]


def _pid(seat: Seat | None) -> int:
    return 0 if seat is None or seat.child is None else seat.child.pid


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
        workers = cast(Workforce, self.workers)
        self.later_ns = 0
        self.succession = Succession(
            self.old, self.new, workers, self.lanes, self._commit, self._clock_ns
        )
        self.step()

    def _commit(self) -> None:
        self.commits += 1

    def _clock_ns(self) -> int:
        return time.monotonic_ns() + self.later_ns

    def stick(self, seat: Seat) -> Child:
        """Its process will not end."""
        assert seat.child is not None
        cast(Any, seat.child.process).stuck = True
        return seat.child

    def step(self) -> None:
        self.succession.step()

    def heir(self) -> Seat:
        """The one that loads."""
        (found,) = (s for s in self.workers.beside if s.part == "heir" and not s.ready)
        return found

    def serve(self) -> None:
        self.workers.warm(self.heir())
        self.step()

    def standby(self) -> Seat:
        return next(seat for seat in self.workers.beside if seat.part == "standby")


def test_all_new_and_with_no_history() -> None:
    scene = Scene()
    workers = scene.workers
    posts = [seat.post for seat in workers.seats]
    posts[0].restarts = 3
    scene.serve()
    assert workers.pids() == [3, 2]
    heir = workers.seats[0].post
    assert (heir.name, heir.restarts, heir.last_error) == (posts[0].name, 0, "")
    assert [seat.name for seat in workers.beside] == [
        "standby of worker 0 of a",
        "heir of worker 1 of a",
    ]
    assert scene.commits == 0
    scene.serve()
    assert (workers.pids(), scene.commits) == ([3, 4], 1)
    assert workers.duties == [(3, 1), (4, 2)]
    for standby in list(workers.beside):
        assert standby.child is not None
        assert standby.child.process.returncode is None, "it may have rows"
        workers.witness.idle(standby)
        scene.step()
        assert standby.child.process.returncode == -9
        workers.end(standby)
    scene.step()
    assert scene.succession.over
    assert (workers.beside, workers.witness) == ([], None)
    assert all(seat.of is scene.new.models[0] for seat in workers.seats)
    assert all(seat.server is scene.new.server for seat in workers.seats)


def test_no_room_for_an_heir_turns_back() -> None:
    scene = Scene()
    scene.workers.no_room = True
    scene.serve()  # and the next one cannot start
    assert scene.succession.reload.failure == "worker 1 of a cannot start: no room"
    assert scene.workers.pids() == [1, 2]
    assert scene.workers.duties == [(3, 1), (1, 3)]
    (heir,) = scene.workers.beside
    scene.workers.witness.idle(heir)
    scene.step()
    scene.workers.end(heir)
    scene.step()
    assert scene.succession.over
    assert scene.workers.beside == []
    assert all(seat.of is scene.old.models[0] for seat in scene.workers.seats)


def test_a_dead_standby_is_loaded_anew_by_the_old_plan() -> None:
    scene = Scene()
    scene.serve()
    scene.workers.end(scene.standby())
    scene.step()
    scene.workers.end(scene.heir())
    scene.step()
    refill = scene.standby()
    assert (refill.of, _pid(refill)) == (scene.old.models[0], 5)
    assert scene.workers.pids() == [3, 2], "until then the heir serves"
    scene.workers.warm(refill)
    scene.step()
    assert scene.workers.pids() == [5, 2]
    assert scene.workers.duties[-1] == (5, 3)


@pytest.mark.parametrize("heir_dies", [False, True])
def test_a_seat_for_which_nobody_can_be_had_is_filled_as_any_other(heir_dies: bool) -> None:
    scene = Scene()
    scene.serve()
    scene.workers.end(scene.standby())
    scene.workers.end(scene.heir())
    scene.workers.no_room = True
    if heir_dies:
        scene.workers.end(scene.workers.seats[0])
    scene.step()
    empty = scene.workers.seats[0]
    assert (empty.child, empty.start_at_ns, empty.on_duty) == (None, 0, True)
    assert empty.of is scene.old.models[0]
    assert scene.workers.duties[-1] == (0, 0 if heir_dies else 3)
    for heir in list(scene.workers.beside):
        scene.workers.witness.idle(heir)
        scene.step()
        scene.workers.end(heir)
    scene.step()
    assert scene.succession.over
    assert scene.workers.seats[0] is empty


def test_a_worker_that_was_not_there_needs_no_standby() -> None:
    """It crashed again and again: that may be what the reload is to mend."""
    scene = Scene()
    first, second = scene.workers.seats
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
    assert scene.succession.over


def test_more_workers_and_fewer() -> None:
    more = Scene(old={"workers_per_device": 1})
    more.serve()
    more.serve()
    assert (more.workers.pids(), more.commits) == ([2, 3], 1)
    assert more.workers.duties == [(2, 1), (3, 0)]

    undone = Scene(old={"workers_per_device": 1}, new={"workers_per_device": 3})
    undone.serve()
    undone.serve()
    undone.workers.end(undone.workers.seats[1])
    undone.step()
    assert undone.workers.pids() == [1]

    fewer = Scene(new={"workers_per_device": 1})
    fewer.serve()
    assert (fewer.workers.pids(), fewer.commits) == ([3], 1)
    assert fewer.workers.duties == [(3, 1), (0, 2)]
    assert [seat.part for seat in fewer.workers.beside] == ["standby", "standby"]


def test_the_end_of_the_pool_ends_only_who_loads() -> None:
    scene = Scene()
    scene.serve()
    heir, witness = scene.heir(), scene.workers.witness
    scene.succession.abandon()
    assert heir.child is not None
    assert heir.child.process.returncode == -9
    assert (witness, scene.workers.witness) == (scene.succession, None)
    assert scene.workers.pids() == [3, 2]
    assert _pid(scene.standby()) == 1, "it may have rows in flight"


def test_others_are_none_of_its_business() -> None:
    scene = Scene()
    stranger = Seat(
        0, scene.old.models[0].workers[0], Post("x"), scene.old.models[0], ServerConfig()
    )
    witness = scene.workers.witness
    witness.warm(stranger)
    witness.idle(stranger)
    assert not witness.lost(stranger, cast(Child, SimpleNamespace()))


def test_a_moved_models_old_workers_serve_until_their_lanes_are_gone() -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"slots": 64})
    old = scene.workers.seats[0]
    scene.serve()
    scene.lanes.open = False
    scene.serve()
    assert (scene.commits, scene.workers.duties) == (0, [(2, 0), (3, 0)])
    assert [seat.name for seat in scene.workers.seats] == [
        "worker 0 of a", "heir of worker 0 of a", "heir of worker 1 of a",
    ], "no client has a lane to them yet"  # fmt: skip
    scene.lanes.open = True
    scene.step()
    assert scene.commits == 1
    assert [(seat.model, seat.name) for seat in scene.workers.seats] == [
        (0, "predecessor of worker 0 of a"), (1, "worker 0 of a"), (1, "worker 1 of a"),
    ]  # fmt: skip
    assert scene.succession.reload.served
    assert not scene.succession.over
    scene.lanes.entries.remove(0)
    scene.step()
    assert scene.workers.duties[2:] == [(0, 1)]
    assert old.name == "predecessor of worker 0 of a"
    scene.workers.witness.idle(old)
    scene.step()
    scene.workers.end(old)
    scene.step()
    assert scene.succession.over
    assert scene.workers.pids() == [2, 3]


@pytest.mark.parametrize("loads", [False, True])
def test_a_predecessor_that_is_not_there_is_not_waited_for(loads: bool) -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"workers_per_device": 1, "slots": 64})
    old = scene.workers.seats[0]
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
    assert scene.succession.over
    assert scene.workers.pids() == [2]


def test_a_failed_heir_of_another_entry_leaves_the_old_worker_where_it_is() -> None:
    scene = Scene(old={"workers_per_device": 1}, new={"slots": 64})
    scene.serve()
    scene.workers.end(scene.heir())
    scene.step()
    (heir,) = scene.workers.beside
    assert (heir.name, scene.workers.duties) == ("heir of worker 0 of a", [(2, 0), (0, 2)])
    scene.workers.witness.idle(heir)
    scene.step()
    scene.workers.end(heir)
    scene.step()
    assert (scene.succession.over, scene.commits, scene.workers.pids()) == (True, 0, [1])
