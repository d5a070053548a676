"""Lanes and plans are told to the processes that need them, and to no other."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest

from batchpool.control.messages import PlanChanged
from batchpool.control.process_messages import (
    AddBatcherLane,
    AddModel,
    AddWorkerLane,
    CloseLane,
    DropLane,
    EvictLane,
    MoveLanes,
    RemoveModel,
    SetLimits,
)
from batchpool.supervisor.plan.plan import Plan
from tests.unit.supervisor.fleet.fleet_scene import FleetScene, S, identity
from tests.unit.supervisor.plan.test_diff import plan, revise


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetScene]:
    """Models a and b with a worker each and a front end; all were started and told so."""
    scene = FleetScene(monkeypatch, plan("a", "b", server={"frontends": 1}))
    scene.fleet.start_all()
    for child in scene.fleet.everybody():
        scene.told(child)
    level = logging.getLogger().level
    yield scene
    logging.getLogger().setLevel(level)
    scene.close()


def of_smaller_batches(old: Plan) -> Plan:
    model = old.models[0]
    smaller = replace(model, config=replace(model.config, max_batch=2))
    return replace(old, models=(smaller, *old.models[1:]))


def test_a_lane_is_told_to_the_batcher_and_to_its_models_workers_only(scene: FleetScene) -> None:
    fleet = scene.fleet
    client = scene.client()
    client.pinned = True
    lane = fleet.open_lane(client, fleet.entries[1], handed=False)
    assert (lane.handed, lane.owner, lane.client) == (False, "client", 1)
    (added,) = scene.told(fleet.batcher.child)
    assert isinstance(added, AddBatcherLane)
    assert (added.lane, added.serial, added.model) == (lane.number, lane.serial, 1)
    first, second = fleet.workers.worker_slots
    slots = lane.layout.slots
    assert scene.told(second.child) == [AddWorkerLane(lane.number, lane.serial, slots, True)]
    assert scene.told(first.child) == []


def test_lanes_of_front_ends_have_the_slots_of_front_ends(scene: FleetScene) -> None:
    fleet = scene.fleet
    model = fleet.entries[0]
    assert fleet.open_lane(scene.client(), model, handed=True).layout == model.client_lane
    frontend = scene.client("frontend", frontend=0)
    assert fleet.open_lane(frontend, model, handed=True).layout == model.lane


def test_the_end_of_a_lane_is_told_to_the_batcher_first(scene: FleetScene) -> None:
    """Its rows may be under way; its number is free when the batcher has closed it."""
    fleet = scene.fleet
    client = scene.client()
    moved, closed, evicted = (
        fleet.open_lane(client, fleet.entries[0], handed=True) for _ in range(3)
    )
    worker = fleet.workers.worker_slots[0].child
    for child in (fleet.batcher.child, worker):
        scene.told(child)
    fleet.move_lanes([moved, evicted])
    fleet.retire_lane(closed)
    fleet.evict_lane(evicted)
    assert scene.told(fleet.batcher.child) == [
        MoveLanes((moved.number, evicted.number)),
        CloseLane(closed.number),
        EvictLane(evicted.number),
    ]
    assert scene.told(worker) == []
    facts = [(lane.moved, lane.closing, lane.evicted) for lane in (moved, closed, evicted)]
    assert facts == [(True, False, False), (False, True, False), (True, True, True)]
    for _ in range(2):  # the second report finds nothing
        fleet.lane_closed(closed.number)
    assert scene.told(worker) == [DropLane(closed.number)]
    assert list(scene.lanes) == [moved, evicted]


def test_a_model_that_comes_or_leaves_is_told_to_the_batcher(scene: FleetScene) -> None:
    fleet = scene.fleet
    more = revise(scene.resources.plan, plan("a", "b", "c", server={"frontends": 1}))
    model = more.models[2]
    fleet.add_entry(model)
    (added,) = scene.told(fleet.batcher.child)
    assert isinstance(added, AddModel)
    assert (added.model.model, fleet.entries[model.entry]) == (model.entry, model)
    fleet.retire_entry(model)
    assert scene.told(fleet.batcher.child) == [RemoveModel(model.entry)]
    assert model.entry not in fleet.entries


def test_limits_between_two_plans_are_those_of_the_smaller_batches(scene: FleetScene) -> None:
    fleet, old = scene.fleet, scene.resources.plan

    def limits() -> list[list[int]]:
        told = scene.told(fleet.batcher.child)
        return [[form.limits.max_batch for form in message.models] for message in told]

    fleet.plan_begins(old, of_smaller_batches(old))
    assert limits() == [[2, 64]]
    fleet.plan_settled()
    assert limits() == [[64, 64]]
    fleet.plan_settled()
    assert limits() == []
    fleet.plan_begins(of_smaller_batches(old), old)
    assert limits() == [], "no batch of a worker of now is too large for one of the next"


def test_a_plan_that_counts_is_told_to_the_batcher_and_every_front_end(scene: FleetScene) -> None:
    fleet, old = scene.fleet, scene.resources.plan
    frontend = fleet.frontends.children[0]
    assert frontend is not None
    frontend.state = "serving"
    server = replace(old.server, log_level="debug", stall_timeout_s=0.4)
    new = replace(of_smaller_batches(old), server=server)
    fleet.plan_begins(old, new)
    scene.told(fleet.batcher.child)
    fleet.plan_counts(old, new)
    assert (scene.resources.plan, scene.named) == (new, [new])
    assert fleet.entries[0] == new.models[0]
    (limits,) = scene.told(fleet.batcher.child)
    assert isinstance(limits, SetLimits)
    assert [form.limits.max_batch for form in limits.models] == [2, 64]
    assert (limits.beat_ns, limits.log_level) == (S // 10, "debug")
    assert logging.getLogger().level == logging.DEBUG
    (changed,) = scene.told(frontend)
    assert isinstance(changed, PlanChanged)
    assert [form.max_batch for form in changed.models] == [2, 64]
    assert fleet.tick() == scene.now_ns + S // 10, "the watchdog looks as often as it says"


def test_a_front_end_that_does_not_serve_yet_is_sent_nothing(scene: FleetScene) -> None:
    """It would take the message for the answer to its own question."""
    scene.fleet.frontends.send_plan_to_all()
    assert scene.told(scene.fleet.frontends.children[0]) == []


def test_a_front_end_is_handed_each_of_its_new_lanes_once(scene: FleetScene) -> None:
    fleet = scene.fleet
    child = fleet.frontends.children[0]
    assert child is not None
    child.state = "serving"
    client = scene.client(fleet.frontends.owner_of(child), frontend=0)
    lane = fleet.open_lane(client, fleet.entries[1], handed=False)
    fleet.open_lane(client, fleet.entries[0], handed=True)
    fleet.open_lane(scene.client("another", frontend=1), fleet.entries[0], handed=False)
    fleet.frontends.send_plan_to_all()
    ((changed, fds),) = scene.told_with(child)
    assert [(form.serial, form.model) for form in changed.lanes] == [(lane.serial, 1)]
    assert (fds, lane.handed) == ((identity(lane.fd),), True)
    fleet.frontends.send_plan_to_all()
    ((changed, _),) = scene.told_with(child)
    assert changed.lanes == ()


def test_a_lane_to_a_model_that_is_not_in_force_is_handed_out_when_it_is(scene: FleetScene) -> None:
    fleet, old = scene.fleet, scene.resources.plan
    child = fleet.frontends.children[0]
    assert child is not None
    child.state = "serving"
    new = revise(old, plan("a", "b", "c", server={"frontends": 1}))
    fleet.add_entry(new.models[2])
    client = scene.client(fleet.frontends.owner_of(child), frontend=0)
    lane = fleet.open_lane(client, new.models[2], handed=False)
    fleet.frontends.send_plan_to_all()
    assert scene.told(child)[0].lanes == ()
    scene.resources.plan = new
    fleet.frontends.send_plan_to_all()
    assert [form.serial for form in scene.told(child)[0].lanes] == [lane.serial]
