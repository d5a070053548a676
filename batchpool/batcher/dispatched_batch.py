"""A batch in flight, as the batcher keeps it in its own memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from batchpool.batcher.mapped_lanes import LaneParts
from batchpool.batcher.segment_checks import BatchEnd
from batchpool.core.scheduler.queue import I64
from batchpool.shm.lane import Lane
from batchpool.shm.worker_segment import CANCELS_MASK


# With a constructor of its own: one that `dataclass` makes stays interpreted in a compiled module.
@dataclass(init=False)
class DispatchedBatch:
    """A batch in flight at a worker. rows: [QUEUE_COLUMNS, n].

    record, token: its record in the worker's segment, and the number that identifies its use.
    size: the number of rows at its dispatch; a takeover may find fewer of them RUNNING. apart: its
    rows are suspects, and the worker gets no other batch meanwhile. sent_ns: when it was
    dispatched; 0 if by an earlier batcher. number: rises with each batch of the pool; the token of
    one that an earlier batcher dispatched. reason, attempt: as in its record. queued_ns: the wait
    of its oldest row. counted: it is in the metrics and in the flight recorder.

    A running sequence of a generator is a batch of one row. tokens: those that are reserved for it.
    parts: `rows` by lane, where they are known already. bucket, cancels: as in its record; cancels
    is negative if that is not known. end: how it ended, once the worker has said so. entry: of a
    ring, which names this use of the record.
    """

    record: int
    token: int
    rows: I64
    sent_ns: int
    size: int
    number: int
    apart: bool
    reason: int
    attempt: int
    queued_ns: int
    counted: bool
    tokens: int
    parts: LaneParts | None
    bucket: int
    cancels: int
    end: BatchEnd | None
    entry: int = field(init=False)

    def __init__(
        self,
        record: int,
        token: int,
        rows: I64,
        sent_ns: int,
        size: int,
        number: int,
        apart: bool = False,
        reason: int = 0,
        attempt: int = 0,
        queued_ns: int = 0,
        counted: bool = False,
        tokens: int = 0,
        parts: LaneParts | None = None,
        bucket: int = 0,
        cancels: int = -1,
        end: BatchEnd | None = None,
    ) -> None:
        self.record = record
        self.token = token
        self.rows = rows
        self.sent_ns = sent_ns
        self.size = size
        self.number = number
        self.apart = apart
        self.reason = reason
        self.attempt = attempt
        self.queued_ns = queued_ns
        self.counted = counted
        self.tokens = tokens
        self.parts = parts
        self.bucket = bucket
        self.cancels = cancels
        self.end = end
        self.entry = record | (token & 0xFFFFFFFF) << 32

    def cancels_since(self, lanes: Sequence[Lane]) -> bool:
        """True if a client may have cancelled rows of it since its dispatch. lanes: all those that
        it has rows of."""
        cancels = sum([lane.cancels.get() for lane in lanes])
        return cancels & CANCELS_MASK != self.cancels
