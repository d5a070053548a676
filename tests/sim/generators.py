"""Generators in the simulated pool: workers that make tokens step by step, clients that stream.

The tokens of a row follow from its number, so a client sees at once if one is lost, doubled or
another row's. It reads the length of each running row, then as many tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchpool.batcher.probation import PROVEN_AFTER
from batchpool.core.errors import Status
from batchpool.core.layout.segments import Layout
from batchpool.core.layout.states import BatchOutcome, DispatchReason, SlotState
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage
from batchpool.shm.lane import Lane
from batchpool.shm.worker_segment import WorkerSegment
from tests.sim.actors import SimLane, SimRecords, WorkerActor
from tests.sim.callers import ClientActor, Request
from tests.sim.memory import Fault, Killed, Process, SimMemory
from tests.sim.rules import RecordRules
from tests.unit.generator_worker import STORY, FakeGeneratorWorker, RunningSequence, token_of

if TYPE_CHECKING:
    from tests.sim.world import World

__all__ = ["STORY", "StoryClientActor", "StoryRules", "StoryWorkerActor"]
TROUBLE_AT = 8  # tokens; by then a row that makes trouble has made it


def client_class(spec: ModelSpec) -> type[ClientActor]:
    """The clients of a model."""
    return StoryClientActor if spec.generates else ClientActor


def new_worker(
    world: World, number: int, spec: ModelSpec, memory: SimMemory
) -> tuple[WorkerActor, RecordRules]:
    """A worker of a model, and the rules for its records."""
    if spec.generates:
        story_worker = StoryWorkerActor(world, number)
        return story_worker, StoryRules(memory, story_worker.process, world.lanes)
    worker = WorkerActor(world, number)
    return worker, RecordRules(memory, worker.process)


class StoryRules(RecordRules):
    """The rules of a generator's worker: no more sequences and tokens than it said; and nothing
    joins suspects, nor do they join anything, but what has made some tokens there."""

    def __init__(self, memory: SimMemory, worker: Process, lanes: Mapping[int, SimLane]) -> None:
        super().__init__(memory, worker)
        self._lanes = lanes
        # By record: its length and the batcher's step when its sequence joined.
        self._joined: dict[int, tuple[int, int]] = {}

    def __call__(self, who: Process, name: str, at: int, value: Any) -> None:
        super().__call__(who, name, at, value)
        if name == "token":
            self._check_room(who, at)
            self._check_company(who, at)
            self._joined[at] = self._length(at), who.since

    def _length(self, record: int) -> int:
        memory = self._memory
        number, slot, _ = memory.places["tickets"].array[record, :, 0].tolist()
        lane = self._lanes.get(number)
        return 0 if lane is None else lane.memory.column("size.out")[slot]

    def _check_company(self, who: Process, at: int) -> None:
        apart = [reason == DispatchReason.APART for reason in self._memory.column("reason")]
        for other in set(self.held().values()) - {at}:
            length, since = self._joined[other]
            proven = self._length(other) >= length + PROVEN_AFTER
            together = apart[at] and apart[other] and since == who.since
            if (apart[at] or apart[other]) and not (proven or together):
                raise Fault(f"{who} lets suspects and others meet in {self._worker}")

    def _check_room(self, who: Process, at: int) -> None:
        memory = self._memory
        if memory.column("n")[at] != 1:
            raise Fault(f"{who} dispatches {memory.column('n')[at]} rows as one sequence")
        held = set(self.held().values()) | {at}
        most, kv_tokens = memory.word("sequences"), memory.word("kv_tokens")
        reserved = sum(memory.column("tokens")[record] for record in held)
        if len(held) > most or (kv_tokens and reserved > kv_tokens):
            raise Fault(f"{who} gives {len(held)} sequences of {reserved} tokens to {self._worker}")


class StoryWorkerActor(WorkerActor):
    """A worker of a generator: takes records at once, makes some tokens for all in each step."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.worker: Any = self  # its lanes are dropped here
        self._lanes: dict[int, Lane] = {}

    def attach(self, records: SimRecords, layout: Layout) -> None:
        world = self.world
        self.records = records
        self.process.stage = int(Stage.INFER)
        mapped = WorkerSegment(records.memory.map(self.process), layout, fence=self.process.fence)
        self._limits = (
            world.random.randint(1, world.max_batch),
            world.random.choice((0, 0, 45, 90)),
        )
        self._segment = mapped
        self._fake = FakeGeneratorWorker(mapped, self._lanes, world.ring_batcher)

    def add_lane(self, lane: SimLane) -> None:
        memory = lane.memory.map(self.process)
        self._lanes[lane.number] = Lane(
            lane.entry.spec, memory, lane.entry.layout, fence=self.process.fence
        )
        self._segment.lanes[lane.number] = lane.serial
        self.world.ring_batcher()

    def drop_lane(self, number: int) -> None:
        self._lanes.pop(number, None)

    def step(self) -> None:
        segment, random = self._segment, self.world.random
        if not self._is_ready:
            self._is_ready = True
            segment.sequences.set(self._limits[0])
            segment.kv_tokens.set(self._limits[1])
            segment.ready.set(1)
            self.world.ring_batcher()
        elif not self.records.active and self._fake.running and random.random() < 0.2:
            self._fake.end(*self._fake.running.values(), outcome=BatchOutcome.RETURNED)
            self.rung = True  # a message, which a worker reads before it looks at its ring
        else:
            self._refuse(self._fake.join(self.world.now_ns))
            self._make_tokens()
        self.rung = self.rung or bool(self._fake.running)

    def _refuse(self, joined: list[RunningSequence]) -> None:
        refused = [each for each in joined if each.first in self.world.trouble.refuses]
        for sequence in refused:
            self._fake.end(sequence, status=Status.INVALID_INPUT, text=str(sequence.first))

    def _make_tokens(self) -> None:
        world, fake = self.world, self._fake
        running = list(fake.running.values())
        for sequence in running:
            number = sequence.first
            if sequence.length == min(number % TROUBLE_AT, sequence.room - 1):
                if number in world.trouble.kills:
                    self.process.dead = True
                    raise Killed(self.process.name)
                if number in world.trouble.raises:
                    world.trouble.raised.update((each.first, Stage.INFER) for each in running)
                    fake.end(*running, status=Status.MODEL_ERROR, outcome=BatchOutcome.FAILED)
                    return
        for sequence in running:
            self._advance(sequence)

    def _advance(self, sequence: RunningSequence) -> None:
        lane, slot = sequence.lane, sequence.slot
        owner = self.world.lanes.get(self._segment.tickets[sequence.record, 0, 0])
        if lane.cancel[slot] == sequence.sequence or (owner is not None and owner.gone):
            self._fake.end(sequence, status=Status.CANCELLED)
        elif lane.deadline_ns[slot] <= self.world.now_ns:
            self._fake.end(sequence, status=Status.DEADLINE)
        else:
            if sequence.first % 2 and self.world.random.random() < 0.3:
                return  # a prompt that is taken in parts
            trouble = self.world.trouble
            most = sequence.room - sequence.length
            if sequence.first in trouble.kills | trouble.raises:
                most = min(1, most)  # it does not step over its trouble
            n = min(most, self.world.random.choice((1, 1, 2, 5)))
            if n:
                self._fake.make(sequence, n)
            if sequence.length == sequence.room:
                self._fake.end(sequence)


class StoryClientActor(ClientActor):
    """A client that reads the tokens of its rows while they run."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self._seen: dict[tuple[int, int, int], int] = {}
        self.streamed = 0

    def step(self) -> None:
        super().step()
        for request in self.open:
            self._stream(request)

    def _stream(self, request: Request) -> None:
        assert request.pending is not None
        lane = self._lane_client_of(request).lane
        for number, ticket in zip(request.numbers, request.tickets, strict=True):
            slot = ticket[1]
            state = int(lane.state[slot])
            if state not in (SlotState.QUEUED, SlotState.RUNNING, SlotState.DONE):
                continue  # until it is admitted, the length is that of an earlier row
            length = int(lane.memory.array(lane.layout.columns["size.out"])[slot, 0])
            found = lane.outputs["token"].values[slot, :length].tolist()
            if found != [token_of(number, index) for index in range(length)]:
                raise Fault(f"{self.process} reads {found} for row {number} in {ticket}")
            if length < self._seen.get(ticket, 0):
                raise Fault(f"row {number} has {length} tokens after {self._seen[ticket]}")
            self.streamed += length > self._seen.get(ticket, 0)
            self._seen[ticket] = length
