"""Each child is told all it needs when it starts, and is started again in its time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.control.process_messages import (
    AddBatcherLane,
    AddWorker,
    AddWorkerLane,
    Begin,
    CloseLane,
    SetDuty,
    StartBatcher,
    StartWorker,
    WorkerFailed,
    WorkerLost,
    WorkerReady,
)
from batchpool.core.errors import StartError
from batchpool.supervisor.children.child import Child
from batchpool.supervisor.children.worker_slot import WorkerSlot
from tests.unit.shm.scarcity import open_files
from tests.unit.supervisor.fleet.fleet_scene import FleetScene, S, identity
from tests.unit.supervisor.plan.test_diff import plan


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetScene]:
    """Models a and b with a worker each, and two front ends; nothing has started."""
    server = {"frontends": 2, "stall_timeout_s": 0.4, "client_slots": 8}
    scene = FleetScene(monkeypatch, plan("a", "b", server=server, max_batch=4))
    yield scene
    scene.close()


def serve(scene: FleetScene) -> list[WorkerSlot]:
    """Start all children and let them serve."""
    fleet = scene.fleet
    fleet.start_all()
    for child in fleet.everybody():
        child.state = "serving"
    for worker_slot in fleet.workers:
        assert worker_slot.child is not None
        assert worker_slot.worker_segment is not None
        worker_slot.worker_segment.ready.set(1)
        fleet.workers.says(worker_slot.child, WorkerReady())
    fleet.was_ready = True
    scene.told(fleet.batcher.child)
    return fleet.workers.worker_slots


def did_work(worker_slot: WorkerSlot) -> None:
    """Let a worker have finished a good batch."""
    assert worker_slot.worker_segment is not None
    worker_slot.worker_segment.good.set(1)


def test_every_process_of_the_plan_is_started_and_watched(scene: FleetScene) -> None:
    fleet = scene.fleet
    fleet.start_all()
    names = ["batcher", "frontend 0", "frontend 1", "worker 0 of a", "worker 0 of b"]
    assert scene.children.started == names
    assert [child.slot.name for child in scene.watched] == names
    assert fleet.everybody() == scene.watched
    assert {child.started_ns for child in scene.watched} == {100 * S}


def test_a_batcher_is_told_models_lanes_and_workers_before_it_begins(scene: FleetScene) -> None:
    fleet = scene.fleet
    local = fleet.open_lane(scene.client(), fleet.entries[0], handed=True)
    theirs = fleet.open_lane(scene.client("f", frontend=0), fleet.entries[1], handed=True)
    fleet.move_lanes([local])
    fleet.start_all()
    (start, fds), first, second, begin, *rest = scene.told_with(fleet.batcher.child)
    assert isinstance(start, StartBatcher)
    assert [(form.model, form.limits.max_batch) for form in start.models] == [(0, 4), (1, 64)]
    assert (start.draining, start.max_lanes, start.processes) == (0, 8, 3)
    assert start.beat_ns == S // 10, "a quarter of stall_timeout_s"
    assert fds == tuple(map(identity, scene.fds[:4]))
    bells = local.bells
    assert first == (
        AddBatcherLane(local.number, local.serial, 0, 8, 1, True),
        tuple(map(identity, (local.fd, bells.to_client, bells.from_client))),
    )
    assert second == (
        AddBatcherLane(theirs.number, theirs.serial, 1, theirs.layout.slots, 0, False),
        tuple(map(identity, (theirs.fd, theirs.bells.to_client))),
    )
    assert begin == (Begin(False, ()), ())
    assert [type(message) for message, _ in rest] == [AddWorker, AddWorker]


def test_a_new_batcher_is_told_what_an_earlier_one_did_not_finish(scene: FleetScene) -> None:
    """The dead worker and the lane that closes come after the takeover, in which it finds their
    rows."""
    slots = serve(scene)
    fleet = scene.fleet
    closing, evicted = (
        fleet.open_lane(scene.client(name), fleet.entries[0], handed=True) for name in "ab"
    )
    fleet.retire_lane(closing)
    fleet.evict_lane(evicted)
    dead, number = slots[0].child, slots[0].number
    assert dead is not None
    scene.end(dead)
    fleet.batcher.set_drain(5)
    scene.end(fleet.batcher.child, "running")
    assert fleet.batcher.slot.last_error == "was killed by SIGKILL"
    fleet.tick()
    told = scene.told(fleet.batcher.child)
    assert told[0].draining == 5
    workers = [(m.worker, m.pid, m.on_duty) for m in told if isinstance(m, AddWorker)]
    alive = slots[1].child
    assert alive is not None
    assert workers == [(slots[1].number, alive.pid, True), (number, dead.pid, False)]
    assert told[5:8] == [
        Begin(True, (evicted.number,)), CloseLane(closing.number), WorkerLost(number, "died"),
    ]  # fmt: skip


def test_a_front_end_is_started_on_its_socket_with_its_own_heartbeat(scene: FleetScene) -> None:
    scene.fleet.frontends.start(1)
    flags = dict(zip(scene.children.flags[::2], scene.children.flags[1::2], strict=True))
    fds = [flags[name] for name in ("--listen-fds", "--heartbeats-fd", "--counters-fd")]
    assert fds == [str(scene.fds[i]) for i in (5, 1, 2)]
    assert flags["--flight-recorder-fd"] == str(scene.fds[4]), "for reading"
    assert (flags["--heartbeats"], flags["--heartbeat"]) == ("3", "2")


def test_a_worker_is_told_its_model_and_the_lanes_to_it(scene: FleetScene) -> None:
    fleet = scene.fleet
    client = scene.client()
    own = fleet.open_lane(client, fleet.entries[1], handed=True)
    fleet.open_lane(client, fleet.entries[0], handed=True)
    fleet.batcher.start(fleet.workers, takeover=False)
    scene.told(fleet.batcher.child)
    (_, worker_slot) = fleet.workers.worker_slots
    fleet.workers.start(worker_slot)
    (start, fds), (lane, lane_fds) = scene.told_with(worker_slot.child)
    assert isinstance(start, StartWorker)
    assert (start.place, start.import_name, start.max_batch) == (0, "m:b", 64)
    assert (start.max_lanes, start.frontends, start.row) == (8, 2, 0)
    assert worker_slot.bell is not None
    kept = (worker_slot.fd, worker_slot.bell.fd, scene.fds[0], scene.fds[2])
    assert fds == tuple(map(identity, kept))
    assert lane == AddWorkerLane(own.number, own.serial, 8, False)
    assert lane_fds == (identity(own.fd),)
    ((introduced, told_fds),) = scene.told_with(fleet.batcher.child)
    child = worker_slot.child
    assert child is not None
    assert introduced == AddWorker(1, 0, child.pid, 1, 64, 0, True, 0)
    assert told_fds == fds[:2]


def test_a_worker_for_which_there_is_no_room_holds_nothing(scene: FleetScene) -> None:
    (worker_slot, _) = scene.fleet.workers.worker_slots
    before = open_files()
    scene.children.room = False
    with pytest.raises(StartError, match="no room"):
        scene.fleet.workers.start(worker_slot)
    assert (open_files(), worker_slot.child, worker_slot.bell) == (before, None, None)
    scene.children.room = True
    scene.fleet.workers.start(worker_slot)
    assert worker_slot.number == 2, "no number is used twice"


@pytest.mark.parametrize("useful", [True, False])
def test_a_worker_that_ended_is_followed_at_once_only_after_useful_work(
    scene: FleetScene, useful: bool
) -> None:
    slots = serve(scene)
    worker_slot = slots[0]
    fds = worker_slot.fd
    assert worker_slot.bell is not None
    bell_fd = worker_slot.bell.fd
    if useful:
        did_work(worker_slot)
    scene.end(worker_slot.child)
    assert (worker_slot.child, worker_slot.ready) == (None, False)
    assert scene.told(scene.fleet.batcher.child) == [WorkerLost(1, "was killed by SIGKILL")]
    scene.children.started.clear()
    due_ns = scene.fleet.workers.tick(scene.now_ns)
    assert scene.children.started == (["worker 0 of a"] if useful else [])
    if not useful:
        assert due_ns == scene.now_ns + S // 2
        scene.fleet.workers.tick(due_ns)
    assert scene.children.started == ["worker 0 of a"]
    assert (worker_slot.number, os.fstat(fds).st_size > 0) == (3, True)
    scene.fleet.workers.handled(1)
    for fd in (fds, bell_fd):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def test_a_worker_that_cannot_be_started_again_is_tried_again(scene: FleetScene) -> None:
    worker_slot = serve(scene)[0]
    did_work(worker_slot)
    scene.end(worker_slot.child)
    scene.children.room = False
    due_ns = scene.fleet.workers.tick(scene.now_ns)
    assert worker_slot.process_slot.last_error == "cannot start worker 0 of a: no room"
    assert due_ns == scene.now_ns + S // 2
    scene.children.room = True
    scene.fleet.workers.tick(due_ns - 1)
    assert worker_slot.child is None
    scene.fleet.workers.tick(due_ns)
    assert worker_slot.child is not None


def test_a_model_that_cannot_load_ends_the_start_with_its_own_words(scene: FleetScene) -> None:
    scene.fleet.start_all()
    child = scene.fleet.workers.worker_slots[1].child
    assert child is not None
    scene.fleet.workers.says(child, WorkerFailed("no such file: weights"))
    with pytest.raises(StartError) as caught:
        scene.end(child, status=1)
    assert str(caught.value) == (
        "model 'b' cannot be served: worker 0 of b on cpu failed: no such file: weights"
    )


@pytest.mark.parametrize("name", ["batcher", "frontend 1"])
def test_any_other_child_that_ends_before_the_pool_is_ready_ends_the_start(
    scene: FleetScene, name: str
) -> None:
    scene.fleet.start_all()
    child = next(child for child in scene.watched if child.slot.name == name)
    with pytest.raises(StartError, match=f"{name} was killed by SIGKILL before the pool was"):
        scene.end(child)
    assert (scene.unwatched, child.closed, child.state) == ([child], True, "gone")


def test_a_pool_that_stops_replaces_no_front_end_and_still_its_batcher(scene: FleetScene) -> None:
    serve(scene)
    fleet = scene.fleet
    scene.end(fleet.frontends.children[0], "serving")
    fleet.stopping = True
    fleet.frontends.stop()
    scene.end(fleet.frontends.children[1], "serving")
    scene.end(fleet.batcher.child, "running")
    scene.children.started.clear()
    scene.now_ns += 60 * S
    fleet.tick()
    assert (fleet.frontends.children, scene.children.started) == ([None, None], ["batcher"])


def test_front_ends_that_are_to_stop_get_a_sigterm(scene: FleetScene) -> None:
    serve(scene)
    children: list[Any] = [*scene.fleet.frontends.children]
    scene.fleet.frontends.stop()
    assert [child.process.signals for child in children] == [[15], [15]]


def test_all_serve_when_every_worker_is_warm_and_every_front_end_listens(
    scene: FleetScene,
) -> None:
    slots = serve(scene)
    fleet = scene.fleet
    assert fleet.all_serve()
    slots[1].ready = False
    assert not fleet.all_serve()
    slots[1].ready = True
    child = fleet.frontends.children[1]
    assert isinstance(child, Child)
    child.state = "starting"
    assert not fleet.all_serve()


def test_new_batches_change_over_in_one_message(scene: FleetScene) -> None:
    first, second = serve(scene)
    workers = scene.fleet.workers
    workers.relieve(first, second)
    workers.relieve(None, first)
    assert scene.told(scene.fleet.batcher.child) == [SetDuty(1, (1,), (2,)), SetDuty(2, (), (1,))]
    assert [(s.on_duty, s.duty) for s in (first, second)] == [(False, 2), (False, 1)]


def test_a_worker_off_duty_is_idle_only_by_a_report_on_its_last_change(scene: FleetScene) -> None:
    first, second = serve(scene)
    workers = scene.fleet.workers
    idle: list[WorkerSlot] = []
    workers.observer = cast(Any, SimpleNamespace(idle=idle.append))
    workers.relieve(first, second)
    workers.idle(1, 1)
    assert idle == [], "it is on duty"
    workers.relieve(second, first)
    workers.relieve(first, second)
    workers.idle(2, 1)
    assert idle == [], "it has been on duty since"
    workers.idle(2, 3)
    assert idle == [second]


def test_a_start_that_took_long_is_expected_to_take_long_again(scene: FleetScene) -> None:
    """Requests are taken for two starts and two seconds."""
    scene.fleet.start_all()
    scene.now_ns += 3 * S
    worker_slot = scene.fleet.workers.worker_slots[0]
    assert worker_slot.child is not None
    worker_slot.child.state = "starting"
    scene.fleet.workers.says(worker_slot.child, WorkerReady())
    assert (worker_slot.ready, worker_slot.child.state) == (True, "serving")
    assert (scene.state_page.serving[0], scene.state_page.accepting[0]) == (1, 1)
    did_work(worker_slot)
    scene.fleet.was_ready = True
    scene.end(worker_slot.child)
    scene.children.room = False
    assert (scene.state_page.serving[0], scene.state_page.accepting[0]) == (0, 1)
    scene.fleet.workers.tick(scene.now_ns)
    scene.now_ns += 8 * S - 1
    scene.fleet.workers.count_serving()
    assert scene.state_page.accepting[0] == 1
    scene.now_ns += 1
    scene.fleet.workers.count_serving()
    assert scene.state_page.accepting[0] == 0


def test_a_worker_that_ends_again_after_more_work_is_waited_for_as_long_again(
    scene: FleetScene,
) -> None:
    """Nothing has looked at its work between its start and its end."""
    worker_slot = serve(scene)[0]
    workers, accepting = scene.fleet.workers, scene.state_page.accepting
    did_work(worker_slot)
    scene.end(worker_slot.child)
    workers.tick(scene.now_ns)
    scene.now_ns += S
    assert worker_slot.child is not None
    workers.says(worker_slot.child, WorkerReady())
    did_work(worker_slot)
    scene.now_ns += 2 * S
    scene.end(worker_slot.child)
    scene.now_ns += 4 * S - 1  # two starts and two seconds
    workers.count_serving()
    assert accepting[0] == 1
    scene.now_ns += 1
    workers.count_serving()
    assert accepting[0] == 0


def test_a_reload_is_told_of_workers_that_become_warm_and_fills_the_slots_itself(
    scene: FleetScene,
) -> None:
    worker_slot = serve(scene)[0]
    workers = scene.fleet.workers
    seen: list[Any] = []

    def lost(slot: WorkerSlot, child: Child) -> bool:
        seen.append((slot, child))
        return True

    workers.observer = cast(Any, SimpleNamespace(warm=seen.append, lost=lost))
    child = worker_slot.child
    assert child is not None
    workers.says(child, WorkerReady())
    scene.end(child)
    assert seen == [worker_slot, (worker_slot, child)]
    workers.tick(scene.now_ns + 60 * S)
    assert worker_slot.child is None


def test_messages_that_a_child_had_no_room_for_are_sent_when_it_reads(scene: FleetScene) -> None:
    serve(scene)
    fleet = scene.fleet
    child = fleet.batcher.child
    assert child is not None
    child.channel.sock.setblocking(False)
    sent = 0
    while not child.outbox:
        sent += 1
        fleet.batcher.set_drain(sent)
    told = scene.told(child)
    assert [message.drain for message in told] == [*range(1, sent)]
    fleet.tick()
    assert [message.drain for message in scene.told(child)] == [sent]


@pytest.mark.parametrize("name", ["batcher", "frontend 1", "worker 0 of a"])
def test_the_loop_wakes_when_the_next_process_is_due_and_starts_one(
    scene: FleetScene, name: str
) -> None:
    serve(scene)
    scene.end(next(child for child in scene.watched if child.slot.name == name), "starting")
    scene.children.started.clear()
    scene.now_ns += 45 * S // 100
    assert scene.fleet.tick() == scene.now_ns + S // 20, "half a second after the end"
    for _ in range(3):
        scene.now_ns += S // 20
        scene.fleet.tick()
    assert scene.children.started == [name]
