"""The clients of the simulated pool: random requests, and a close look at every answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from batchpool.client.arena_lane_client import ArenaLaneClient, lane_client_of
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidInput,
    ModelError,
    Moved,
    NotReady,
    Overloaded,
    PoolError,
    WorkerLost,
)
from batchpool.core.tensors.stages import Stage
from batchpool.shm.lane import Lane
from tests.sim.actors import Actor, SimLane
from tests.sim.memory import Fault
from tests.sim.model import expected, rows_of
from tests.sim.rules import Ticket
from tests.sim.turns import flow_of_request

if TYPE_CHECKING:
    from tests.sim.world import World


@dataclass
class Request:
    """A client's request with the uses of slots that it got."""

    numbers: list[int]
    deadline_ns: int
    tickets: list[Ticket] = field(default_factory=list)
    pending: PendingRequest | None = None
    lane: SimLane | None = None


class ClientActor(Actor):
    """A client with one lane to the model: random requests, and a close look at every answer.

    left: lanes that have moved away, in which it may have rows.
    """

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, "client", number)
        self.lane: SimLane
        self.lane_client: LaneClient
        self.left: list[tuple[SimLane, LaneClient]] = []
        self.moves = 0
        self.open: list[Request] = []
        self.used: list[int] = []
        self.answered = 0

    def attach(self, lane: SimLane) -> None:
        self.lane, entry = lane, lane.entry
        lane.handed = True
        memory = lane.memory.map(self.process)
        self.lane_client = lane_client_of(
            Lane(entry.spec, memory, entry.layout, fence=self.process.fence)
        )

    @property
    def lane_clients(self) -> list[tuple[SimLane, LaneClient]]:
        return [(self.lane, self.lane_client), *self.left]

    def follow(self) -> None:
        """The lane has moved: the next one is asked for, if there is one yet."""
        lane = self.world.moving.hand_out(self)
        if lane is not None:
            self.left.append((self.lane, self.lane_client))
            self.attach(lane)
            self.moves += 1
            self.ring()

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
            self._lane_client_of(request).abandon(request.pending)
            self._cancelled(request)
        if self.world.quiet or random.random() < self.world.profile.reaps:
            self.reap()
        self.wake_at_ns = min(
            lane_client.next_deadline_ns() for _, lane_client in self.lane_clients
        )

    def _lane_client_of(self, request: Request) -> LaneClient:
        return next(lane_client for lane, lane_client in self.lane_clients if lane is request.lane)

    def submit(self) -> None:
        world, lane_client = self.world, self.lane_client
        n = world.random.randint(1, min(world.profile.rows_max, lane_client.allocator.bound))
        request = world.new_request(n)
        before = lane_client.allocator.claimed
        in_arena = 0
        if isinstance(lane_client, ArenaLaneClient):
            in_arena = lane_client.arena.allocator.used
        try:
            pending = lane_client.submit(
                rows_of(self.lane.entry.spec, request.numbers),
                world.now_ns,
                request.deadline_ns,
                priority=world.random.choice((0, 0, 129, 200)),
                flow=flow_of_request(request.numbers[0], named=world.profile.named),
                tag=request,
            )
        except Moved:
            self.follow()
            return
        except NotReady:
            if self.moves:
                raise Fault(f"{self.process} was refused on a lane that it was moved to") from None
            return
        except Overloaded as error:
            if in_arena or "this flow holds" in error.message:
                return
            reopened = before < lane_client.allocator.reopen_below
            if not lane_client.allocator.shut or (
                before + n <= lane_client.allocator.bound and reopened
            ):
                raise Fault(f"{self.process} was refused {n} rows with {before} claimed") from None
            return
        request.pending, request.lane = pending, self.lane
        uses = [lane_client._uses[slot] for slot in pending.slots]
        number = self.lane.serial
        request.tickets = [(number, s, use) for s, use in zip(pending.slots, uses, strict=True)]
        self.open.append(request)

    def push_stale(self) -> None:
        """A ticket of an old use: the batcher must count it and go on."""
        random, lane_client = self.world.random, self.lane_client
        queued = len(lane_client._queued)
        if lane_client._sq.room() - queued <= lane_client.allocator.bound:
            return
        slot = random.randrange(lane_client.allocator.slots)
        use = lane_client._uses[slot] + random.choice((-2, -1, 0))
        owner = lane_client._owner[slot]
        unseen = use == lane_client._uses[slot] and owner is not None
        if use > 0 and not unseen:
            lane_client._sq.push_few([slot | use << 32])
            self.world.ring_batcher()

    def flush(self) -> None:
        for _, lane_client in self.lane_clients:
            if lane_client.flush():
                self.world.ring_batcher()

    def reap(self) -> None:
        for lane, lane_client in self.lane_clients:
            self._reap(lane, lane_client)
        if self.lane_client.has_moved:
            self.follow()
        for lane, lane_client in list(self.left):
            if lane_client.has_moved and not lane_client.allocator.claimed:
                self.left.remove((lane, lane_client))
                self.world.moving.left(lane)

    def _reap(self, lane: SimLane, lane_client: LaneClient) -> None:
        now_ns = self.world.now_ns
        for pending in lane_client.reap(now_ns):
            self.take(lane_client, pending, pending.tag)
        for pending in lane_client.expire(now_ns):
            self._answer(pending.tag)
            if pending.tag.deadline_ns > now_ns:
                raise Fault(f"{self.process} expires {pending.tag} early, at {now_ns}")
            self._cancelled(pending.tag)

    def take(self, lane_client: LaneClient, pending: PendingRequest, request: Request) -> None:
        """Compare one answer with what it must be."""
        self._answer(request)
        copy = self.world.random.random() < 0.8
        try:
            found = lane_client.result(pending, copy=copy)
        except PoolError as error:
            self.judge(error, request)
            return
        if not copy:
            lane_client.release(pending)
        for name, right in expected(lane_client.spec, request.numbers).items():
            if not np.array_equal(found[name], right):
                raise Fault(f"{self.process} got {name} = {found[name]} for {request}: not {right}")
        trouble = self.world.trouble
        if set(request.numbers) & (trouble.raises | trouble.refuses):
            raise Fault(f"{request} was answered although its model raises or refuses it")
        self.world.right_rows += len(request.numbers)

    def judge(self, error: PoolError, request: Request) -> None:
        """An error is right only if what it says has happened."""
        world = self.world
        failed = [
            len(world.lost[ticket][stage]) + world.trouble.raised[number, stage]
            for number, ticket in zip(request.numbers, request.tickets, strict=True)
            for stage in Stage
        ]
        spent = max(failed) >= world.attempts
        twice = max(failed) >= min(world.attempts, 2)
        refused = world.trouble.refuses.intersection(request.numbers)
        right = {
            # Nobody gets the error of another row, however often they rode together.
            ModelError: twice and bool(set(request.numbers) & world.trouble.raises),
            InvalidInput: error.message in map(str, refused),
            WorkerLost: spent,
            DeadlineExceeded: request.deadline_ns <= world.now_ns,
            Overloaded: world.limits.target_ns > 0,
            NotReady: request.lane is not None and request.lane.evicted,
            Cancelled: False,  # a cancelled request is abandoned and never comes back
        }
        if not right.get(type(error), False):
            raise Fault(f"{self.process} got {error!r} for {request} at {world.now_ns}")

    def _cancelled(self, request: Request) -> None:
        self.world.ring_batcher()
        assert request.lane is not None
        for _, slot, use in request.tickets:
            request.lane.rules.note_cancel(slot, use, self.world.events)

    def _answer(self, request: Request) -> None:
        if request not in self.open:
            raise Fault(f"{self.process} got a second answer for {request}")
        self.open.remove(request)
        self.answered += 1
