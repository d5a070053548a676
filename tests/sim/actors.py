"""The processes of the simulated pool: clients, the batcher, workers, each one step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from batchpool.client.port import Pending, Port
from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    ModelError,
    NotReady,
    Overloaded,
    PoolError,
    WorkerLost,
)
from batchpool.core.layout import Layout
from batchpool.pool import batcher as pool_batcher
from batchpool.pool import takeover
from batchpool.pool.admission import AdmittedLane
from batchpool.pool.ailments import MustRestart
from batchpool.pool.crew import CrewMember
from batchpool.pool.tally import Tally
from batchpool.pool.worker import Worker
from batchpool.shm.lane import Lane
from batchpool.shm.records import Records
from tests.sim.memory import Fault, Killed, Process, SimMemory
from tests.sim.model import SimRunner, expected, rows_of
from tests.sim.rules import LaneRules, RecordRules, Ticket

if TYPE_CHECKING:
    from tests.sim.world import World

NEVER_NS = pool_batcher.NEVER_NS


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

    def turn(self) -> None:
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
    """A lane in the supervisor's tables."""

    number: int
    serial: int
    memory: SimMemory
    rules: LaneRules
    gone: bool = False  # its client was reaped


@dataclass
class SimRecords:
    """A worker's segment in the supervisor's tables."""

    number: int
    memory: SimMemory
    rules: RecordRules
    worker: WorkerActor
    reaped: bool = False
    on_duty: bool = True
    turn: int = 0


@dataclass
class Request:
    """What a client asked, and which uses of which slots it got."""

    numbers: list[int]
    deadline_ns: int
    tickets: list[Ticket] = field(default_factory=list)
    pending: Pending | None = None


class ClientActor(Actor):
    """A client with one lane: random requests, and a close look at every answer."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "client", number)
        self.lane: SimLane
        self.port: Port
        self.open: list[Request] = []
        self.used: list[int] = []
        self.answered = 0

    def attach(self, lane: SimLane, layout: Layout) -> None:
        self.lane = lane
        mapped = Lane(
            self.world.spec, lane.memory.map(self.process), layout, fence=self.process.fence
        )
        self.port = Port(mapped)

    def step(self) -> None:
        random = self.world.random
        if not self.world.quiet and random.random() < 0.6:
            for _ in range(random.choice((1, 1, 2, 3))):
                self.submit()
            if random.random() < 0.1:
                self.push_stale()
        if self.world.quiet or random.random() < 0.8:
            self.flush()
        if not self.world.quiet and self.open and random.random() < self.world.profile.cancels:
            request = random.choice(self.open)
            self.open.remove(request)  # the caller has gone: nothing may come for it
            assert request.pending is not None
            self.port.abandon(request.pending)
            self._cancelled(request)
        if self.world.quiet or random.random() < self.world.profile.reaps:
            self.reap()
        self.wake_at_ns = self.port.next_deadline_ns()

    def submit(self) -> None:
        world, port = self.world, self.port
        n = world.random.randint(1, min(world.profile.rows_max, port.map.bound))
        request = world.new_request(n)
        before = port.map.claimed
        try:
            pending = port.submit(
                rows_of(world.spec, request.numbers),
                world.now_ns,
                request.deadline_ns,
                priority=world.random.choice((0, 0, 129, 200)),
                flow=1,
                tag=request,
            )
        except NotReady:
            return
        except Overloaded:
            reopened = before < port.map.reopen_below
            if not port.map.shut or (before + n <= port.map.bound and reopened):
                raise Fault(f"{self.process} was refused {n} rows with {before} claimed") from None
            return
        request.pending = pending
        uses = [port._uses[slot] for slot in pending.slots]
        number = self.lane.serial
        request.tickets = [(number, s, use) for s, use in zip(pending.slots, uses, strict=True)]
        self.open.append(request)

    def push_stale(self) -> None:
        """A ticket of an old use: the batcher must count it and go on."""
        random, port = self.world.random, self.port
        queued = len(port._queued)
        if port._sq.room() - queued <= port.map.bound:
            return
        slot = random.randrange(port.map.slots)
        use = port._uses[slot] + random.choice((-2, -1, 0))
        owner = port._owner[slot]
        unseen = use == port._uses[slot] and owner is not None
        if use > 0 and not unseen:
            port._sq.push_few([slot | use << 32])
            self.world.ring_batcher()

    def flush(self) -> None:
        if self.port.flush():
            self.world.ring_batcher()

    def reap(self) -> None:
        now_ns = self.world.now_ns
        for pending in self.port.reap(now_ns):
            self.take(pending, pending.tag)
        for pending in self.port.expire(now_ns):
            self._answer(pending.tag)
            if pending.tag.deadline_ns > now_ns:
                raise Fault(f"{self.process} expires {pending.tag} early, at {now_ns}")
            self._cancelled(pending.tag)

    def take(self, pending: Pending, request: Request) -> None:
        """Compare one answer with what it must be."""
        self._answer(request)
        copy = self.world.random.random() < 0.8
        try:
            found = self.port.result(pending, copy=copy)
        except PoolError as error:
            self.judge(error, request)
            return
        if not copy:
            self.port.release(pending)
        for name, right in expected(self.world.spec, request.numbers).items():
            if not np.array_equal(found[name], right):
                raise Fault(f"{self.process} got {name} = {found[name]} for {request}: not {right}")
        if set(request.numbers) & self.world.trouble.raises:
            raise Fault(f"{request} was answered although its model raises")
        self.world.right_rows += len(request.numbers)

    def judge(self, error: PoolError, request: Request) -> None:
        """An error is right only if what it says has happened."""
        world = self.world
        failed = [
            len(world.lost[ticket]) + world.trouble.raised[number]
            for number, ticket in zip(request.numbers, request.tickets, strict=True)
        ]
        spent = max(failed) >= world.attempts
        right = {
            # Nobody gets the error of another row, however often they rode together.
            ModelError: spent and bool(set(request.numbers) & world.trouble.raises),
            WorkerLost: spent,
            DeadlineExceeded: request.deadline_ns <= world.now_ns,
            Overloaded: world.limits.target_ns > 0,
            Cancelled: False,  # a cancelled request is abandoned and never comes back
        }
        if not right.get(type(error), False):
            raise Fault(f"{self.process} got {error!r} for {request} at {world.now_ns}")

    def _cancelled(self, request: Request) -> None:
        self.world.ring_batcher()
        for _, slot, use in request.tickets:
            self.lane.rules.note_cancel(slot, use, self.world.events)

    def _answer(self, request: Request) -> None:
        if request not in self.open:
            raise Fault(f"{self.process} got a second answer for {request}")
        self.open.remove(request)
        self.answered += 1


class WorkerActor(Actor):
    """A worker: maps lanes as it is told, is ready once, then runs records."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "worker", number)
        self.records: SimRecords
        self.worker: Worker
        self._is_ready = False

    def attach(self, records: SimRecords, layout: Layout) -> None:
        world = self.world
        self.records = records
        mapped = Records(records.memory.map(self.process), layout, fence=self.process.fence)
        depth = world.random.choice((1, 2))
        runner = SimRunner(self.process, depth, world.max_batch, world.trouble)
        self.worker = Worker(world.spec, mapped, runner, world.ring_batcher, lambda: world.now_ns)
        self._ready_word = mapped.ready

    def add_lane(self, lane: SimLane) -> None:
        mapped = Lane(
            self.world.spec,
            lane.memory.map(self.process),
            self.world.lane_layout,
            fence=self.process.fence,
        )
        self.worker.add_lane(lane.number, lane.serial, mapped)
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
    """The batcher. It is born with the supervisor's tables of that moment and takes over."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "batcher", number)
        self.batcher: Any = None
        self._lanes = list(world.lanes.values())
        self._crew = list(world.crew.values())
        self._gone = [lane.number for lane in self._lanes if lane.gone]
        self._reaped = [records for records in self._crew if records.reaped]
        self._duties = {r.number: (r.on_duty, r.turn) for r in self._crew}
        self.started = False
        self.inbox.append(self._start)

    def step(self) -> None:
        self.wake_at_ns = self.batcher.step(self.world.now_ns)
        self.world.idle += self.batcher.take_idle()
        if sum(member.runs_apart() for member in self.batcher.crew.values()) > 1:
            raise Fault(f"{self.process} runs two groups of suspects at once")

    def _start(self) -> None:
        world = self.world
        model = pool_batcher.ModelQueue(
            world.spec.name,
            world.limits,
            attempts=world.attempts,
            idempotent=True,
            tally=Tally(world.tally_words),
        )
        self.batcher = pool_batcher.Batcher(
            [model], world.profile.max_lanes, lane_closed=world.lane_closed, recorder=world.recorder
        )
        for lane in self._lanes:
            self.add_lane(lane)
        for records in self._crew:
            self.add_worker(records, *self._duties[records.number])
        takeover.take_over(self.batcher)
        for number in self._gone:
            self.batcher.close_lane(number)
        for records in self._reaped:
            self.lose_worker(records)

    def add_lane(self, lane: SimLane) -> None:
        world = self.world
        mapped = Lane(
            world.spec, lane.memory.map(self.process), world.lane_layout, fence=self.process.fence
        )
        client = world.client_of(lane)
        self.batcher.add_lane(
            AdmittedLane(lane.number, lane.serial, 0, mapped, client.ring, own_flow=world.own_flows)
        )

    def add_worker(self, records: SimRecords, on_duty: bool, turn: int) -> None:
        mapped = Records(
            records.memory.map(self.process), self.world.records_layout, fence=self.process.fence
        )
        records.rules.off_duty = not on_duty
        member = CrewMember(records.number, 0, mapped, records.worker.ring, on_duty=on_duty)
        self.batcher.add_worker(member, turn)

    def relieve(self, on: SimRecords, off: SimRecords, turn: int) -> None:
        on.rules.off_duty, off.rules.off_duty = False, True
        self.batcher.relieve([on.number], [off.number], turn)

    def drain(self) -> None:
        self.batcher.drain()

    def lose_worker(self, records: SimRecords) -> None:
        """A reaped worker: its rows' deaths are counted here, for the clients to compare."""
        world = self.world
        for number, slot, use in records.rules.held():
            lane = world.lanes.get(number)
            if lane is not None:
                world.lost[(lane.serial, slot, use)].add(records.number)
        self.batcher.lose_worker(records.number)
        world.worker_lost(records)
