"""The batcher's side of one lane: admit what the client submitted, publish what is done."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn, every, largest
from batchpool.core.scheduler.size_buckets import SizeBuckets
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.lane import Lane
from batchpool.shm.ring import pack, unpack
from batchpool.shm.segment import word

# Plain ints: comparing an array with an enum's member costs four times as much.
_SUBMITTED, _QUEUED, _DONE = int(SlotState.SUBMITTED), int(SlotState.QUEUED), int(SlotState.DONE)
_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


def _all_different(slots: Array) -> bool:
    """Whether no slot stands twice. Next-fit claims rise, so that mostly one look is enough."""
    if len(slots) == 1 or every(slots[1:] > slots[:-1]):
        return True
    ranked = np.sort(slots)  # np.unique would import numpy.ma at its first use, in mid-traffic
    return every(ranked[1:] != ranked[:-1])


class AdmittedLane:
    """One lane as the batcher holds it. `number` is its place in every table of lanes.

    own_flow: all its rows are of one flow, the lane's own; else each row says its flow, as
    those of a front end do, whose callers come through one lane.
    """

    def __init__(
        self,
        number: int,
        serial: int,
        model: int,
        lane: Lane,
        ring_client: Callable[[], None],
        *,
        own_flow: bool = True,
    ) -> None:
        self.number = number
        self.serial = serial
        self.model = model
        self.lane = lane
        self.ring_client = ring_client
        self.running = 0
        self.closing = False
        self.evicted = False  # closing, although its client may be alive
        self.broken = False
        self._sq = lane.sq_consumer()
        self._cq = lane.cq_producer()
        self._own_flow = -serial if own_flow else None  # below all that a row can say
        self._buckets = SizeBuckets(lane.spec)
        self._cancels = -1  # every cancel word is looked at once
        self._cells = lane.memory.cells()
        self._tail_at, self._cancels_at = word(lane.layout, "sq_tail"), word(lane.layout, "cancels")
        self._taken = self._cells[word(lane.layout, "sq_head")]
        self._one: I64 = np.zeros((QUEUE_COLUMNS, 1), dtype=np.int64)
        self._one[QueueColumn.LANE] = number
        self._one[QueueColumn.FLOW] = -serial
        self._one_at = memoryview(self._one.data).cast("B").cast("q")
        self._state = lane.scalars("state")
        self._sequence = lane.scalars("sequence")
        self._submit_ns = lane.scalars("submit_ns")
        self._deadline_ns = lane.scalars("deadline_ns")
        self._priority = lane.scalars("priority")
        self._flow = lane.scalars("flow")
        self._attempt = lane.scalars("attempt")

    def open(self, gate: LaneGate = LaneGate.OPEN) -> None:
        self.lane.gate.set(int(gate))

    def shut(self, gate: LaneGate) -> None:
        """MOVED or GONE, then the generation, on which its client looks at gate and slots."""
        self.lane.gate.set(int(gate))
        self.lane.generation.set(self.lane.generation.get() + 1)
        self.ring_client()

    def admit(self) -> I64:
        """Take every submitted row: its header words are copied here, once, and checked.

        Returns rows [QUEUE_COLUMNS, n], valid until the next call. An entry that names no submitted use
        of a slot is stale: counted, ignored. A ring or slot number that no right client can write
        closes the lane.
        """
        lane = self.lane
        try:
            entries = self._sq.peek()
        except ValueError:
            self._break()
            return _NO_ROWS
        n = len(entries)
        if n == 0:
            return _NO_ROWS
        if n == 1 and self._admit_one(int(entries[0])):
            rows = self._one
        else:
            slots, sequences = unpack(entries)
            if largest(slots) >= lane.slots:
                self._break()
                return _NO_ROWS
            slots = slots.astype(np.int64)  # by any other type numpy indexes five times as slowly
            good = (lane.state[slots] == _SUBMITTED) & (lane.sequence[slots] == sequences)
            if not every(good) or not _all_different(slots):
                slots, sequences = self._only_good(slots, sequences, good)
            rows = self._headers(slots, sequences)
            rows[QueueColumn.ATTEMPT] = 0
            lane.attempt[slots] = 0
            lane.state[slots] = _QUEUED
        self._sq.advance(n)
        self._taken += n
        return rows

    def _admit_one(self, entry: int) -> bool:
        """The same for one row, into `_one`, but for the head of the ring: numbers cost 10 us less
        than arrays of one. False, with nothing done, where the entry is not good.
        """
        slot, sequence = entry & 0xFFFFFFFF, entry >> 32
        if slot >= self.lane.slots:
            return False
        if self._state[slot] != _SUBMITTED or self._sequence[slot] != sequence:
            return False
        row = self._one_at
        row[QueueColumn.SLOT] = slot
        row[QueueColumn.SEQUENCE] = sequence
        row[QueueColumn.SUBMIT_NS] = self._submit_ns[slot]
        row[QueueColumn.DEADLINE_NS] = self._deadline_ns[slot]
        row[QueueColumn.PRIORITY] = self._priority[slot]
        if self._own_flow is None:
            row[QueueColumn.FLOW] = self._flow[slot]
        if self._buckets.many:
            self._one[QueueColumn.BUCKET] = self._buckets.of(self.lane.input_sizes[slot : slot + 1])
        self._attempt[slot] = 0
        self._state[slot] = _QUEUED
        return True

    def _only_good(self, slots: Array, sequences: Array, good: Array) -> tuple[Array, Array]:
        """Drop stale entries and second entries of one slot, and count them."""
        candidates = np.flatnonzero(good)
        order = np.argsort(slots[candidates], kind="stable")
        ranked = slots[candidates][order]
        first = np.ones(len(ranked), dtype=bool)
        first[1:] = ranked[1:] != ranked[:-1]
        keep = np.zeros(len(slots), dtype=bool)
        keep[candidates[order[first]]] = True
        self.lane.stale.set(self.lane.stale.get() + int((~keep).sum()))
        return slots[keep], sequences[keep]

    def _break(self) -> None:
        self.broken = True
        self.open(LaneGate.BROKEN)
        self.ring_client()

    def is_quiet(self) -> bool:
        """Whether nothing was submitted or cancelled since the last look.

        Two loads, since every lane is asked in every step: in which order is all one, for nothing
        is concluded from them but that there is nothing to do yet.
        """
        cells = self._cells
        return cells[self._tail_at] == self._taken and cells[self._cancels_at] == self._cancels

    def cancels_came(self) -> bool:
        """Whether cancel words were set since the last call. Ask before `admit`.

        The client publishes a row before it cancels it, so what was counted here is admitted.
        """
        now = self.lane.cancels.get()
        if now == self._cancels:
            return False
        self._cancels = now
        return True

    def recheck_cancels(self) -> None:
        """Rows are back in the queue, whose cancel words may have been set meanwhile."""
        self._cancels = -1

    def cancelled(self, slots: Array, sequences: Array) -> Array:
        """Which of these uses the client has cancelled, as a mask."""
        mask: Array = self.lane.cancel[slots] == sequences
        return mask

    def complete(self, slots: Array, sequences: Array) -> None:
        """Hand slots back to the client: DONE first, then the completion entries, then the bell."""
        self.lane.state[slots] = _DONE
        if len(slots) > self._cq.room():
            self._break()  # its client uses slots again without ever taking completions
            return
        if len(slots) == 1:
            self._cq.push_few([slots.item() | sequences.item() << 32])
        else:
            self._cq.push(pack(slots, sequences))
        self.ring_client()

    def unfinished(self) -> I64:
        """After a takeover: the rows QUEUED in shared memory, as `admit` would give them."""
        lane = self.lane
        slots = np.flatnonzero(lane.state == _QUEUED)
        return self.rows_in(slots, lane.sequence[slots])

    def rows_in(self, slots: Array, sequences: Array) -> I64:
        """The rows [QUEUE_COLUMNS, n] in these slots, as a batcher that was here before knew them."""
        rows = self._headers(slots, sequences)
        rows[QueueColumn.ATTEMPT] = self.lane.attempt[slots]
        return rows

    def _headers(self, slots: Array, sequences: Array) -> I64:
        lane = self.lane
        rows = np.empty((QUEUE_COLUMNS, len(slots)), dtype=np.int64)
        rows[QueueColumn.LANE] = self.number
        rows[QueueColumn.SLOT] = slots
        rows[QueueColumn.SEQUENCE] = sequences
        rows[QueueColumn.SUBMIT_NS] = lane.submit_ns[slots]
        rows[QueueColumn.DEADLINE_NS] = lane.deadline_ns[slots]
        rows[QueueColumn.PRIORITY] = lane.priority[slots]
        rows[QueueColumn.FLOW] = lane.flow[slots] if self._own_flow is None else self._own_flow
        many = self._buckets.many
        rows[QueueColumn.BUCKET] = self._buckets.of(lane.input_sizes[slots]) if many else 0
        return rows
