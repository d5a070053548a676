"""The batcher's side of one lane: admitting submitted rows, and publishing completed ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from batchpool.batcher.input_buckets import InputBuckets
from batchpool.batcher.quick_admission import QuickAdmission, first_of_run
from batchpool.batcher.reservation import Reservations
from batchpool.batcher.stage_buckets import StageBuckets
from batchpool.core.errors import Status
from batchpool.core.few_rows import FEW_ROWS
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn, every, largest, least
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.stages import Stage, stages_of
from batchpool.shm.lane import Lane
from batchpool.shm.ring import pack, unpack
from batchpool.shm.segment import word

# Plain ints: comparing an array with a member of an enum costs four times as much.
_SUBMITTED, _QUEUED, _DONE = int(SlotState.SUBMITTED), int(SlotState.QUEUED), int(SlotState.DONE)
_RUNNING, _OK = int(SlotState.RUNNING), int(Status.OK)
_EARLIER_NS = 1_000_000_000  # so long before it is admitted a row may have been submitted
_NO_ROWS: I64 = np.empty((QUEUE_COLUMNS, 0), dtype=np.int64)


def _all_different(slots: Array) -> bool:
    """True if no slot occurs twice. Next-fit claims rise, so one comparison mostly suffices."""
    if len(slots) == 1 or every(slots[1:] > slots[:-1]):
        return True
    ranked = np.sort(slots)  # np.unique imports numpy.ma at its first use, while clients wait
    return every(ranked[1:] != ranked[:-1])


# methods: one for each step of the batcher on a lane, whose words and ring ends they share
class AdmittedLane:
    """One lane, as the batcher admits its rows and completes them.

    number: the lane's index in every table of lanes. serial: unique among all lanes ever. model:
    the number of its model's first stage. stages: those of its model in the order in which a row
    takes them; () for those that its tensors tell of. running: its rows that are RUNNING. closing:
    unmap it once none is. evicted: closing although its client may be alive. broken: its client
    wrote what no correct client writes; report_damage was called with the number and what was
    found. admitted: rows so far. own_flow: all rows are of one flow, the lane's own; False: each
    row carries its flow, as those of a front end do, whose callers share one lane. mapped_ns: when
    it was mapped, by which the times of rows that a former batcher left are bounded; 0: they are
    not. reservations: of a generator's lane, the token counts of its rows; else None. few: so many
    rows at most are read and written as plain numbers, more as arrays. runs: rows in neighbouring
    slots are read and written by slices.
    """

    def __init__(
        self,
        number: int,
        serial: int,
        model: int,
        lane: Lane,
        ring_client: Callable[[], None],
        *,
        stages: Sequence[Stage] = (),
        own_flow: bool = True,
        mapped_ns: int = 0,
        report_damage: Callable[[int, str], None] = lambda number, damage: None,
        few: int = FEW_ROWS,
        runs: bool = True,
    ) -> None:
        self.number = number
        self.serial = serial
        self.model = model
        self.lane = lane
        self.ring_client = ring_client
        self.running = 0
        self.closing = False
        self.evicted = False
        self.broken = False
        self.admitted = 0
        self._completed = 0
        self._report_damage = report_damage
        self._few_most = few
        self._mapped_ns = mapped_ns
        self._sq = lane.sq_consumer()
        self._cq = lane.cq_producer()
        self._own_flow = -serial if own_flow else None  # below every flow that a row can carry
        self.reservations = Reservations(lane) if lane.spec.generates else None
        self._buckets = InputBuckets(lane)
        first, *later = stages or stages_of(lane.spec)
        self._first, self._later = int(first), [int(stage) for stage in later]
        self._later_buckets = {stage: StageBuckets(lane, stage) for stage in later}
        self._large = lane.arena_inputs
        self._cancels = -1  # no count: every cancel word is checked once
        self._cells = lane.memory.cells()
        self._tail_at, self._cancels_at = word(lane.layout, "sq_tail"), word(lane.layout, "cancels")
        self._sq_head = self._cells[word(lane.layout, "sq_head")]
        self._quick: QuickAdmission | None = None
        if self.reservations is None:
            self._quick = QuickAdmission(
                number, lane, self._buckets, self._own_flow, self._first if later else -1,
                few=few, runs=runs,
            )  # fmt: skip
        self._run_least = few + 1 if runs else lane.slots + 1
        self._state = lane.scalars("state")
        self._attempt = lane.scalars("attempt")
        self._status = lane.scalars("status")
        if later:
            self._stage = lane.scalars("stage")

    def set_gate(self, gate: LaneGate) -> None:
        """Store the gate."""
        self.lane.gate.set(int(gate))

    def close_gate(self, gate: LaneGate) -> None:
        """Store MOVED or GONE, then raise the generation, which makes the client check the gate and
        its slots."""
        self.lane.gate.set(int(gate))
        self.lane.generation.raise_by(1)
        self.ring_client()

    def admit(self) -> I64:
        """Admit every submitted row: copy its header words, once, and check them.

        Returns rows [QUEUE_COLUMNS, n], valid until the next call. A ring entry that names no
        submitted use of a slot is stale: it is counted and ignored. Ring counters or a slot number
        that no correct client writes break the lane.
        """
        lane = self.lane
        try:
            entries = self._sq.peek()
        except ValueError as exc:
            self._break(str(exc))
            return _NO_ROWS
        n = len(entries)
        if n == 0:
            return _NO_ROWS
        quick = None
        if self._quick is not None:
            quick = self._quick.admit(entries, self._are_inside_arena)
        if quick is not None:
            rows = quick
        else:
            slots, sequences = unpack(entries)
            if largest(slots) >= lane.slots:
                self._break(f"slot {largest(slots)} was submitted, of {lane.slots}")
                return _NO_ROWS
            slots = slots.astype(
                np.int64
            )  # indexing by any other dtype takes numpy five times as long
            good = (lane.state[slots] == _SUBMITTED) & (lane.sequence[slots] == sequences)
            if not every(good) or not _all_different(slots):
                slots, sequences = self._without_stale(slots, sequences, good)
            if self._large and not self._are_inside_arena(slots.tolist()):
                return _NO_ROWS
            rows = self._read_headers(slots, sequences)
            rows[QueueColumn.ATTEMPT] = 0
            lane.attempt[slots] = 0
            if self._later:
                lane.stage[slots] = self._first
            if self.reservations is not None:
                self.reservations.start(slots)
            lane.state[slots] = _QUEUED
        self._sq.advance(n)
        self._sq_head += n
        self.admitted += rows.shape[1]
        if self.admitted - self._completed > lane.slots:
            # Its client set slots back to SUBMITTED: the queue would have no end.
            self._break(f"more rows are under way than its {lane.slots} slots hold")
            return _NO_ROWS
        return rows

    def _are_inside_arena(self, slots: Sequence[int]) -> bool:
        """Break the lane where a row of these slots does not stand in its arena."""
        for column in self._large:
            if not column.are_inside(slots):
                self._break(f"a row of {column.tensor.name!r} reaches out of the arena")
                return False
        return True

    def enter_stage(self, rows: I64, stage: Stage) -> None:
        """Queue rows [QUEUE_COLUMNS, n], which were RUNNING, for their next stage.

        They have been in no failed batch there. Writes their ATTEMPT, BUCKET and RETURN. The caller
        asks for `recheck_cancels` where a row may have been cancelled meanwhile.
        """
        lane, slots = self.lane, rows[QueueColumn.SLOT]
        rows[QueueColumn.ATTEMPT] = rows[QueueColumn.RETURN] = 0
        rows[QueueColumn.BUCKET] = self._buckets_at(slots, stage)
        n, number = len(slots), int(stage)
        if n > self._few_most:
            first = first_of_run(slots) if n >= self._run_least else -1
            where = slice(first, first + n) if first >= 0 else slots
            lane.attempt[where] = 0
            lane.stage[where] = number
            lane.state[where] = _QUEUED
            return
        for slot in slots.tolist():
            self._attempt[slot] = 0
            self._stage[slot] = number
            self._state[slot] = _QUEUED

    def are_good(self, slots: Array) -> bool:
        """True if no row in these slots has ended with an error, as their workers wrote it."""
        n = len(slots)
        if n >= self._run_least and (first := first_of_run(slots)) >= 0:
            return every(self.lane.status[first : first + n] == _OK)
        if n > self._few_most:
            return every(self.lane.status[slots] == _OK)
        status = self._status
        for slot in slots.tolist():  # noqa: SIM110  # a third of the cost of `all`
            if status[slot] != _OK:
                return False
        return True

    def start_running(self, slots: Array) -> None:
        """Mark rows RUNNING, whose record stands."""
        self._set_states(slots, _RUNNING)
        self.running += len(slots)

    def _set_states(self, slots: Array, state: int) -> None:
        n = len(slots)
        if n >= self._run_least and (first := first_of_run(slots)) >= 0:
            self.lane.state[first : first + n] = state
            return
        if n > self._few_most:
            self.lane.state[slots] = state
            return
        for slot in slots.tolist():
            self._state[slot] = state

    def _without_stale(self, slots: Array, sequences: Array, good: Array) -> tuple[Array, Array]:
        """Drop and count stale entries and repeated entries of one slot."""
        candidates = np.flatnonzero(good)
        order = np.argsort(slots[candidates], kind="stable")
        ranked = slots[candidates][order]
        first = np.ones(len(ranked), dtype=bool)
        first[1:] = ranked[1:] != ranked[:-1]
        keep = np.zeros(len(slots), dtype=bool)
        keep[candidates[order[first]]] = True
        self.lane.stale.raise_by(int((~keep).sum()))
        return slots[keep], sequences[keep]

    def _break(self, damage: str) -> None:
        if not self.broken:
            self.broken = True
            self._report_damage(self.number, damage)
        self.set_gate(LaneGate.BROKEN)
        self.ring_client()

    def is_quiet(self) -> bool:
        """True if nothing was submitted or cancelled since the last admission.

        Only two loads, because every step asks every lane. Their order does not matter: the only
        conclusion drawn from them is that there is nothing to do yet.
        """
        cells = self._cells
        return cells[self._tail_at] == self._sq_head and cells[self._cancels_at] == self._cancels

    @property
    def cancels_heard(self) -> int:
        """The lane's `cancels` at the last `has_new_cancels`; negative if all are to be checked."""
        return self._cancels

    def has_new_cancels(self) -> bool:
        """True if cancel words were set since the last call. Call it before `admit`.

        A client publishes a row before it cancels it, so the cancelled rows counted here are
        admitted by the `admit` that follows.
        """
        now = self._cells[self._cancels_at]
        if now == self._cancels:
            return False
        self._cancels = now
        return True

    def recheck_cancels(self) -> None:
        """Check all cancel words again, because rows that were RUNNING are back in the queue."""
        self._cancels = -1

    def cancelled(self, slots: Array, sequences: Array) -> Array:
        """A mask [n] of the slot uses that the client has cancelled."""
        mask: Array = self.lane.cancel[slots] == sequences
        return mask

    def complete(self, slots: Array, sequences: Array) -> None:
        """Return slots to the client: DONE first, then the completion entries, then the bell."""
        self._set_states(slots, _DONE)
        self._completed += len(slots)
        try:
            if len(slots) <= self._few_most:
                uses = zip(slots.tolist(), sequences.tolist(), strict=True)
                self._cq.push_few([slot | sequence << 32 for slot, sequence in uses])
            else:
                self._cq.push(pack(slots, sequences))
        except (AssertionError, OverflowError, ValueError):
            # Its client reuses slots without ever taking completions, or wrote into the counters,
            # which it may do between any two looks at them.
            self._break(f"the completion queue has no room for {len(slots)} entries")
            return
        self.ring_client()

    def queued_rows(self, stage: Stage) -> I64:
        """The rows that are QUEUED for a stage in shared memory, for a batcher that takes over."""
        return self._rows_of(_QUEUED, stage)

    def running_rows(self, stage: Stage) -> I64:
        """The rows that are RUNNING in a stage as shared memory tells."""
        return self._rows_of(_RUNNING, stage)

    def _rows_of(self, state: int, stage: Stage) -> I64:
        lane = self.lane
        slots = np.flatnonzero(lane.state == state)
        if self._later:  # what else its client may have written is the first one
            found = lane.stage[slots]
            later = np.isin(found, self._later)
            slots = slots[~later if stage == self._first else found == int(stage)]
        return self.rows_in(slots, lane.sequence[slots], stage)

    def bound_times(self, rows: I64, now_ns: int) -> None:
        """Bound the times at which a local client says that it submitted rows [QUEUE_COLUMNS, n].

        A row that claims to wait for long is served and dispatched before others, and its wait is
        added to what all clients share: the counters.
        """
        if self._own_flow is None or rows.size == 0:
            return
        submits = rows[QueueColumn.SUBMIT_NS]
        earliest_ns = now_ns - _EARLIER_NS
        if least(submits) < earliest_ns or largest(submits) > now_ns:
            np.minimum(np.maximum(submits, earliest_ns), now_ns, out=submits)

    def rows_in(self, slots: Array, sequences: Array, stage: Stage) -> I64:
        """Rows [QUEUE_COLUMNS, n] of one stage in these slots, with the attempts that an earlier
        batcher counted."""
        rows = self._read_headers(slots, sequences)
        rows[QueueColumn.BUCKET] = self._buckets_at(slots, stage)
        if self._mapped_ns:
            self.bound_times(rows, self._mapped_ns)
        rows[QueueColumn.ATTEMPT] = self.lane.attempt[slots]
        rows[QueueColumn.SINCE_NS] = rows[QueueColumn.SUBMIT_NS]
        return rows

    def _read_headers(self, slots: Array, sequences: Array) -> I64:
        lane = self.lane
        rows = np.zeros((QUEUE_COLUMNS, len(slots)), dtype=np.int64)
        rows[QueueColumn.LANE] = self.number
        rows[QueueColumn.SLOT] = slots
        rows[QueueColumn.SEQUENCE] = sequences
        rows[QueueColumn.SUBMIT_NS] = lane.submit_ns[slots]
        rows[QueueColumn.DEADLINE_NS] = lane.deadline_ns[slots]
        rows[QueueColumn.PRIORITY] = lane.priority[slots]
        rows[QueueColumn.FLOW] = lane.flow[slots] if self._own_flow is None else self._own_flow
        rows[QueueColumn.BUCKET] = self._first_buckets(slots)
        return rows

    def _first_buckets(self, slots: Array) -> Array | int:
        """The buckets of the rows in these slots by their inputs; of a generator's rows, the tokens
        that they reserve."""
        if self.reservations is not None:
            return self.reservations.of(slots)
        return self._buckets.of(slots)

    def _buckets_at(self, slots: Array, stage: Stage) -> Array | list[int] | int:
        """The buckets of the rows in these slots, by the tensors that the stage reads."""
        later = self._later_buckets.get(stage)
        if later is not None:
            return later.of(slots, few=len(slots) <= self._few_most)
        return self._first_buckets(slots)
