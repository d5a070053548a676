"""A generator's workers ring the clients of their lanes, and hear when these are gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from batchpool.control.process_messages import AddWorkerLane, DropLane, EndSequences
from tests.unit.supervisor.fleet.fleet_scene import FleetScene, identity
from tests.unit.supervisor.plan.test_diff import plan
from tests.unit.supervisor.plan.test_generator_settings import SPEC


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[FleetScene]:
    """A generator and a model b with a worker each."""
    both = plan("story", "b", specs={"story": SPEC}, server={"frontends": 1})
    scene = FleetScene(monkeypatch, both)
    scene.fleet.start_all()
    for child in scene.fleet.everybody():
        scene.told(child)
    yield scene
    scene.close()


def test_a_lane_comes_with_its_clients_bell(scene: FleetScene) -> None:
    fleet = scene.fleet
    client = scene.client()
    client.pinned = True
    lane = fleet.open_lane(client, fleet.entries[0], handed=True)
    assert client.bells is not None
    ((message, fds),) = scene.told_with(fleet.workers.worker_slots[0].child)
    slots, arena = lane.layout.slots, lane.layout.arena_bytes
    assert message == AddWorkerLane(lane.number, lane.serial, slots, False, arena, rings=True)
    assert fds == (identity(lane.fd), identity(client.bells.to_client))


def test_the_end_of_a_client_ends_its_sequences_before_the_lane_is_closed(
    scene: FleetScene,
) -> None:
    fleet = scene.fleet
    story, other = fleet.workers.worker_slots
    lanes = [fleet.open_lane(scene.client(), fleet.entries[0], handed=True) for _ in range(2)]
    batches = fleet.open_lane(scene.client(), fleet.entries[1], handed=True)
    for worker in (story.child, other.child):
        scene.told(worker)
    fleet.retire_lane(lanes[0])
    fleet.evict_lane(lanes[1])
    fleet.retire_lane(batches)
    assert scene.told(story.child) == [EndSequences(lane.number) for lane in lanes]
    assert scene.told(other.child) == []
    fleet.lane_closed(lanes[0].number)
    assert scene.told(story.child) == [DropLane(lanes[0].number)]


def test_a_worker_that_starts_later_hears_that_a_client_is_gone(scene: FleetScene) -> None:
    fleet = scene.fleet
    lane = fleet.open_lane(scene.client(), fleet.entries[0], handed=True)
    fleet.retire_lane(lane)
    story = fleet.workers.worker_slots[0]
    fleet.was_ready = True
    scene.end(story.child, "serving")
    fleet.workers.start(story)
    told = scene.told(story.child)
    assert [type(message) for message in told[1:]] == [AddWorkerLane, EndSequences]
