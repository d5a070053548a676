"""The processes of the simulated pool, each one step at a time: the batcher and the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchpool.batcher import batcher as pool_batcher
from batchpool.batcher import recovery
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.layout.segments import Layout
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.tensors.stages import Stage, stage_spec, stages_of
from batchpool.shm.lane import Lane
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.device_errors import MustRestart
from batchpool.worker.worker import Worker
from tests.sim.memory import Fault, Killed, Process, SimMemory
from tests.sim.model import SimBackend
from tests.sim.rules import LaneRules, RecordRules, Ticket
from tests.sim.turns import check_turns

if TYPE_CHECKING:
    from tests.sim.callers import ClientActor
    from tests.sim.lane_migration import SimEntry
    from tests.sim.world import World


class Actor:
    """One process. `rung`: its doorbell; `inbox`: what the supervisor told it, as calls."""

    def __init__(self, world: World, role: str, number: int) -> None:
        self.world = world
        self.process = Process(f"{role} {number}", role, world.pulse)
        self.process.kill_at = world.plan.get(self.process.name, -1)
        self.inbox: deque[Callable[[], None]] = deque()
        self.rung = True
        self.busy = False
        self.started = True  # else its first message is how it starts
        self.wake_at_ns = NEVER_NS

    def ring(self) -> None:
        self.rung = True

    def take_step(self) -> None:
        """One step: a message, or the process's own work; messages may be late."""
        self.process.since = self.world.events
        self.process.now_ns = self.world.now_ns
        self.rung = False
        if self.inbox and (
            not self.started or self.world.quiet or self.world.random.random() < 0.5
        ):
            self.started = True
            self.inbox.popleft()()
            self.rung = True
        else:
            self.step()

    def step(self) -> None:
        raise NotImplementedError


@dataclass
class SimLane:
    """A lane in the supervisor's tables. handed: its client has got it."""

    number: int
    serial: int
    entry: SimEntry
    client: ClientActor
    memory: SimMemory
    rules: LaneRules
    handed: bool = False
    gone: bool = False  # its client was reaped, or has left it
    moved: bool = False
    evicted: bool = False


@dataclass
class SimRecords:
    """A worker's segment in the supervisor's tables."""

    number: int
    entry: SimEntry
    stage: Stage
    memory: SimMemory
    rules: RecordRules
    worker: WorkerActor
    reaped: bool = False
    active: bool = True
    change: int = 0


class WorkerActor(Actor):
    """A worker: maps lanes on command, becomes ready, then runs records."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "worker", number)
        self.records: SimRecords
        self.worker: Worker
        self._is_ready = False

    def attach(self, records: SimRecords, layout: Layout) -> None:
        world = self.world
        self.records = records
        mapped = WorkerSegment(records.memory.map(self.process), layout, fence=self.process.fence)
        depth = world.random.choice((1, 2))
        spec, stage = records.entry.spec, records.stage
        self.process.stage = int(stage)
        backend = SimBackend(self.process, depth, world.max_batch, world.trouble, spec, stage)
        self.worker = Worker(
            stage_spec(spec, stage), mapped, backend, world.ring_batcher, lambda: world.now_ns
        )
        self._ready_word = mapped.ready

    def add_lane(self, lane: SimLane) -> None:
        entry, memory = lane.entry, lane.memory.map(self.process)
        mapped = Lane(entry.spec, memory, entry.layout, fence=self.process.fence)
        self.worker.add_lane(lane.number, lane.serial, mapped.of_stage(self.records.stage))
        self.world.ring_batcher()

    def step(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._ready_word.set(1)
            self.world.ring_batcher()
            self.rung = True
            return
        try:
            self.rung = self.worker.step() or self.rung
        except MustRestart as exc:  # so many failures in a row that it leaves by itself
            self.process.dead = True
            raise Killed(self.process.name) from exc


class BatcherActor(Actor):
    """The batcher. It starts with a copy of the supervisor's tables and takes over."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "batcher", number)
        self.batcher: Any = None
        self._entries = list(world.entries.values())
        self._lanes = [(lane, lane.moved) for lane in world.lanes.values()]
        self._workers = list(world.workers.values())
        self._gone = [lane.number for lane, _ in self._lanes if lane.gone]
        self._evicted = [lane.number for lane, _ in self._lanes if lane.evicted]
        self._reaped = [records for records in self._workers if records.reaped]
        self._duties = {r.number: (r.active, r.change) for r in self._workers}
        self.started = False
        self.inbox.append(self._start)

    def step(self) -> None:
        self.wake_at_ns = self.batcher.step(self.world.now_ns)
        self.world.idle += self.batcher.workers.take_idle()
        apart = [
            proxy.model for proxy in self.batcher.workers.by_number.values() if proxy.runs_apart()
        ]
        if len(apart) > len(set(apart)) and not self.world.profile.generates:
            raise Fault(f"{self.process} runs two groups of suspects at once")
        for model in self.batcher.models.values():
            check_turns(model.queue)

    def _start(self) -> None:
        world = self.world
        self.batcher = pool_batcher.Batcher(
            [],
            world.profile.max_lanes,
            lane_closed=world.lane_closed,
            flight_recorder=world.flight_recorder,
        )
        for entry in self._entries:
            self.add_model(entry)
        for lane, moved in self._lanes:
            self.add_lane(lane, moved=moved)
        for records in self._workers:
            self.add_worker(records, *self._duties[records.number])
        recovery.take_over(self.batcher)
        for number in self._evicted:
            self.batcher.evict_lane(number)
        for number in self._gone:
            self.batcher.close_lane(number)
        for records in self._reaped:
            self.lose_worker(records)

    def add_model(self, entry: SimEntry) -> None:
        earlier: ModelQueue | None = None
        for stage in stages_of(entry.spec):
            model = ModelQueue(
                entry.spec.name,
                entry.limits[stage],
                attempts=self.world.attempts,
                idempotent=True,
                metrics=BatcherMetrics(entry.words[stage]),
                stage=stage,
                generates=entry.spec.generates,
            )
            if model.generates:
                model.waits_since = QueueColumn.SINCE_NS
            if earlier is not None:
                model.follow(earlier)
            self.batcher.add_model(stage_number(entry.number, stage), model)
            earlier = model

    def retire_model(self, entry: SimEntry) -> None:
        for stage in stages_of(entry.spec):
            number = stage_number(entry.number, stage)
            if len(self.batcher.models[number].queue):
                raise Fault(f"{entry.spec.name} is retired with rows in its queue")
            self.batcher.retire_model(number)

    def add_lane(self, lane: SimLane, *, moved: bool = False) -> None:
        entry, memory = lane.entry, lane.memory.map(self.process)
        mapped = Lane(entry.spec, memory, entry.layout, fence=self.process.fence)
        number, serial, ring = lane.number, lane.serial, lane.client.ring
        own_flow = self.world.own_flows
        first = stage_number(entry.number, stages_of(entry.spec)[0])
        few = self.world.few
        admitted = AdmittedLane(number, serial, first, mapped, ring, own_flow=own_flow, few=few)
        self.batcher.add_lane(admitted, moved=moved)

    def add_worker(self, records: SimRecords, active: bool, change: int) -> None:
        mapped = WorkerSegment(
            records.memory.map(self.process), self.world.records_layout, fence=self.process.fence
        )
        records.rules.inactive = not active
        model = stage_number(records.entry.number, records.stage)
        proxy = WorkerProxy(records.number, model, mapped, records.worker.ring, active=active)
        self.batcher.add_worker(proxy, change)

    def set_active(self, on: SimRecords, off: SimRecords, change: int) -> None:
        on.rules.inactive, off.rules.inactive = False, True
        self.batcher.workers.set_active([on.number], [off.number], change)

    def release(self, off: SimRecords, change: int) -> None:
        off.rules.inactive = True
        self.batcher.workers.set_active([], [off.number], change)

    def drain(self) -> None:
        self.batcher.set_draining(True)

    def lose_worker(self, records: SimRecords) -> None:
        """Tell the batcher of a reaped worker, and note for its clients which rows were lost."""
        world = self.world
        for number, slot, use in records.rules.held():
            lane = world.lanes.get(number)
            if lane is not None:
                world.lost[(lane.serial, slot, use)][records.stage].add(records.number)
        proxy = self.batcher.workers.by_number.get(records.number)
        unlaunched = [] if proxy is None else in_order_of_service(proxy)
        held = [row for row in records.rules.held() if row[0] in world.lanes]
        before = self._attempts(held)
        self.batcher.lose_worker(records.number)
        self._compare_attempts(before, self._attempts(held), unlaunched)
        world.worker_lost(records)
        model = stage_number(records.entry.number, records.stage)
        queued = tickets(self.batcher.models[model].queue.view())
        back = [ticket for ticket in unlaunched if ticket in set(queued)]
        if [ticket for ticket in queued if ticket in set(back)] != back:
            raise Fault(f"rows of lost batches are queued in another order than {back}")

    def _attempts(self, rows: list[Ticket]) -> dict[Ticket, int]:
        """The failed batches of rows whose lanes are still there."""
        lanes = self.world.lanes
        columns = {row: lanes[row[0]].memory.column("attempt") for row in rows if row[0] in lanes}
        return {row: column[row[1]] for row, column in columns.items() if row[1] < len(column)}

    def _compare_attempts(
        self, before: dict[Ticket, int], after: dict[Ticket, int], unlaunched: list[Ticket]
    ) -> None:
        for row in before.keys() & after.keys():
            if after[row] > before[row] + (row not in unlaunched):
                raise Fault(f"{row} was in {before[row]} failed batches, now in {after[row]}")


TICKET = QueueColumn.LANE, QueueColumn.SLOT, QueueColumn.SEQUENCE


def tickets(rows: I64) -> list[tuple[int, int, int]]:
    """(lane number, slot, sequence) of each row."""
    return [tuple(ticket) for ticket in rows[[*TICKET]].T.tolist()]


def in_order_of_service(proxy: WorkerProxy) -> list[tuple[int, int, int]]:
    """The tickets of the rows that the worker never launched, the first to be run in front."""
    columns = QueueColumn.KEY, QueueColumn.RETURN, QueueColumn.SUBMIT_NS
    found = []
    for batch in proxy.batches.values():
        if not proxy.has_finished(batch) and not proxy.has_launched(batch):
            for row in batch.rows.T:
                first_return = int(row[QueueColumn.RETURN]) or batch.number << 20
                place = int(row[QueueColumn.PRIORITY]), first_return, *row[[*columns]].tolist()
                found.append((place, tuple(row[[*TICKET]].tolist())))
    return [ticket for _, ticket in sorted(found)]
