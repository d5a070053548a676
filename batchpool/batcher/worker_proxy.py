"""The batcher's side of one worker: writing batch records for it, and taking them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.batcher.segment_checks import (
    attached_damage,
    end_damage,
    freed_entries,
)
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.decide import WorkerView
from batchpool.core.scheduler.element_budget import RowElements
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QueueColumn, largest, least
from batchpool.core.scheduler.size_buckets import joined_bucket
from batchpool.shm.batch_record import write_record
from batchpool.shm.ring import DamagedRing
from batchpool.shm.segment import word
from batchpool.shm.worker_segment import CANCELS_MASK, WorkerSegment

_OK = int(BatchOutcome.OK)
# A batch is overdue after so many times the usual time, and this besides: it may never end.
_OVERDUE_TIMES, _OVERDUE_NS = 4, 100_000_000
_NO_ROOM = "ring counters disagree: the submission ring has no room"
_TICKET = QueueColumn.SEQUENCE + 1  # the first columns of a row: its lane, slot and sequence


# methods: one for each step of the batcher on a worker's segment, and its state for decisions
class WorkerProxy:
    """One worker, as the batcher drives it through the worker's segment.

    number: unique among all workers ever. model: the number of the stage that it runs, which is
    the index of its model where that has one stage. active: it gets new
    batches; an inactive worker finishes those that it has. row: its row in the counters.
    identity: (index among its model's workers, pid), which error messages carry.
    token: of its last batch. elements_time: its batch times by their padded elements, where
    `row_elements` tells those of a row. last_bucket: of its last batch; -1 before the first one.
    reserved_tokens: of a generator's worker, those that its sequences may have. mapped_ns: when its
    segment was mapped, 0 for unknown. handled: ring entries that may still come, whose batches a
    batcher has completed already. good: batches that it has finished well. sequence_limits: as in
    batcher/sequence_words.py, None before they were read.

    damage: what was found in the segment that no correct process writes, "" while it is sound; see
    batcher/segment_checks.py. report_damage was called with the number, that, and whether any batch
    was good. A broken worker is never ready and never finishes a batch: it loses those that it has.
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
        mapped_ns: int = 0,
        report_damage: Callable[[int, str, bool], None] = lambda number, damage, useful: None,
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
        self._taken: I64 = np.zeros(len(worker_segment.lanes), dtype=np.int64)  # serials, by lane
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
        self._most = worker_segment.tickets.shape[2]
        self.sequence_limits: tuple[int, int] | None = None
        self._mapped_ns = mapped_ns
        self._report_damage = report_damage
        self.good = 0
        self.handled = freed_entries(worker_segment)
        self.damage = ""
        if damage := attached_damage(worker_segment):
            self.mark_broken(damage)

    def mark_broken(self, damage: str) -> None:
        """Hold the worker for broken from now on, since this was found in its segment."""
        if not self.damage:
            self.damage = damage
            # What every step reads of the segment is nothing from now on: no ring entry, not ready.
            self._cells = [0] * (max(self._cq_tail_at, self._ready_at) + 1)
            self._cq_head = self._peeked = 0
            self._report_damage(self.number, damage, self.good > 0)

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
        lost = (self._taken > 0) & (self._taken == serials) & ~self._acknowledged
        if lost.any():
            self.mark_broken(f"lane {int(lost.argmax())} is not mapped any more")
        self._taken = np.where(self._acknowledged, serials, 0)
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
        segment, unused = self.worker_segment, self._unused
        assert unused, "more batches in flight than records"
        record = unused.pop()
        while record in self.batches:  # one that was adopted
            record = unused.pop()
        n = rows.shape[1]
        if n == 1:
            attempt = rows.item(QueueColumn.ATTEMPT, 0)
            due_ns = rows.item(QueueColumn.DEADLINE_NS, 0)
        else:
            attempt = largest(rows[QueueColumn.ATTEMPT])
            due_ns = least(rows[QueueColumn.DEADLINE_NS])
        cancels &= CANCELS_MASK
        bucket = 0
        if tokens:  # of a generator, whose bucket this is
            detail = rows.item(QueueColumn.SUBMIT_NS, 0)
            self.reserved_tokens += tokens
        else:
            bucket = rows.item(QueueColumn.BUCKET, 0)
            if bucket and least(rows[QueueColumn.BUCKET]) != largest(rows[QueueColumn.BUCKET]):
                bucket = joined_bucket({*rows[QueueColumn.BUCKET].tolist()})
            self.last_bucket = detail = bucket
        token = self.token = self.token + 1
        why, tickets = int(reason), rows[:_TICKET]
        write_record(segment, record, tickets, token, why, attempt, tokens, due_ns, detail, cancels)
        segment.token_of[record] = token
        apart = reason is DispatchReason.APART
        batch = DispatchedBatch(
            record, token, rows, now_ns, n, number, apart, why, attempt, 0, False, tokens, None,
            bucket, cancels,
        )  # fmt: skip
        self.batches[record] = batch
        return batch

    def adopt(self, batch: DispatchedBatch) -> None:
        """Take over a batch that an earlier batcher dispatched; in any order of several."""
        self.batches[batch.record] = batch
        self.batches = dict(sorted(self.batches.items(), key=lambda item: item[1].token))
        self.reserved_tokens += batch.tokens

    def publish(self, batch: DispatchedBatch) -> None:
        """Push the record's ring entry and ring the worker."""
        try:
            self._sq.push_few([batch.entry])
        except AssertionError:
            self.mark_broken(_NO_ROOM)
        self.ring()

    def publish_all(self, batches: Sequence[DispatchedBatch]) -> None:
        """Push the ring entries of records in the order of their tokens, and ring the worker."""
        try:
            self._sq.push_few([batch.entry for batch in batches])
        except AssertionError:
            self.mark_broken(_NO_ROOM)
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

    def finished(self, now_ns: int = 0) -> list[DispatchedBatch]:
        """The batches with an entry in the completion ring, oldest first. now_ns: 0 for unknown.

        The caller frees each one when its rows are completed, then calls `advance`.
        """
        try:
            entries = self._cq.peek()
        except DamagedRing as exc:
            self.mark_broken(str(exc))
            return []
        done: list[DispatchedBatch] = []
        if len(entries) == 0 or self.damage:
            return done
        for entry in entries.tolist():
            batch = self.batches.get(entry & 0xFFFFFFFF)
            if batch is not None and batch.entry == entry:
                if not self._read_end(batch, now_ns):
                    return []
                done.append(batch)
                continue
            if entry not in self.handled:
                self.mark_broken(f"a ring entry names batch {entry >> 32}, which is not in flight")
                return []
            self.handled.remove(entry)
        if len(done) > 1 and len({batch.record for batch in done}) < len(done):
            self.mark_broken("a batch stands twice in the completion ring")
            return []
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
        if batch.sent_ns and batch.end is not None and batch.end[0] == _OK:
            _, refused, expired, cancelled, _, _, _ = batch.end
            if refused >= batch.size or expired:
                return  # less was computed: such times would make the next batches look cheap
            if not cancelled:
                self.service_time.took(batch.size, now_ns - since_ns)
                if self.elements_time is not None and self.row_elements is not None:
                    elements = self.row_elements.of(batch.bucket)
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
        elements = self.row_elements.of(batch.bucket)
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
        """True if the worker began with this batch: its rows may be the reason for its death. So
        may be all that a broken worker had."""
        return bool(self.damage) or self.worker_segment.launched.get() >= batch.token

    def check(self) -> None:
        """Check the whole segment, when the worker has ended: the blame depends on it."""
        if not self.damage and (damage := attached_damage(self.worker_segment)):
            self.mark_broken(damage)

    def has_finished(self, batch: DispatchedBatch, now_ns: int = 0) -> bool:
        """True if the worker stored `finished` for this batch, with or without a ring entry; its
        `end` is known then. now_ns: about now, 0 for when the segment was mapped."""
        if batch.end is None and not self.damage:
            if self.worker_segment.finished_of[batch.record] != batch.token:
                return False
            if self.has_launched(batch):
                return self._read_end(batch, now_ns or self._mapped_ns)
            self.mark_broken(f"batch {batch.token} ended and was not launched")
        return batch.end is not None

    def _read_end(self, batch: DispatchedBatch, now_ns: int) -> bool:
        """Copy the words with which a batch has ended; False where they cannot be."""
        segment, record = self.worker_segment, batch.record
        outcome, refused, expired, cancelled, extents, start_ns, end_ns = end = (
            segment.outcome_of[record], segment.refused_of[record], segment.expired_of[record],
            segment.cancelled_of[record], segment.extents_of[record], segment.start_ns_of[record],
            segment.end_ns_of[record],
        )  # fmt: skip
        if not (
            outcome == _OK
            and refused + expired + cancelled <= batch.size
            and extents <= self._most
            and 0 <= start_ns <= end_ns <= now_ns
        ):  # unlike most batches; a time may be a little later than the step's
            damage = end_damage(end, batch.size, self._most, batch.tokens > 0, now_ns)
            if damage:
                self.mark_broken(damage)
                return False
        batch.end = end
        self.good += outcome == _OK
        return True

    def free(self, batch: DispatchedBatch) -> None:
        """Release the record of a batch all of whose rows are completed."""
        self.worker_segment.freed_of[batch.record] = batch.token
        del self.batches[batch.record]
        self.reserved_tokens -= batch.tokens
        self._unused.append(batch.record)
