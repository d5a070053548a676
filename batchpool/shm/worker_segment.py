"""A worker's segment: the queue pair of batch records between the batcher and that worker."""

from __future__ import annotations

from collections.abc import Callable

from batchpool.core.layout.segments import WORKER_WORDS, Layout
from batchpool.shm.lane import Word
from batchpool.shm.ring import Consumer, Producer, fence
from batchpool.shm.segment import Memory, ring_parts, word

CANCELS_MASK = 2**63 - 1  # clients may count as high as they please
_RING_WORDS = {"sq_tail", "sq_head", "cq_tail", "cq_head"}


class WorkerSegment:
    """The words and columns of one worker's segment; see core/layout/segments.py:worker_layout.

    Ring entries are record numbers (low 32 bits) with the low half of the record's token.
    """

    def __init__(self, memory: Memory, layout: Layout, fence: Callable[[], None] = fence) -> None:
        self.memory = memory
        self.layout = layout
        self.fence = fence
        cells = memory.cells()
        for name in WORKER_WORDS.keys() - _RING_WORDS:
            setattr(self, name, Word(cells, word(layout, name)))
        columns = layout.columns
        self.token = memory.array(columns["token"])
        self.freed = memory.array(columns["freed"])
        self.finished = memory.array(columns["finished"])
        self.n = memory.array(columns["n"])
        self.reason = memory.array(columns["reason"])
        self.attempt = memory.array(columns["attempt"])
        self.outcome = memory.array(columns["outcome"])
        self.extents = memory.array(columns["extents"])
        self.start_ns = memory.array(columns["start_ns"])
        self.end_ns = memory.array(columns["end_ns"])
        # Of one record, as a number; a load or store so costs a third of that of an array.
        self.token_of = memory.scalars(columns["token"])
        self.freed_of = memory.scalars(columns["freed"])
        self.finished_of = memory.scalars(columns["finished"])
        self.n_of = memory.scalars(columns["n"])
        self.reason_of = memory.scalars(columns["reason"])
        self.attempt_of = memory.scalars(columns["attempt"])
        self.due_ns_of = memory.scalars(columns["due_ns"])
        self.cancels_of = memory.scalars(columns["cancels"])
        self.bucket_of = memory.scalars(columns["bucket"])
        self.refused_of = memory.scalars(columns["refused"])
        self.expired_of = memory.scalars(columns["expired"])
        self.cancelled_of = memory.scalars(columns["cancelled"])
        self.tokens_of = memory.scalars(columns["tokens"])
        self.outcome_of = memory.scalars(columns["outcome"])
        self.extents_of = memory.scalars(columns["extents"])
        self.start_ns_of = memory.scalars(columns["start_ns"])
        self.end_ns_of = memory.scalars(columns["end_ns"])
        self.submit_ns_of = memory.scalars(columns["submit_ns"])
        self.made = memory.array(columns["made"])
        self.made_of = memory.scalars(columns["made"])
        self.tickets = memory.array(columns["tickets"])  # [record, lane, slot or sequence, row]
        self.check_of = memory.scalars(columns["check"])
        self.lanes = memory.array(columns["lanes"])

    progress_ns: Word
    running: Word
    launched: Word
    batches: Word
    good: Word
    rows: Word
    ready: Word
    sequences: Word
    kv_tokens: Word

    def sq_producer(self) -> Producer:
        return Producer(*ring_parts(self.memory, self.layout, "sq"), fence=self.fence)

    def sq_consumer(self) -> Consumer:
        return Consumer(*ring_parts(self.memory, self.layout, "sq"))

    def cq_producer(self) -> Producer:
        return Producer(*ring_parts(self.memory, self.layout, "cq"), fence=self.fence)

    def cq_consumer(self) -> Consumer:
        return Consumer(*ring_parts(self.memory, self.layout, "cq"))
