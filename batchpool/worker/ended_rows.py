"""Rows whose deadline passed, or that were cancelled, while their batch stood behind another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from batchpool.core.errors import Status
from batchpool.core.tensors.dtypes import Array
from batchpool.shm.batch_record import BatchRecord
from batchpool.shm.worker_segment import CANCELS_MASK
from batchpool.worker.backends.backend import BatchPart


@dataclass(frozen=True)
class EndedRows:
    """The rows of a batch that the model does not get. kept: a mask [rows] of the others."""

    kept: Array
    expired: int
    cancelled: int


def may_have_ended(record: BatchRecord, parts: Sequence[BatchPart], now_ns: int) -> bool:
    """True if a row of the record may be late or cancelled since the batcher dispatched it.

    The batcher looked at both just before. So the deadlines need another look only after the
    earliest, and the cancel words only if a client has set one since, in any slot.
    """
    if now_ns >= record.due_ns:
        return True
    cancels = sum([part.lane.cancels.get() for part in parts])
    return cancels & CANCELS_MASK != record.cancels


def end_rows(record: BatchRecord, parts: Sequence[BatchPart], now_ns: int) -> EndedRows | None:
    """Write the statuses of the rows that are late or cancelled at `now_ns`; None if none is.

    A row that is both is late: clients cancel what they no longer wait for. The words are the
    client's: one that changes them while its row is RUNNING ends no other row than its own.
    """
    kept = np.ones(record.n, dtype=bool)
    counts = {Status.CANCELLED: 0, Status.DEADLINE: 0}
    for part in parts:
        sequences = record.tickets[2, part.start : part.stop]
        late = part.lane.deadline_ns[part.slots] <= now_ns
        cancelled = (part.lane.cancel[part.slots] == sequences) & ~late
        for status, over in ((Status.CANCELLED, cancelled), (Status.DEADLINE, late)):
            slots = part.slots[over]
            if len(slots):
                part.lane.write_status(slots, status)
                counts[status] += len(slots)
        kept[part.start : part.stop] = ~(cancelled | late)
    if kept.all():
        return None
    return EndedRows(kept, counts[Status.DEADLINE], counts[Status.CANCELLED])
