"""A reload that gives a model other lanes, in the simulated pool: the supervisor's part.

The decisions of supervisor/reload/lane_migration.py are carried out on simulated lanes. The next
entry may have other tensors, other slots, or the same; its workers may die before the commit, which
undoes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from batchpool.core.layout.segments import Layout, lane_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.supervisor.reload.lane_migration import LaneMigration, MigrationAction, missing_lanes
from tests.sim.actors import SimLane, SimRecords
from tests.sim.callers import ClientActor
from tests.sim.memory import Fault
from tests.sim.model import DYNAMIC, LARGE, PLAIN, STAGES, arena_of_sim

if TYPE_CHECKING:
    from tests.sim.world import World

ENTRIES = 3
MS = 1_000_000


@dataclass(eq=False)
class SimEntry:
    """One entry: a model of these tensors in lanes of this layout.

    limits, words: of each of its stages.
    """

    number: int
    spec: ModelSpec
    layout: Layout
    limits: dict[Stage, Limits]
    words: dict[Stage, memoryview]

    @classmethod
    def of(cls, number: int, spec: ModelSpec, slots: int, limits: Limits) -> SimEntry:
        stages = stages_of(spec)
        words = {
            stage: memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q") for stage in stages
        }
        on_cpu = Limits(max(1, limits.max_batch - 1), 0, spreads=True)
        own = {stage: limits if stage is Stage.INFER else on_cpu for stage in stages}
        bucketed = {stage: own[stage].of_stage(stage_spec(spec, stage)) for stage in stages}
        layout = lane_layout(spec, slots, arena_of_sim(spec))
        return cls(number, spec, layout, bucketed, words)


class Moving:
    """One move at a time. coming, leaving: entries; ending: one without lanes or clients."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.coming: SimEntry | None = None
        self.leaving: SimEntry | None = None
        self.ending: SimEntry | None = None
        self.done = 0
        self._workers: list[SimRecords] = []
        self._departure = LaneMigration((), 0)

    @property
    def busy(self) -> bool:
        return bool(self.coming or self.leaving or self.ending)

    def step_or_begin(self, *, begins: bool) -> None:
        """Go on with a move, or begin one where there are to be any."""
        if begins and self._world.profile.moves:
            self.begin()
        self.step()

    def begin(self) -> None:
        """An entry comes: workers that load, and a lane for everybody."""
        world = self._world
        clients = {a.process.name: a for a in world.actors if isinstance(a, ClientActor)}
        if self.busy or len(world.lanes) + len(clients) > world.profile.max_lanes:
            return
        number = min(set(range(ENTRIES)) - set(world.entries))
        staged = STAGES.get(world.profile.staged)
        spec = staged or world.random.choice((PLAIN, DYNAMIC))
        spec = LARGE if world.profile.arena else spec
        slots = world.random.choice(world.profile.slots)
        entry = SimEntry.of(number, spec, slots, world.limits)
        self.coming = world.entries[number] = entry
        world.metrics.append(entry.words)
        batcher = world.batcher
        batcher.inbox.append(lambda: batcher.add_model(entry))
        has = [(lane.client.process.name, lane.entry.number) for lane in world.lanes.values()]
        for missing in missing_lanes(
            [(c, False) for c in clients], has, [], {world.serving.number: number}
        ):
            world.new_lane(clients[missing.owner], entry)
        self._workers = [
            world.start_worker(entry, stage)
            for stage in stages_of(spec)
            for _ in range(world.random.choice((1, 2)))
        ]

    def step(self) -> None:
        """Do what is due, as far as the supervisor gets."""
        world = self._world
        if self.coming:
            if any(records.worker.process.dead for records in self._workers):
                self._undo(self.coming)
            elif (world.quiet or world.random.random() < 0.3) and self._may_commit(self.coming):
                self._commit(self.coming)
        if self.leaving:
            self._go_on(self.leaving)
        if self.ending:
            self._retire(self.ending)

    def _lanes(self, entry: SimEntry) -> list[SimLane]:
        return [lane for lane in self._world.lanes.values() if lane.entry is entry]

    def _may_commit(self, entry: SimEntry) -> bool:
        opened = (LaneGate.OPEN, LaneGate.DRAINING)
        return all(records.memory.word("ready") for records in self._workers) and all(
            lane.gone or lane.memory.word("gate") in opened for lane in self._lanes(entry)
        )

    def _commit(self, entry: SimEntry) -> None:
        world = self._world
        self.coming, self.leaving, world.serving = None, world.serving, entry
        self.done += 1
        lanes = [lane for lane in self._lanes(self.leaving) if not lane.gone]
        for lane in lanes:
            lane.moved = True
        numbers = [lane.number for lane in lanes]
        patience_ns = world.random.choice((0, 3 * MS, 60_000 * MS))
        self._departure = LaneMigration(numbers, world.now_ns + patience_ns)
        for lane in lanes:
            if not lane.handed:  # its client was still on the one before
                self._departure.left(lane.number)
        batcher = world.batcher
        batcher.inbox.append(lambda: batcher.batcher.lanes.move(numbers))

    def _undo(self, entry: SimEntry) -> None:
        self.coming, self.ending = None, entry
        for lane in self._lanes(entry):
            self.close_lane(lane)
        self.release(entry)

    # -- lanes ----------------------------------------------------------------------------

    def hand_out(self, client: ClientActor) -> SimLane | None:
        """A client asks for a lane to the model as it is now; None: it has it."""
        serving = self._world.serving
        if client.lane.entry is serving:
            return None
        own = [lane for lane in self._lanes(serving) if lane.client is client]
        return next((lane for lane in own if not lane.evicted), None)

    def left(self, lane: SimLane) -> None:
        """A client says that it has let go of this lane."""
        if not lane.moved:
            raise Fault(f"lane {lane.number} was left and has not moved")
        if not (lane.gone or lane.evicted):
            self._departure.left(lane.number)

    def close_lane(self, lane: SimLane) -> None:
        """Tell the batcher, once, that nobody is owed anything there."""
        self.gone(lane)
        if not (lane.gone or lane.evicted):
            lane.gone = True
            batcher = self._world.batcher
            batcher.inbox.append(lambda: batcher.batcher.close_lane(lane.number))

    def _evict_lane(self, lane: SimLane) -> None:
        lane.evicted = True
        batcher = self._world.batcher
        batcher.inbox.append(lambda: batcher.batcher.evict_lane(lane.number))

    def gone(self, lane: SimLane) -> None:
        """Its client is dead, or nobody has it any more."""
        self._departure.gone(lane.number)

    def _go_on(self, entry: SimEntry) -> None:
        world = self._world
        for command in self._departure.step(world.now_ns):
            lane = world.lanes[command.lane]
            if command.action is MigrationAction.CLOSE:
                self.close_lane(lane)
            else:
                self._evict_lane(lane)
        if not self._lanes(entry):
            self.leaving, self.ending = None, entry
            self.release(entry)

    def release(self, entry: SimEntry) -> None:
        """Nobody needs the workers of an entry any more."""
        for records in self._world.workers.values():
            if records.entry is entry:
                self._world.release(records)

    def _retire(self, entry: SimEntry) -> None:
        world = self._world
        if self._lanes(entry) or any(r.entry is entry for r in world.workers.values()):
            return
        self.ending = None
        del world.entries[entry.number]
        batcher = world.batcher
        batcher.inbox.append(lambda: batcher.retire_model(entry))
