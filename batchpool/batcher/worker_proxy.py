"""The batcher's side of one worker: writing batch records for it, and taking them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpool.batcher.mapped_lanes import LaneParts
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.decide import WorkerView
from batchpool.core.scheduler.element_budget import RowElements
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QueueColumn, largest, least
from batchpool.core.scheduler.size_buckets import joined_bucket
from batchpool.shm.lane import Lane
from batchpool.shm.segment import word
from batchpool.shm.worker_segment import CANCELS_MASK, WorkerSegment

_OK = int(BatchOutcome.OK)
# A batch is overdue after so many times the usual time, and this besides: it may never end.
_OVERDUE_TIMES, _OVERDUE_NS = 4, 100_000_000


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
    parts: `rows` by lane, where they are known already.
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


# methods: one for each step of the batcher on a worker's segment, and its state for decisions
class WorkerProxy:
    """One worker, as the batcher drives it through the worker's segment.

    number: unique among all workers ever. model: the number of the stage that it runs, which is
    the index of its model where that has one stage. active: it gets new
    batches; an inactive worker finishes those that it has. row: its row in the counters.
    identity: (index among its model's workers, pid), which error messages carry.
    token: of its last batch. elements_time: its batch times by their padded elements, where
    `row_elements` tells those of a row. last_bucket: of its last batch; -1 before the first one.
    reserved_tokens: of a generator's worker, those that its sequences may have.
    """

    def __init__(
        self,
        number: int,
        model: int,
        worker_segment: WorkerSegment,
        ring: Callable[[], None],
        *,
        active: bool = True,
        row: int = 0,
        identity: tuple[int, int] = (0, 0),
    ) -> None:
        self.number = number
        self.identity = identity
        self.model = model
        self.active = active
        self.row = row
        self.worker_segment = worker_segment
        self.ring = ring
        # By record, the oldest first: as they are dispatched, so are their tokens.
        self.batches: dict[int, DispatchedBatch] = {}
        self.reserved_tokens = 0  # of the sequences in flight
        # Records that are free unless they stand in `batches`; the last one is used first.
        self._unused = list(range(worker_segment.layout.slots - 1, -1, -1))
        self.service_time = ServiceTime()
        self.row_elements: RowElements | None = None
        self.elements_time: ServiceTime | None = None
        self.last_bucket = -1
        self._acknowledged = np.zeros(len(worker_segment.lanes), dtype=bool)
        self._mapped_version = -1  # of the lane table, all of whose lanes the worker has mapped
        self._sq = worker_segment.sq_producer()
        self._cq = worker_segment.cq_consumer()
        self._cells = worker_segment.memory.cells()
        self._cq_tail_at = word(worker_segment.layout, "cq_tail")
        self._ready_at = word(worker_segment.layout, "ready")
        self._cq_head = self._cells[word(worker_segment.layout, "cq_head")]
        self.token = int(worker_segment.token.max())
        self._last_done_ns = 0
        self._peeked = 0  # completion entries that the last `finished` saw
        self._view: WorkerView | None = None

    @property
    def in_flight(self) -> int:
        """The number of batches in flight."""
        return len(self.batches)

    def is_ready(self) -> bool:
        """True once the worker has loaded and warmed up its model."""
        return self._cells[self._ready_at] != 0

    def runnable_lanes(self, serials: I64, version: int) -> npt.NDArray[np.bool_] | None:
        """The lanes whose rows the worker can run, as a mask by number; None for all.

        serials, version: of the lane table. The acknowledgements are read again until the worker
        has mapped every lane of this version.
        """
        if self._mapped_version == version:
            return None
        if self._read_acknowledgements(serials):
            self._mapped_version = version
            return None
        return self._acknowledged

    def _read_acknowledgements(self, serials: I64) -> bool:
        """Read which lanes the worker has mapped; True if these are all."""
        self._acknowledged = (self.worker_segment.lanes == serials) & (serials > 0)
        return bool((self._acknowledged | (serials == 0)).all())

    def prepare(
        self,
        rows: I64,
        reason: DispatchReason,
        now_ns: int,
        number: int,
        cancels: int = 0,
        tokens: int = 0,
    ) -> DispatchedBatch:
        """Write a free record; storing its token last makes it the rows' record. The caller then
        marks the rows RUNNING and calls `publish`. number: see `DispatchedBatch`. cancels: the sum
        of `cancels_heard` of the rows' lanes. tokens: those that are reserved for a sequence."""
        worker_segment, unused = self.worker_segment, self._unused
        assert unused, "more batches in flight than records"
        record = unused.pop()
        while record in self.batches:  # one that was adopted
            record = unused.pop()
        n = rows.shape[1]
        attempt = largest(rows[QueueColumn.ATTEMPT])
        worker_segment.n_of[record] = n
        worker_segment.reason_of[record] = int(reason)
        worker_segment.attempt_of[record] = attempt
        worker_segment.due_ns_of[record] = least(rows[QueueColumn.DEADLINE_NS])
        worker_segment.cancels_of[record] = cancels & CANCELS_MASK
        if tokens:  # of a generator, whose bucket this is
            worker_segment.tokens_of[record] = tokens
            worker_segment.submit_ns_of[record] = rows.item(QueueColumn.SUBMIT_NS, 0)
            self.reserved_tokens += tokens
        else:
            bucket = int(rows[QueueColumn.BUCKET, 0])
            if bucket and least(rows[QueueColumn.BUCKET]) != largest(rows[QueueColumn.BUCKET]):
                bucket = joined_bucket({*rows[QueueColumn.BUCKET].tolist()})
            worker_segment.bucket_of[record] = self.last_bucket = bucket
        worker_segment.row_lane[record, :n] = rows[QueueColumn.LANE]
        worker_segment.row_slot[record, :n] = rows[QueueColumn.SLOT]
        worker_segment.row_sequence[record, :n] = rows[QueueColumn.SEQUENCE]
        self.token += 1
        worker_segment.token_of[record] = self.token
        apart = reason is DispatchReason.APART
        batch = DispatchedBatch(
            record, self.token, rows, now_ns, n, number, apart, int(reason), attempt, tokens=tokens
        )
        self.batches[record] = batch
        return batch

    def adopt(self, batch: DispatchedBatch) -> None:
        """Take over a batch that an earlier batcher dispatched; in any order of several."""
        self.batches[batch.record] = batch
        self.batches = dict(sorted(self.batches.items(), key=lambda item: item[1].token))
        self.reserved_tokens += batch.tokens

    def publish(self, batch: DispatchedBatch) -> None:
        """Push the record's ring entry and ring the worker."""
        self._sq.push_few([_entry_of(batch)])
        self.ring()

    def publish_all(self, batches: Sequence[DispatchedBatch]) -> None:
        """Push the ring entries of records in the order of their tokens, and ring the worker."""
        self._sq.push(np.array([_entry_of(batch) for batch in batches], dtype=np.uint64))
        self.ring()

    def has_published(self, batch: DispatchedBatch) -> bool:
        """True if the record's ring entry was pushed: entries are pushed in the order of their
        tokens, and the last one stays in the ring's memory when the worker has taken it."""
        last = self._sq.last()
        behind = ((last >> 32) - batch.token) & 0xFFFFFFFF
        return last >= 0 and behind < 1 << 31

    def is_quiet(self) -> bool:
        """True if nothing was finished since the last `advance`; every step asks every worker."""
        return self._cells[self._cq_tail_at] == self._cq_head

    def finished(self) -> list[DispatchedBatch]:
        """The batches with an entry in the completion ring, oldest first.

        The caller frees each one when its rows are completed, then calls `advance`.
        """
        entries = self._cq.peek()
        done: list[DispatchedBatch] = []
        if len(entries) == 0:
            return done
        for entry in entries.tolist():
            batch = self.batches.get(entry & 0xFFFFFFFF)
            if batch is not None and batch.token & 0xFFFFFFFF == entry >> 32:
                done.append(batch)
        self._peeked = len(entries)
        return done

    def advance(self) -> None:
        """Release the completion entries of the last `finished`, whose batches are free."""
        if self._peeked:
            self._cq.advance(self._peeked)
            self._cq_head += self._peeked
            self._peeked = 0

    def measure(self, batch: DispatchedBatch, now_ns: int) -> None:
        """Update the service time with a finished batch, transport to and from the worker
        included."""
        since_ns = max(batch.sent_ns, self._last_done_ns)
        self._last_done_ns = now_ns
        segment = self.worker_segment
        if batch.sent_ns and segment.outcome_of[batch.record] == _OK:
            at = batch.record
            if segment.refused_of[at] >= batch.size or segment.expired_of[at]:
                return  # less was computed: such times would make the next batches look cheap
            if not segment.cancelled_of[at]:
                self.service_time.took(batch.size, now_ns - since_ns)
                if self.elements_time is not None and self.row_elements is not None:
                    elements = self.row_elements.of(segment.bucket_of[at])
                    self.elements_time.took(batch.size * elements, now_ns - since_ns)

    def reset_service_time(self, sizes: tuple[int, ...]) -> None:
        """Forget the measured times. sizes: the batch sizes that the model accepts; () for any."""
        self.service_time = ServiceTime(sizes)
        self._view = None
        self.measure_elements(self.row_elements)

    def measure_elements(self, row_elements: RowElements | None) -> None:
        """Measure batches by their padded elements too, unless row_elements is None."""
        self.row_elements = row_elements
        self.elements_time = None if row_elements is None else ServiceTime()

    def free_at_ns(self, now_ns: int) -> int:
        """The expected time at which its batches in flight are finished; 0 if it has none."""
        if not self.batches:
            return 0
        at_ns = float(self._last_done_ns)
        for batch in self.batches.values():
            at_ns = max(at_ns, batch.sent_ns) + self._expected_ns(batch)
        return max(now_ns, int(at_ns))

    def _expected_ns(self, batch: DispatchedBatch) -> float:
        """The expected time of a batch: by its elements where rows differ in these."""
        time = self.elements_time
        if time is None or self.row_elements is None or not time.known:
            return self.service_time.mean_ns(batch.size)
        elements = self.row_elements.of(self.worker_segment.bucket_of[batch.record])
        return time.mean_ns(batch.size * elements)

    def overdue_since_ns(self, now_ns: int) -> int:
        """The start of its oldest batch if that takes so long that it may hang, else 0.

        Nothing is queued behind such a batch.
        """
        if not self.batches or not self.service_time.known:
            return 0
        oldest = next(iter(self.batches.values()))
        usual_ns = self.service_time.spread * self._expected_ns(oldest)
        since_ns = max(oldest.sent_ns, self._last_done_ns)
        return since_ns if now_ns - since_ns > _OVERDUE_TIMES * usual_ns + _OVERDUE_NS else 0

    def runs_apart(self) -> bool:
        """True while a batch of suspects is in flight."""
        for batch in self.batches.values():  # noqa: SIM110  # a third of the cost of `any`
            if batch.apart:
                return True
        return False

    def view(
        self, lanes: npt.NDArray[np.bool_] | None, free_at_ns: int, overdue_since_ns: int = 0
    ) -> WorkerView:
        """The worker as `decide` sees it; the previous object again if nothing has changed."""
        view, in_flight = self._view, len(self.batches)
        closed = overdue_since_ns > 0 or self.runs_apart()
        if (
            view is None
            or view.in_flight != in_flight
            or view.lanes is not lanes
            or view.free_at_ns != free_at_ns
            or view.closed is not closed
            or view.overdue_since_ns != overdue_since_ns
            or view.last_bucket != self.last_bucket
        ):
            view = self._view = WorkerView(
                self.number,
                in_flight,
                lanes,
                self.service_time,
                free_at_ns,
                closed,
                overdue_since_ns,
                self.elements_time,
                self.last_bucket,
            )
        return view

    def has_launched(self, batch: DispatchedBatch) -> bool:
        """True if the worker began with this batch: its rows may be the reason for its death."""
        return self.worker_segment.launched.get() >= batch.token

    def tokens_made(self, batch: DispatchedBatch) -> int:
        """The tokens that the worker has made for a sequence since it joined; 0 before."""
        # What an earlier use of the record left is gone before `launched` names this one.
        return self.worker_segment.made_of[batch.record] if self.has_launched(batch) else 0

    def has_finished(self, batch: DispatchedBatch) -> bool:
        """True if the worker stored `finished` for this batch, with or without a ring entry."""
        return bool(self.worker_segment.finished[batch.record] == batch.token)

    def cancels_since(self, batch: DispatchedBatch, lanes: Sequence[Lane]) -> bool:
        """True if a client may have cancelled rows of a batch since its dispatch. lanes: all those
        that the batch has rows of."""
        cancels = sum([lane.cancels.get() for lane in lanes])
        return cancels & CANCELS_MASK != self.worker_segment.cancels_of[batch.record]

    def free(self, batch: DispatchedBatch) -> None:
        """Release the record of a batch all of whose rows are completed."""
        self.worker_segment.freed[batch.record] = batch.token
        del self.batches[batch.record]
        self.reserved_tokens -= batch.tokens
        self._unused.append(batch.record)


def _entry_of(batch: DispatchedBatch) -> int:
    return batch.record | (batch.token & 0xFFFFFFFF) << 32
