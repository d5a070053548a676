"""The client's side of one lane: claim, submit, reap, and what to do when time is up.

A `LaneClient` belongs to one thread or loop at a time, never waits and reads no clock: the caller
brings `now_ns` (CLOCK_MONOTONIC) and takes back what is finished. The threaded client, the asyncio
client and the HTTP front ends use it.

    submit  claims slots, writes rows and headers, and queues the tickets
    flush   publishes all queued tickets as one group; the caller rings the bell
    reap    takes completions; returns the requests that are finished
    expire  returns the requests whose deadline has passed; their slots stay claimed,
            abandoned, until the batcher is done with them
    result  reads a finished request's outputs and frees its slots
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from batchpool.client.backpressure import DrainRate, Rejections
from batchpool.client.lane_rows import LaneRows
from batchpool.client.lent_slots import LentSlots
from batchpool.client.pending_request import PendingRequest
from batchpool.client.row_errors import row_error
from batchpool.core.errors import OF_A_ROW, Overloaded, PoolError, Status, TooLarge
from batchpool.core.layout.admission import SlotAllocator
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.tensors.rows import Rows
from batchpool.shm.columns import Where, where_of
from batchpool.shm.lane import Lane
from batchpool.shm.ring import unpack
from batchpool.shm.segment import word

_NEVER_NS = 2**63 - 1
# Plain ints: cheaper to store and to compare than members of an enum.
_FREE, _FILLING = int(SlotState.FREE), int(SlotState.FILLING)
_SUBMITTED, _DONE = int(SlotState.SUBMITTED), int(SlotState.DONE)
_OPEN, _MOVED, _GONE = int(LaneGate.OPEN), int(LaneGate.MOVED), int(LaneGate.GONE)
_U32 = 0xFFFFFFFF


# methods: claims and completions share one table of slots (owners, deadlines, uses), and a split
# would add a call or a lookup to every request.
class LaneClient:
    """Claims and completions of one lane. serial: the lane's, in the pool.

    moved: called when the gate says so: no more claims here, but what was claimed is answered.
    """

    def __init__(
        self,
        lane: Lane,
        *,
        watermark: float = 0.90,
        accepting: Callable[[], bool] = lambda: True,
        serial: int = 0,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.lane = lane
        self.serial = serial
        self.spec = lane.spec
        self.allocator = SlotAllocator(lane.slots, watermark)
        self.drain_rate = DrainRate()
        self.lent = LentSlots()
        self.stale = 0
        self._moved: Callable[[], None] | None = moved
        self._refusals = Rejections(lane.spec.name, self.allocator, self.drain_rate)
        self._accepting = accepting
        self._sq = lane.sq_producer()
        self._cq = lane.cq_consumer()
        self._state = lane.scalars("state")
        self._status = lane.scalars("status")
        self._sequence = lane.scalars("sequence")
        self._cells = lane.memory.cells()
        self._gate_at = word(lane.layout, "gate")
        self._uses = [0] * lane.slots
        self._owner: list[PendingRequest | None] = [None] * lane.slots
        self._due = np.full(lane.slots, _NEVER_NS, dtype=np.int64)
        self._due_at = memoryview(self._due.data)
        self._queued: list[int] = []
        self._generation = lane.generation.get()
        self.sees_move()  # before it was mapped: nobody will say so again
        self._rows = LaneRows(lane)

    def set_watermark(self, watermark: float) -> None:
        """Take another bound from now on."""
        self.allocator.set_watermark(watermark)

    # -- claim and submit ---------------------------------------------------------------

    def check(self, n: int, now_ns: int, *, flow: int = 0, priority: int = 0) -> None:
        """Raise what a claim of n rows would meet now: TooLarge or one of the 503s."""
        if n > self.allocator.bound:
            raise TooLarge(
                f"{n} rows at once; model {self.spec.name!r} takes at most {self.allocator.bound}"
                " here: send them in smaller requests"
            )
        self.check_gate(now_ns)
        refusal = self.allocator.refusal(n, flow, now_ns, priority)
        if refusal is not None:
            word = self.lane.refused if refusal.is_of_lane else self.lane.refused_share
            word.set(word.get() + 1)
            raise self._refusals.overloaded(refusal)

    def check_gate(self, now_ns: int) -> None:
        """Raise why the lane takes no claims at all now, if so; Moved: they go elsewhere."""
        gate = self._cells[self._gate_at]
        if gate != _OPEN:
            self.sees_move()
            raise self._refusals.shut(gate, now_ns)
        if not self._accepting():
            raise self._refusals.unserved(now_ns)
        self._refusals.backoff = None

    @property
    def has_rows(self) -> bool:
        """True while requests are under way, or finished and not read."""
        return self.allocator.claimed != self.lent.n

    @property
    def has_moved(self) -> bool:
        """True once the gate was seen to say MOVED or GONE."""
        return self._moved is None

    def sees_move(self) -> bool:
        """Look at the gate: whether it says MOVED or GONE."""
        if self._cells[self._gate_at] < _MOVED:
            return False
        moved, self._moved = self._moved, None
        if moved is not None:
            moved()
        return True

    def may_claim(self, n: int, priority: int = 0) -> bool:
        """True if the lane has room for n rows of a client that is one flow; never shuts it."""
        return self.allocator.has_room(n, priority)

    def has_room(self, rows: Rows, now_ns: int, priority: int = 0) -> bool:
        """As `may_claim`, for these rows."""
        return self.may_claim(rows.n, priority)

    def give_up_room(self, rows: Rows) -> None:
        """Keep no room for these rows any more, which `has_room` had none for: they never come."""

    def most_rows(self, rows: Rows) -> int:
        """The most of these rows, wherever they begin, that may be claimed at once."""
        return self.allocator.bound

    def submit(
        self,
        rows: Rows,
        now_ns: int,
        deadline_ns: int,
        *,
        priority: int = 0,
        flow: int = 0,
        tag: Any = None,
    ) -> PendingRequest:
        """Claim slots for checked rows, write them, and queue their tickets for `flush`.

        priority: 1 (first) to 255, 0 is the model's default.  flow: who must be fair to whom.
        """
        n = rows.n
        self.check(n, now_ns, flow=flow, priority=priority)
        if deadline_ns > _NEVER_NS:
            deadline_ns = _NEVER_NS
        slots: Sequence[int]
        where: Where
        if n == 1:
            first = self.allocator.take_one(flow)
            slots, where = (first,), slice(first, first + 1)
        else:
            slots = self.allocator.take(n, flow)
            first, where = slots[0], where_of(slots)
        self._set_state(slots, where, _FILLING)
        try:
            self._rows.write(where, rows)
            self._rows.write_header(slots, where, deadline_ns, now_ns, priority, flow)
        except BaseException:
            self._free(slots, flow)
            raise
        pending = PendingRequest(slots, where, deadline_ns, flow, tag)
        uses, owner, queued = self._uses, self._owner, self._queued
        for slot in slots:
            use = (uses[slot] + 1) & _U32
            uses[slot] = use
            self._sequence[slot] = use
            owner[slot] = pending
            queued.append(slot | use << 32)
        self._set_state(slots, where, _SUBMITTED)
        self._due_at[first] = deadline_ns
        return pending

    def flush(self) -> int:
        """Publish the queued tickets as one group; returns how many. Ring the bell if any."""
        queued = self._queued
        n = len(queued)
        if n:
            if n <= 8:
                self._sq.push_few(queued)
            else:
                self._sq.push(np.array(queued, dtype=np.uint64))
            queued.clear()
            self.lane.claimed.set(self.allocator.claimed)
        return n

    # -- completions --------------------------------------------------------------------

    def reap(self, now_ns: int) -> list[PendingRequest]:
        """Take all completions; returns the requests that are finished and not abandoned."""
        finished: list[PendingRequest] = []
        entries = self._cq.peek()
        if len(entries):
            slots, sequences = unpack(entries)
            self._complete(zip(slots.tolist(), sequences.tolist(), strict=True), finished)
            self._cq.advance(len(entries))
            self.drain_rate.count(len(entries), now_ns)
        if self.lane.generation.get() != self._generation:
            self._look_again(finished)
        return finished

    def _complete(self, tickets: Iterable[tuple[int, int]], finished: list[PendingRequest]) -> None:
        owner, uses = self._owner, self._uses
        for slot, use in tickets:
            pending = owner[slot] if slot < len(owner) else None
            if pending is None or uses[slot] != use or self._state[slot] != _DONE:
                self.stale += 1
                continue
            owner[slot] = None
            pending.remaining -= 1
            if pending.remaining:
                continue
            self._due_at[pending.slots[0]] = _NEVER_NS
            if pending.abandoned:
                self._free(pending.slots, pending.flow)
            else:
                finished.append(pending)

    def _look_again(self, finished: list[PendingRequest]) -> None:
        """A new batcher, as the old one may have died before a completion entry; or a move."""
        self._generation = self.lane.generation.get()
        if self.sees_move() and self._cells[self._gate_at] == _GONE:
            self._take_back()
        done = np.flatnonzero(self.lane.state == _DONE).tolist()
        mine = [slot for slot in done if self._owner[slot] is not None]
        self._complete(((slot, self._uses[slot]) for slot in mine), finished)

    def _take_back(self) -> None:
        """The batcher has left the lane: what it did not answer was published too late."""
        self._queued.clear()
        for slot, pending in enumerate(self._owner):
            if pending is not None and self._state[slot] != _DONE:
                self._status[slot] = int(Status.NOT_READY)
                self.lane.message_len[slot] = 0
                self._state[slot] = _DONE

    def expire(self, now_ns: int) -> list[PendingRequest]:
        """The requests whose deadline has passed, now abandoned; answer their callers."""
        overdue: list[PendingRequest] = []
        for first in np.flatnonzero(self._due <= now_ns).tolist():
            pending = self._owner_of_request(first)
            if pending is not None:
                overdue.append(pending)
                self.abandon(pending)
        return overdue

    def _owner_of_request(self, first: int) -> PendingRequest | None:
        # Where its first row is done already, others are not.
        others = (p for p in self._owner if p is not None and p.slots[0] == first)
        return self._owner[first] or next(others, None)

    def next_deadline_ns(self) -> int:
        """The earliest deadline of a request under way; 2**63 - 1 if there is none."""
        return int(self._due.min())

    # -- results and ends ---------------------------------------------------------------

    def failure(self, pending: PendingRequest) -> PoolError | None:
        """The error of a finished request's first row that has one."""
        if pending.n == 1:
            slot = pending.slots[0]
            return self._error_of(slot) if self._status[slot] else None
        if not self.lane.status[pending.where].any():
            return None
        for row, slot in enumerate(pending.slots):
            if self._status[slot] != Status.OK:
                error = self._error_of(slot)
                if isinstance(error, OF_A_ROW):
                    error.row = row
                return error
        return None

    def _error_of(self, slot: int) -> PoolError:
        error = row_error(self.lane, slot, self._uses[slot])
        if isinstance(error, Overloaded):
            # Only the batcher knows the length of the whole queue; this lane holds part of it.
            error.retry_after_ms = self.drain_rate.wait_ms(self.allocator.claimed)
        return error

    def result(
        self,
        pending: PendingRequest,
        outputs: Iterable[str] | None = None,
        *,
        copy: bool = True,
        padded: bool = False,
        all_good: bool = False,
    ) -> dict[str, Any]:
        """A finished request's outputs {name: [n, *row shape]}; frees its slots.

        An output whose rows differ in size is a list of n arrays or, where `padded` is true, one
        array with its sizes beside it (`LaneRows.padded_outputs`). Raises the error of the first
        row that has one; all_good: none has. With copy=False fixed tensors in neighbouring slots
        are views of the lane, valid until `release`, which the caller owes.
        """
        try:
            if not all_good and (error := self.failure(pending)) is not None:
                raise error
            read = self._rows.padded_outputs if padded else self._rows.outputs
            found: dict[str, Any] = read(pending.where, outputs, copy)
        except BaseException:
            self._free(pending.slots, pending.flow)
            raise
        if copy:
            self._free(pending.slots, pending.flow)
        return found

    def listed(self, pending: PendingRequest, names: Iterable[str] | None) -> dict[str, list[Any]]:
        """As `result`, but one entry a row, the error of a row in its place. `release` is owed."""
        return self._rows.listed(pending.slots, names, self._error_of)

    def octets(self, pending: PendingRequest) -> list[Any]:
        """The bytes of a finished request's outputs, each as a buffer: of neighbouring slots views
        of the lane, valid until `release`, which the caller owes. Raises the error of the first
        row that has one; then they are released. For models whose outputs are all fixed tensors of
        numbers."""
        try:
            error = self.failure(pending)
            if error is not None:
                raise error
            return self._rows.octets(pending.where)
        except BaseException:
            self._free(pending.slots, pending.flow)
            raise

    def release(self, pending: PendingRequest) -> None:
        """Free the slots of a finished request: its views are done with, or nobody wants it."""
        self._free(pending.slots, pending.flow)

    def abandon(self, pending: PendingRequest) -> None:
        """The caller has its answer or has gone: cancel what has not been dispatched.

        The slots stay claimed until the batcher is done with them. Ring the bell after.
        """
        if pending.abandoned or pending.remaining == 0:
            return
        self.flush()  # the batcher looks for cancelled rows among those it has admitted
        pending.abandoned = True
        self._due_at[pending.slots[0]] = _NEVER_NS
        for slot in pending.slots:
            if self._owner[slot] is pending:
                self.lane.cancel[slot] = self._uses[slot]
        self.lane.cancels.set(self.lane.cancels.get() + 1)

    def in_flight(self) -> list[PendingRequest]:
        """Every request with rows under way that is not abandoned."""
        return list({id(p): p for p in self._owner if p is not None and not p.abandoned}.values())

    def fail_all(self, *, batcher_ended: bool = False) -> list[PendingRequest]:
        """The pool is gone: every request under way, to be answered with PoolStopped.

        batcher_ended: it has ended for certain, so that a row that it did not admit never runs.
        """
        lost = self.in_flight()
        for pending in lost:
            pending.abandoned = True
            if batcher_ended:
                pending.may_have_run = any(
                    self._state[slot] != _SUBMITTED for slot in pending.slots
                )
        return lost

    def _set_state(self, slots: Sequence[int], where: Where, state: int) -> None:
        if len(slots) == 1:
            self._state[slots[0]] = state
        else:
            self.lane.state[where] = state

    def _free(self, slots: Sequence[int], flow: int) -> None:
        if len(slots) == 1:
            self._state[slots[0]] = _FREE
            self.allocator.give_back(slots[0], flow)
        else:
            self._set_state(slots, where_of(slots), _FREE)
            self.allocator.give_back_many(slots, flow)
        self.lane.claimed.set(self.allocator.claimed)
        if not self.allocator.claimed:
            self.drain_rate.pause()
