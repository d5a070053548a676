"""Lanes and entries of a reload, with a real lane table and a double of the process fleet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batchpool.core.errors import Overloaded
from batchpool.core.layout.states import LaneGate
from batchpool.supervisor.plan.plan import ModelPlan, Plan
from batchpool.supervisor.reload.lane_migration_executor import LaneMigrationExecutor
from batchpool.supervisor.resources.client_connection import ClientConnection
from batchpool.supervisor.resources.held_bells import HeldBells
from batchpool.supervisor.resources.lane_table import LaneEntry, LaneTable
from tests.unit.supervisor.plan.test_diff import plan, revise

S = 10**9


class ProcessFleetDouble:
    """A process fleet as far as a lane migration uses it. notes: its calls in order."""

    def __init__(self, lane_table: LaneTable) -> None:
        self.lane_table = lane_table
        self.notes: list[tuple[str, int]] = []
        self.no_room = False
        self.has_workers: set[int] = set()
        self.stuck: set[int] = set()  # entries of workers that do not end
        self.workers = SimpleNamespace(
            has_any=lambda entry: entry in self.has_workers,
            has_stuck=lambda entry: entry in self.stuck,
        )

    def add_entry(self, model: ModelPlan) -> None:
        self.notes.append(("add", model.entry))

    def retire_entry(self, model: ModelPlan) -> None:
        self.notes.append(("retire", model.entry))

    def open_lane(self, who: ClientConnection, model: ModelPlan, *, handed: bool) -> LaneEntry:
        if self.no_room:
            raise Overloaded("full")
        layout = model.client_lane if who.frontend is None else model.lane
        assert who.bells is not None
        entry = self.lane_table.add(
            model.entry, who.owner, layout, who.bells, client=who.number, pinned=False
        )
        entry.handed = handed
        return entry

    def move_lanes(self, entries: list[LaneEntry]) -> None:
        for entry in entries:
            entry.moved = True
            self.notes.append(("move", entry.number))

    def retire_lane(self, entry: LaneEntry) -> None:
        entry.closing = True
        self.notes.append(("close", entry.number))

    def evict_lane(self, entry: LaneEntry) -> None:
        entry.closing = entry.evicted = True
        self.notes.append(("evict", entry.number))


class Scene:
    """A front end and a local client, both with a lane to the only model, of 64 slots."""

    def __init__(self, new: Plan | None = None) -> None:
        old = plan(slots=64, max_batch=8, server={"client_slots": 8, "drain_s": 5.0})
        small = {"max_batch": 8, "server": {"client_slots": 8, "drain_s": 5.0}}
        self.old = old
        self.new = revise(old, plan(slots=32, **small) if new is None else new)
        self.now_ns = 0
        self.bells = HeldBells.of_frontend()
        self.lane_table = LaneTable(old.max_lanes)
        self.process_fleet = ProcessFleetDouble(self.lane_table)
        self.clients = [self.client("frontend 0", 0), self.client("client 1", None)]
        self.lanes = [
            self.process_fleet.open_lane(who, old.models[0], handed=True) for who in self.clients
        ]
        resources, process_fleet = (
            cast(Any, SimpleNamespace(lanes=self.lane_table)),
            cast(Any, self.process_fleet),
        )
        clock = lambda: self.now_ns  # noqa: E731
        self.lane_migration = LaneMigrationExecutor(
            old, self.new, resources, process_fleet, lambda: self.clients, clock
        )

    def client(self, owner: str, frontend: int | None) -> ClientConnection:
        number = int(frontend is None)
        return ClientConnection(
            owner, cast(Any, None), None, -1, frontend, self.bells, number=number
        )

    def open(self) -> None:
        """The batcher opens every gate."""
        for entry in self.lane_table:
            os.pwrite(
                entry.fd, int(LaneGate.OPEN).to_bytes(8, "little"), entry.layout.words["gate"]
            )

    def take(self) -> list[tuple[str, int]]:
        notes, self.process_fleet.notes = self.process_fleet.notes, []
        return notes

    def coming(self) -> list[LaneEntry]:
        return self.lane_table.of_entry(1)

    def close(self) -> None:
        for entry in self.lane_table:
            self.lane_table.remove(entry.number)
        self.bells.close()


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.close()


def committed(scene: Scene) -> Scene:
    """Its lanes are open, and the gates of the old ones have moved."""
    scene.lane_migration.ready()
    scene.open()
    assert scene.lane_migration.ready()
    for entry in scene.coming():
        entry.handed = True
    scene.lane_migration.commit()
    assert scene.take() == [("add", 1), ("move", 0), ("move", 1)]
    return scene


def test_everybody_has_a_lane_before_it_is_ready(scene: Scene) -> None:
    assert not scene.lane_migration.ready(), "the batcher has not opened them"
    assert [(e.owner, e.layout.slots, e.handed) for e in scene.coming()] == [
        ("frontend 0", 32, False), ("client 1", 8, False),
    ]  # fmt: skip
    scene.open()
    assert scene.lane_migration.ready()
    scene.clients += [scene.client("frontend 1", 1), scene.client("client 2", None)]
    assert not scene.lane_migration.ready(), (
        "another front end has come; a local client asks by itself"
    )
    assert [entry.owner for entry in scene.coming()][2:] == ["frontend 1"]
    scene.open()
    assert scene.lane_migration.ready()


def test_lanes_are_closed_as_their_clients_leave_and_the_entry_is_retired(scene: Scene) -> None:
    lane_migration = committed(scene).lane_migration
    scene.process_fleet.has_workers.add(0)
    lane_migration.step()
    assert (scene.take(), lane_migration.leaving()) == ([], "2 old lanes of a")
    scene.lanes[0].left = True
    lane_migration.step()
    assert scene.take() == [("close", 0)]
    scene.lane_table.remove(0)
    assert (lane_migration.leaving(), lane_migration.has_any(0)) == ("1 old lane of a", True)
    scene.now_ns = 5 * S
    lane_migration.step()
    assert scene.take() == [("evict", 1)]
    lane_migration.step()
    assert scene.take() == [], "once"
    scene.lane_table.remove(1)
    assert (lane_migration.leaving(), lane_migration.has_any(0)) == ("", False)
    lane_migration.settle()
    assert not lane_migration.over, "a worker's rows are not dealt with"
    scene.process_fleet.has_workers.clear()
    lane_migration.step()
    assert (scene.take(), lane_migration.over) == ([("retire", 0)], True)


def test_a_number_that_another_lane_has_by_now_is_left_alone(scene: Scene) -> None:
    lane_migration = committed(scene).lane_migration
    scene.lane_table.remove(0)  # its client died
    scene.process_fleet.open_lane(scene.clients[0], scene.new.models[0], handed=True)
    assert scene.lane_table.get(0) is not None
    scene.now_ns = 5 * S
    lane_migration.step()
    assert scene.take() == [("evict", 1)]


def test_a_lane_that_its_client_never_heard_of_is_closed_at_once(scene: Scene) -> None:
    scene.lanes[1].handed = False
    lane_migration = committed(scene).lane_migration
    lane_migration.step()
    assert scene.take() == [("close", 1)]


def test_undone_is_as_if_nothing_had_been(scene: Scene) -> None:
    scene.lane_migration.ready()
    scene.lane_migration.undo()
    scene.lane_migration.undo()
    numbers = [entry.number for entry in scene.coming()]
    assert scene.take() == [("add", 1), *(("close", n) for n in numbers)]
    scene.lane_migration.settle()
    assert not scene.lane_migration.over
    for number in numbers:
        scene.lane_table.remove(number)
    scene.lane_migration.step()
    assert (scene.take(), scene.lane_migration.over) == ([("retire", 1)], True)
    assert [entry.model for entry in scene.lane_table] == [0, 0]


def test_no_room_for_a_lane_is_a_failure(scene: Scene) -> None:
    scene.process_fleet.no_room = True
    assert not scene.lane_migration.ready()
    assert scene.lane_migration.failure == "there is no room for its lanes: full"


def test_a_plan_that_keeps_its_lanes_moves_none() -> None:
    same = plan(slots=64, max_batch=8, max_wait_ms=1.0, server={"client_slots": 8})
    scene = Scene(same)
    assert scene.lane_migration.ready()
    scene.lane_migration.commit()
    scene.lane_migration.step()
    scene.lane_migration.settle()
    assert (scene.take(), scene.lane_migration.over) == ([], True)
    scene.close()


def test_what_a_worker_keeps_that_does_not_end_is_waited_for_by_nobody(scene: Scene) -> None:
    lane_migration = committed(scene).lane_migration
    scene.process_fleet.has_workers.add(0)
    assert lane_migration.has_any(0), "clients have lanes there"
    scene.process_fleet.stuck.add(0)
    lane_migration.settle()
    assert (lane_migration.over, lane_migration.waits_for_stuck, scene.take()) == (False, True, [])
    scene.lanes[0].left = True
    lane_migration.step()
    assert scene.take() == [("close", 0)], "its clients are seen off as ever"
    assert lane_migration.has_any(0)
    scene.now_ns = 5 * S
    lane_migration.step()
    assert scene.take() == [("evict", 1)]
    assert not lane_migration.has_any(0), "nobody else need serve there any more"
    scene.lane_table.remove(0)
    lane_migration.step()
    assert (lane_migration.over, scene.take()) == (False, [])

    scene.process_fleet.stuck.clear()  # it has ended at last, and the batcher has let its rows go
    scene.process_fleet.has_workers.clear()
    assert lane_migration.has_any(0)
    scene.lane_table.remove(1)
    lane_migration.step()
    assert (lane_migration.over, scene.take()) == (True, [("retire", 0)])


def test_others_are_waited_for_although_one_does_not_end(scene: Scene) -> None:
    lane_migration = committed(scene).lane_migration
    lane_migration.settle()
    assert not lane_migration.waits_for_stuck, "its lanes are there, and every worker ends"
