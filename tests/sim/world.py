"""The simulated pool: clients, one batcher and workers in one process, a fake clock, one seed.

In `World.run` a seeded scheduler chooses the process that takes the next step. In a step, before
any load or store, other processes may take steps (nested, so no threads are needed), and after any
store a process may be killed. The world plays the supervisor: it reaps dead processes, tells the
batcher, and starts successors. At the end no process is killed until the pool is idle, and then
the final checks must pass.

The same seed and profile give the same run.
"""

from __future__ import annotations

import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random

from batchpool.core.layout.segments import worker_layout_of
from batchpool.core.scheduler.limits import NEVER_NS, Limits
from batchpool.core.tensors.stages import Stage, stages_of
from batchpool.shm.stats.flight_recorder import FlightRecorder
from tests.sim.actors import Actor, BatcherActor, SimLane, SimRecords, WorkerActor
from tests.sim.callers import ClientActor, Request
from tests.sim.final_checks import left_over, wrong_counts
from tests.sim.generators import STORY, client_class, new_worker
from tests.sim.lane_migration import Moving, SimEntry
from tests.sim.memory import Fault, Killed, Process, SimMemory
from tests.sim.model import DYNAMIC, LARGE, PLAIN, STAGES, Trouble
from tests.sim.profiles import PROFILES, Profile
from tests.sim.rules import LaneRules, Ticket

MS = 1_000_000
DEPTH = 3  # steps nested in steps
QUIET_ROUNDS = 400


# methods: one for each event of the simulated processes, which act on each other
class World:
    """One run. plan: a process's name, as "batcher 1", and the store after which it dies."""

    def __init__(self, seed: int, profile: Profile, plan: Mapping[str, int] | None = None) -> None:
        self.random = random = Random(seed)
        self.profile = profile
        self.plan = plan or {}
        spec = DYNAMIC if random.random() < 0.25 else PLAIN
        spec = STAGES.get(profile.staged, LARGE if profile.arena else spec)
        spec = STORY if profile.generates else spec
        self.max_batch = random.choice((2, 4, 4, 8))
        self.max_wait_ns = random.choice((0, 0, 2 * MS))
        self.limits = Limits(
            self.max_batch,
            self.max_wait_ns,
            adaptive=random.random() < profile.adaptive,
            max_wait_peak_ns=2 * self.max_wait_ns,
            target_ns=20 * MS if random.random() < profile.adaptive / 2 else 0,
        )
        self.own_flows = random.random() < 0.5 and not profile.named
        self.few = 8 if seed % 2 else 1  # rows that the batcher takes without arrays
        self.attempts = random.choice((1, 2, 3, 3))
        self.now_ns = 1000 * MS
        self.events = 0
        self.quiet, self.trouble = False, Trouble()
        self.trace: deque[str] = deque(maxlen=60)
        self.lost: dict[Ticket, dict[Stage, set[int]]] = defaultdict(lambda: defaultdict(set))
        self.flight_recorder = FlightRecorder()
        self.right_rows = 0  # in answers that clients found right
        self.lanes: dict[int, SimLane] = {}
        self.workers: dict[int, SimRecords] = {}
        self.actors: list[Actor] = []
        self.dead: deque[Actor] = deque()
        self.buried: set[str] = set()
        self.wanted_clients = 0
        self.serving = SimEntry.of(0, spec, random.choice(profile.slots), self.limits)
        self.entries = {0: self.serving}
        self.metrics = [self.serving.words]
        self.stages: dict[int, Stage] = {}  # of every worker so far
        self.moving = Moving(self)
        self.records_layout = worker_layout_of(spec, self.max_batch, profile.max_lanes)
        self.idle: deque[tuple[int, int]] = deque()
        self._change_number = 0
        self._born: defaultdict[str, int] = defaultdict(int)
        self._numbers = 0
        self._depth = 0
        self._steps = 0
        self._preempt = random.choice(profile.preempt)
        self._countdown = NEVER_NS
        self.batcher = self._start_batcher()
        for _ in range(profile.clients):
            self._start_client()
        for stage in stages_of(spec):
            for _ in range(profile.workers):
                self.start_worker(self.serving, stage)
        self._wind()

    # -- the supervisor -----------------------------------------------------------------

    def _number(self, role: str) -> int:
        self._born[role] += 1
        return self._born[role]

    def _start_batcher(self) -> BatcherActor:
        self.batcher = BatcherActor(self, self._number("batcher"))
        self.actors.append(self.batcher)
        return self.batcher

    def _start_client(self) -> None:
        coming = self.moving.coming
        if len(self.lanes) + bool(coming) >= self.profile.max_lanes:
            self.wanted_clients += 1  # when a dead client's lane is closed
            return
        client = client_class(self.serving.spec)(self, self._number("client"))
        lane = self.new_lane(client, self.serving)
        if coming:
            self.new_lane(client, coming)
        with self._undisturbed():
            client.attach(lane)
        self.actors.append(client)

    def new_lane(self, client: ClientActor, entry: SimEntry) -> SimLane:
        """A new lane, which its client gets now or later."""
        number = min(set(range(self.profile.max_lanes)) - set(self.lanes))
        memory = SimMemory(entry.layout, self.profile.enforce)
        rules = LaneRules(memory, number, client.process, self.holder, lambda: self.events)
        lane = SimLane(number, self._number("lane"), entry, client, memory, rules)
        self.lanes[number] = lane
        batcher = self.batcher
        batcher.inbox.append(lambda: batcher.add_lane(lane))
        for records in self.workers.values():
            if records.entry is entry:
                self._tell_lane(records.worker, lane)
        return lane

    def _tell_lane(self, worker: WorkerActor, lane: SimLane) -> None:
        worker.inbox.append(lambda: worker.add_lane(lane))

    def _tell_drop(self, worker: WorkerActor, number: int) -> None:
        worker.inbox.append(lambda: worker.worker.drop_lane(number))

    def start_worker(
        self, entry: SimEntry, stage: Stage = Stage.INFER, *, active: bool = True
    ) -> SimRecords:
        number = self._number("worker")
        self.stages[number] = stage
        memory = SimMemory(self.records_layout, self.profile.enforce)
        worker, rules = new_worker(self, number, entry.spec, memory)
        records = SimRecords(number, entry, stage, memory, rules, worker, active=active)
        with self._undisturbed():
            worker.attach(records, self.records_layout)
        self.workers[number] = records
        self.actors.append(worker)
        for lane in self.lanes.values():
            if lane.entry is entry:
                self._tell_lane(worker, lane)
        batcher = self.batcher
        batcher.inbox.append(lambda: batcher.add_worker(records, active, 0))
        return records

    def _replace_worker(self) -> None:
        """Replace an active worker by another one, inactive or new; both processes live on."""
        workers = [r for r in self.workers.values() if r.entry is self.serving]
        living = [r for r in workers if not r.worker.process.dead]
        off = self.random.choice([r for r in living if r.active] or [None])
        if off is None:
            return
        others = [r for r in living if not r.active and r.stage is off.stage]
        if others:
            on = self.random.choice(others)
        else:
            on = self.start_worker(self.serving, off.stage, active=False)
        self._change_number = change = self._change_number + 1
        on.active, off.active, on.change, off.change = True, False, change, change
        batcher = self.batcher
        batcher.inbox.append(lambda: batcher.set_active(on, off, change))

    def release(self, records: SimRecords) -> None:
        """Deactivate a worker, which is ended once it is idle."""
        self._change_number = change = self._change_number + 1
        records.active, records.change = False, change
        batcher = self.batcher
        batcher.inbox.append(lambda: batcher.release(records, change))

    def _dismiss(self) -> bool:
        """End a worker that the batcher reported as idle; False if the report is out of date."""
        number, change = self.idle.popleft()
        records = self.workers.get(number)
        if records is None or records.worker not in self.actors:
            return False
        if (records.active, records.change) != (False, change):
            return False
        if records.worker.busy:
            self.idle.append((number, change))
            return False
        if records.rules.held():
            raise Fault(f"worker {number} ends with rows in flight")
        self._bury(records.worker)
        return True

    def holder(self, ticket: Ticket) -> Process | None:
        """The worker, not reaped yet, whose records hold this row."""
        for records in self.workers.values():
            if not records.reaped and ticket in records.rules.held():
                return records.worker.process
        return None

    def lane_closed(self, number: int) -> None:
        """The batcher has unmapped this lane."""
        lane = self.lanes.pop(number)
        if not (lane.gone or lane.evicted):
            raise Fault(f"the batcher closed lane {number}, whose client is alive")
        lane.rules.closed = True
        self.moving.gone(lane)
        for records in self.workers.values():
            if records.entry is lane.entry:
                self._tell_drop(records.worker, number)
        if self.wanted_clients:
            self.wanted_clients -= 1
            self._start_client()

    def worker_lost(self, records: SimRecords) -> None:
        """The batcher has completed or queued again the rows of a dead worker."""
        self.workers.pop(records.number, None)

    @property
    def deaths(self) -> int:
        return len(self.buried)

    def ring_batcher(self) -> None:
        self.batcher.ring()

    def _bury(self, actor: Actor) -> None:
        actor.process.dead = True
        self.actors.remove(actor)
        self.dead.append(actor)
        self.buried.add(actor.process.name)
        self.trace.append(f"{self.events} {actor.process} died, {actor.process.stores} stores")

    def supervise(self) -> None:
        """Reap one dead process: only now have its last stores landed."""
        if not self.dead:
            return
        actor = self.dead.popleft()
        actor.process.land()
        self.trace.append(f"{self.events} {actor.process} is reaped")
        batcher = self.batcher
        if isinstance(actor, ClientActor):
            for lane in [lane for lane in self.lanes.values() if lane.client is actor]:
                self.moving.close_lane(lane)
            self._start_client()
        elif isinstance(actor, WorkerActor):
            records = actor.records
            records.reaped = True
            batcher.inbox.append(lambda: batcher.lose_worker(records))
            if records.active and records.entry is not self.moving.coming:
                self.start_worker(records.entry, records.stage)
        else:
            self._start_batcher()

    # -- the scheduler ------------------------------------------------------------------

    def _wind(self) -> None:
        mean = self._preempt
        self._countdown = self.random.randint(1, 2 * mean) if mean else NEVER_NS

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run steps of the supervisor, during which no other process runs."""
        countdown, self._countdown = self._countdown, NEVER_NS
        yield
        self._countdown = countdown

    def pulse(self) -> None:
        """Called before each load and store: other processes may run first."""
        self.events += 1
        self._countdown -= 1
        if self._countdown > 0:
            return
        if self._depth < DEPTH and not self.quiet:
            self._countdown = NEVER_NS
            for _ in range(self.random.randint(1, 6)):
                self._wind()
                self._any_step()
        self._wind()

    def _any_step(self) -> None:
        """One step of a random actor that is not in the middle of one."""
        self._steps += 1
        free = [actor for actor in self.actors if not actor.busy]
        self.now_ns += self.random.choice((0, 0, 0, MS // 10, MS))
        if not free or (self.dead and self.random.random() < 0.3):
            self.supervise()
            return
        if self.profile.replaces and self.random.random() < self.profile.replaces:
            self._replace_worker()
        if self.profile.moves:
            self.moving.step_or_begin(begins=self.random.random() < self.profile.moves)
        if self.idle and self.random.random() < 0.5 and self._dismiss():
            return
        actor = self.random.choice(free)
        if self.random.random() < self.profile.kills.get(actor.process.role, 0):
            if self.random.random() < 0.2:
                self._bury(actor)
                return
            actor.process.kill_at = actor.process.stores + self.random.randint(1, 40)
        self.step_of(actor)

    def step_of(self, actor: Actor) -> None:
        """One step of this actor, which may be its last."""
        self._depth += 1
        actor.busy = True
        self.trace.append(f"{self.events} {'  ' * self._depth}{actor.process}")
        try:
            actor.take_step()
        except Killed:
            self._bury(actor)
        except Exception as error:  # it must not reach the process in whose step this one ran
            raise Fault(f"{actor.process} raised {error!r}") from error
        finally:
            actor.busy = False
            self._depth -= 1

    def run(self) -> None:
        """The whole run: the profile's steps, then `settle`."""
        while self._steps < self.profile.steps:
            self._any_step()
        self.settle()

    def run_in_rounds(self, rounds: int) -> None:
        """A run with a fixed schedule: all actors step in order, until a process dies."""
        for number in range(rounds):
            self.moving.step_or_begin(begins=number == 1)
            for actor in list(self.actors):
                self.step_of(actor)
                if self.dead:
                    self.settle()
                    return
        self.settle()

    def settle(self) -> None:
        """Let all accepted rows finish, with actors woken by bells and clocks only; then check."""
        self.quiet = True
        if self.random.random() < 0.3:
            self.batcher.inbox.append(self.batcher.drain)
        for actor in self.actors:
            if not self.plan:
                actor.process.kill_at = -1
            if isinstance(actor, ClientActor):
                actor.ring()
        for _ in range(QUIET_ROUNDS):
            for _ in range(len(self.idle)):
                self._dismiss()
            while self.dead:
                self.supervise()
            self.moving.step()
            awake = [a for a in self.actors if a.rung or a.inbox or a.wake_at_ns <= self.now_ns]
            for actor in awake:
                self.step_of(actor)
            if not awake:
                soon = self.batcher.wake_at_ns
                if soon > self.now_ns + 10 * self.max_wait_ns + 10 * MS:
                    break
                self.now_ns = max(soon, self.now_ns)
        else:
            raise Fault(f"the pool was not idle after {QUIET_ROUNDS} rounds")
        left = left_over(self) + wrong_counts(self)
        if left:
            raise Fault("left when all is quiet: " + "; ".join(left))

    def new_request(self, n: int) -> Request:
        """A request of n rows with numbers of their own, and its place in the row's troubles."""
        self._numbers += 64
        numbers = list(range(self._numbers, self._numbers + n))
        late = self.random.random() < self.profile.late
        within_ns = self.random.randint(0, 6 * MS) if late else 60_000 * MS
        for number in numbers:
            if self.random.random() < self.profile.poison:
                self.trouble.kills.add(number)
            elif self.random.random() < self.profile.raises:
                self.trouble.raises.add(number)
            elif self.profile.refuses and self.random.random() < self.profile.refuses:
                self.trouble.refuses.add(number)
        return Request(numbers, self.now_ns + within_ns)


def simulate(seed: int, kind: str, profile: Profile | None = None) -> World:
    """One run; any fault is raised with the seed and the last steps that led to it."""
    world = World(seed, profile or PROFILES[kind])
    try:
        world.run()
    except BaseException as fault:
        if isinstance(fault, KeyboardInterrupt):
            raise
        last = "\n".join(world.trace)
        raise Fault(
            f"seed {seed}, kind {kind}: {fault!r}\n"
            f"again: python -m tests.sim.run --kind {kind} --first {seed} --seeds 1\n"
            f"last steps:\n{last}\n{traceback.format_exc()}"
        ) from fault
    return world
