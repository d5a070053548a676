"""Admitting rows without arrays of indices: a few by plain numbers, neighbours by slices.

A client's slots are claimed one after the other, so that the rows of a group mostly stand side by
side. To copy a header column of neighbours takes a third of the time of picking slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from batchpool.batcher.input_buckets import InputBuckets
from batchpool.core.few_rows import FEW_ROWS
from batchpool.core.layout.states import SlotState
from batchpool.core.scheduler.queue import I64, QUEUE_COLUMNS, QueueColumn
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.lane import Lane
from batchpool.shm.ring import U64, unpack

AreInsideArena: TypeAlias = Callable[[Sequence[int]], bool]

_SUBMITTED, _QUEUED = int(SlotState.SUBMITTED), int(SlotState.QUEUED)
RUN_MOST: Final = 256  # neighbours that are admitted at once; more are admitted as any others
_RUN_LEAST: Final = 6  # fewer neighbours are cheaper as plain numbers
_RUN_SUBMITTED: Final = np.full(RUN_MOST, _SUBMITTED, dtype=np.uint32).tobytes()
_STATE_BYTES: Final = 4
# Where the columns of `QuickAdmission._rows` begin.
_SLOT_AT: Final = QueueColumn.SLOT * RUN_MOST
_SEQUENCE_AT: Final = QueueColumn.SEQUENCE * RUN_MOST
_SUBMIT_AT: Final = QueueColumn.SUBMIT_NS * RUN_MOST
_DEADLINE_AT: Final = QueueColumn.DEADLINE_NS * RUN_MOST
_PRIORITY_AT: Final = QueueColumn.PRIORITY * RUN_MOST
_FLOW_AT: Final = QueueColumn.FLOW * RUN_MOST
_BUCKET_AT: Final = QueueColumn.BUCKET * RUN_MOST


def first_of_run(slots: Array) -> int:
    """The first of at least one slot, where each is one more than that before it; else -1."""
    listed = slots.tolist()
    first: int = listed[0]
    return first if listed == list(range(first, first + len(listed))) else -1


class QuickAdmission:
    """The admission of few rows, and of rows in neighbouring slots, of one lane.

    own_flow: of all rows; None where each row carries its flow. first: the number of the lane's
    first stage, of several, else -1. few: so many rows at most are read as plain numbers. runs:
    neighbours are read by slices.
    """

    def __init__(
        self,
        number: int,
        lane: Lane,
        buckets: InputBuckets,
        own_flow: int | None,
        first: int,
        *,
        few: int = FEW_ROWS,
        runs: bool = True,
    ) -> None:
        self._lane = lane
        self._buckets = buckets
        self._carry_flow: Final = own_flow is None
        self._first = first
        self._large: Final = bool(lane.arena_inputs)
        self._few_most = few
        self._run_most = RUN_MOST if runs else 0
        self._rows: I64 = np.zeros((QUEUE_COLUMNS, RUN_MOST), dtype=np.int64)
        self._rows[QueueColumn.LANE] = number
        if own_flow is not None:
            self._rows[QueueColumn.FLOW] = own_flow
        self._at = memoryview(self._rows.data).cast("B").cast("q")
        self._state = lane.scalars("state")
        self._sequence = lane.scalars("sequence")
        self._submit_ns = lane.scalars("submit_ns")
        self._deadline_ns = lane.scalars("deadline_ns")
        self._priority = lane.scalars("priority")
        self._flow = lane.scalars("flow")
        self._attempt = lane.scalars("attempt")
        if first >= 0:
            self._stage = lane.scalars("stage")

    def admit(self, entries: U64, are_inside_arena: AreInsideArena) -> I64 | None:
        """Admit rows by at least one ring entry; the caller advances the ring.

        are_inside_arena: tells whether the rows of these slots stand in the lane's arena. It is not
        kept, since it belongs to the one who keeps this: a circle would hold the lane's memory.
        Returns the rows [QUEUE_COLUMNS, n], valid until the next call. None, with nothing done,
        where they are too many or not in the order of slots, and where an entry is stale or wrong.
        """
        n = len(entries)
        may_be_run = n > self._few_most or n >= _RUN_LEAST
        if may_be_run and n <= self._run_most and self._admit_run(entries, are_inside_arena):
            return self._rows[:, :n]
        if n <= self._few_most and self._admit_few(entries.tolist(), are_inside_arena):
            return self._rows[:, :n]
        return None

    def _admit_run(self, entries: U64, are_inside_arena: AreInsideArena) -> bool:
        lane, n = self._lane, len(entries)
        slots, sequences = unpack(entries)
        first = first_of_run(slots)
        end = first + n
        if first < 0 or end > lane.slots:
            return False
        here = slice(first, end)
        if lane.state[here].tobytes() != _RUN_SUBMITTED[: n * _STATE_BYTES]:
            return False
        if lane.sequence[here].tobytes() != sequences.tobytes():
            return False
        if self._large and not are_inside_arena(range(first, end)):
            return False
        rows = self._rows
        rows[QueueColumn.SLOT, :n] = slots
        rows[QueueColumn.SEQUENCE, :n] = sequences
        rows[QueueColumn.SUBMIT_NS, :n] = lane.submit_ns[here]
        rows[QueueColumn.DEADLINE_NS, :n] = lane.deadline_ns[here]
        rows[QueueColumn.PRIORITY, :n] = lane.priority[here]
        if self._carry_flow:
            rows[QueueColumn.FLOW, :n] = lane.flow[here]
        if self._buckets.many:
            if n <= self._few_most:
                for k in range(n):
                    self._at[_BUCKET_AT + k] = self._buckets.of_one(first + k)
            else:
                rows[QueueColumn.BUCKET, :n] = self._buckets.of(np.arange(first, end))
        lane.attempt[here] = 0
        if self._first >= 0:
            lane.stage[here] = self._first
        lane.state[here] = _QUEUED
        return True

    def _admit_few(self, entries: list[int], are_inside_arena: AreInsideArena) -> bool:
        state, sequence, slots, last = self._state, self._sequence, [], -1
        for entry in entries:
            slot = entry & 0xFFFFFFFF
            if not last < slot < self._lane.slots:
                return False
            if state[slot] != _SUBMITTED or sequence[slot] != entry >> 32:
                return False
            slots.append(slot)
            last = slot
        if self._large and not are_inside_arena(slots):
            return False
        at, attempt = self._at, self._attempt
        for k, slot in enumerate(slots):
            at[_SLOT_AT + k] = slot
            at[_SEQUENCE_AT + k] = entries[k] >> 32
            at[_SUBMIT_AT + k] = self._submit_ns[slot]
            at[_DEADLINE_AT + k] = self._deadline_ns[slot]
            at[_PRIORITY_AT + k] = self._priority[slot]
            if self._carry_flow:
                at[_FLOW_AT + k] = self._flow[slot]
            if self._buckets.many:
                at[_BUCKET_AT + k] = self._buckets.of_one(slot)
            attempt[slot] = 0
            if self._first >= 0:
                self._stage[slot] = self._first
            state[slot] = _QUEUED
        return True
