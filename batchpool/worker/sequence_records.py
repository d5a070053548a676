"""The batch records of a generator's worker: each is one row, which is taken and ended alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.shm.batch_record import DamagedSegment, read_record
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.device_errors import MustRestart

_LOW_HALF = 2**32 - 1


class RowRecord(NamedTuple):
    """A record as the batcher wrote it, for a row of a lane. use: the slot's sequence number.
    reserved: the tokens that are set aside for the row. submit_ns: when it was submitted."""

    record: int
    token: int
    lane: int
    slot: int
    use: int
    due_ns: int
    reserved: int
    submit_ns: int


class EndedRecord(NamedTuple):
    """A record that is over. status: of its row; OK also where the row has none to be told."""

    record: int
    token: int
    outcome: BatchOutcome
    status: Status = Status.OK


class RecordRing:
    """The worker's end of the ring of records. Records are taken in order and ended in any."""

    def __init__(self, segment: WorkerSegment, ring_batcher: Callable[[], None]) -> None:
        self._segment = segment
        self._ring_batcher = ring_batcher
        self._sq = segment.sq_consumer()
        self._cq = segment.cq_producer()

    def pending(self, most: int) -> list[RowRecord]:
        """The next records, at most so many; they stay pending until `begin`."""
        if most == 0 or self._sq.pending() == 0:
            return []
        return [self._read(entry & _LOW_HALF) for entry in self._sq.peek()[:most].tolist()]

    def begin(self, records: Sequence[RowRecord], now_ns: int) -> None:
        """These are begun, before the generator hears of them: where the worker dies from now on,
        they may be the cause."""
        segment = self._segment
        for row in records:
            segment.start_ns_of[row.record] = now_ns
            segment.extents_of[row.record] = 1
            segment.made_of[row.record] = 0
        segment.launched.set(max(row.token for row in records))
        self._sq.advance(len(records))

    def end(self, ended: Sequence[EndedRecord], now_ns: int) -> None:
        """Announce rows, whose tokens and statuses are written: store `finished`, push the ring
        entries, ring the bell, in this order."""
        segment = self._segment
        for record, _, outcome, status in ended:
            segment.end_ns_of[record] = now_ns
            segment.refused_of[record] = int(status is Status.INVALID_INPUT)
            segment.expired_of[record] = int(status is Status.DEADLINE)
            segment.cancelled_of[record] = int(status is Status.CANCELLED)
            segment.outcome_of[record] = int(outcome)
        segment.fence()
        for record, token, _, _ in ended:
            segment.finished_of[record] = token
        for word in (segment.batches, segment.rows):
            word.set(word.get() + len(ended))
        self._cq.push(_entries(ended))
        self._ring_batcher()

    def _read(self, record: int) -> RowRecord:
        try:
            written = read_record(self._segment, record)
        except DamagedSegment as exc:
            raise MustRestart(str(exc)) from exc
        (lane,), (slot,), (use,) = written.tickets.tolist()
        token, due_ns, reserved = written.token, written.due_ns, written.tokens
        return RowRecord(record, token, lane, slot, use, due_ns, reserved, written.detail)


def _entries(ended: Sequence[EndedRecord]) -> npt.NDArray[np.uint64]:
    values = [row.record | (row.token & _LOW_HALF) << 32 for row in ended]
    return np.array(values, dtype=np.uint64)
