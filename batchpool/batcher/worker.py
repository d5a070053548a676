"""The batcher's side of one worker: hand it batch records, take them back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from batchpool.core.layout.segments import RECORDS
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.decide import WorkerView
from batchpool.core.scheduler.estimators import ServiceTime
from batchpool.core.scheduler.queue import I64, QueueColumn, largest
from batchpool.shm.worker_segment import WorkerSegment

_OK = int(BatchOutcome.OK)
# A batch that took so many times the usual time, and this besides, may never end.
_OVERDUE_TIMES, _OVERDUE_NS = 4, 100_000_000


@dataclass
class DispatchedBatch:
    """A batch under way: which record, which rows [QUEUE_COLUMNS, n], when it left.

    apart: its rows are suspects, and nothing else may ride with them.
    size: how many rows left with it; a takeover may find fewer of them still RUNNING.
    sent_ns is 0 where an earlier batcher sent it. reason, attempt: as in its record. queued_ns: how
    long its oldest row had waited. counted: it stands in the tally and the flight recorder.
    """

    record: int
    token: int
    rows: I64
    sent_ns: int
    size: int
    apart: bool = False
    reason: int = 0
    attempt: int = 0
    queued_ns: int = 0
    counted: bool = False


class WorkerProxy:
    """One worker as the batcher holds it. on_duty: whether it gets new batches; one that does not
    finishes what it has. row: its seat's in the counters. who: its place among the model's workers,
    and its pid."""

    def __init__(
        self,
        number: int,
        model: int,
        worker_segment: WorkerSegment,
        ring: Callable[[], None],
        *,
        on_duty: bool = True,
        row: int = 0,
        who: tuple[int, int] = (0, 0),
    ) -> None:
        self.number = number
        self.who = who
        self.model = model
        self.on_duty = on_duty
        self.row = row
        self.worker_segment = worker_segment
        self.ring = ring
        self.batches: dict[int, DispatchedBatch] = {}
        self.acknowledged = np.zeros(len(worker_segment.lanes), dtype=bool)
        self._sq = worker_segment.sq_producer()
        self._cq = worker_segment.cq_consumer()
        self._token = int(worker_segment.token.max())
        self.time = ServiceTime()
        self._last_done_ns = 0

    @property
    def in_flight(self) -> int:
        return len(self.batches)

    def is_ready(self) -> bool:
        return bool(self.worker_segment.ready.get())

    def look_at_lanes(self, serials: I64) -> bool:
        """Learn which lanes the worker has mapped; True if it may run all that exist."""
        self.acknowledged = (self.worker_segment.lanes == serials) & (serials > 0)
        return bool((self.acknowledged | (serials == 0)).all())

    def prepare(self, rows: I64, reason: DispatchReason, now_ns: int) -> DispatchedBatch:
        """Write a free record; its token makes it the rows' record. `publish` follows."""
        worker_segment = self.worker_segment
        record = 0
        while record in self.batches:
            record += 1
        assert record < RECORDS, "more batches in flight than records"
        n = rows.shape[1]
        worker_segment.n[record] = n
        worker_segment.reason[record] = int(reason)
        worker_segment.attempt[record] = attempt = largest(rows[QueueColumn.ATTEMPT])
        worker_segment.row_lane[record, :n] = rows[QueueColumn.LANE]
        worker_segment.row_slot[record, :n] = rows[QueueColumn.SLOT]
        worker_segment.row_sequence[record, :n] = rows[QueueColumn.SEQUENCE]
        self._token += 1
        worker_segment.token[record] = self._token
        apart = reason is DispatchReason.APART
        batch = DispatchedBatch(record, self._token, rows, now_ns, n, apart, int(reason), attempt)
        self.batches[record] = batch
        return batch

    def publish(self, batch: DispatchedBatch) -> None:
        """The rows are RUNNING: let the worker see the record."""
        self._sq.push_few([batch.record | (batch.token & 0xFFFFFFFF) << 32])
        self.ring()

    def finished(self) -> list[DispatchedBatch]:
        """The batches whose outputs stand, oldest first; `free` each when it is handled."""
        entries = self._cq.peek()
        done: list[DispatchedBatch] = []
        if len(entries) == 0:
            return done
        for entry in entries.tolist():
            batch = self.batches.get(entry & 0xFFFFFFFF)
            if batch is not None and batch.token & 0xFFFFFFFF == entry >> 32:
                done.append(batch)
        self._seen = len(entries)
        return done

    def measure(self, batch: DispatchedBatch, now_ns: int) -> None:
        """Learn from a finished batch how long one takes, seen from here: way and all."""
        since_ns = max(batch.sent_ns, self._last_done_ns)
        self._last_done_ns = now_ns
        if batch.sent_ns and self.worker_segment.outcome[batch.record] == _OK:
            self.time.took(batch.size, now_ns - since_ns)

    def forget_times(self, sizes: tuple[int, ...]) -> None:
        """Batches have other sizes from now on; see Limits."""
        self.time = ServiceTime(sizes)
        self._worker = None

    def free_at_ns(self, now_ns: int) -> int:
        """When it will have run what it has, by what is known of its times; 0 if it is idle."""
        if not self.batches:
            return 0
        sent = sorted(self.batches.values(), key=lambda batch: batch.token)
        at_ns = float(max(sent[0].sent_ns, self._last_done_ns))
        for batch in sent:
            at_ns = max(at_ns, batch.sent_ns) + self.time.mean_ns(batch.size)
        return max(now_ns, int(at_ns))

    def overdue_since_ns(self, now_ns: int) -> int:
        """Since when it has run a batch that takes so long that it may hang, so that nothing should
        wait behind it; 0 if none does."""
        if not self.batches or not self.time.known:
            return 0
        oldest = min(self.batches.values(), key=lambda batch: batch.token)
        usual_ns = self.time.high_ns(oldest.size)
        since_ns = max(oldest.sent_ns, self._last_done_ns)
        return since_ns if now_ns - since_ns > _OVERDUE_TIMES * usual_ns + _OVERDUE_NS else 0

    def runs_apart(self) -> bool:
        """Whether it has suspects aboard."""
        for batch in self.batches.values():  # noqa: SIM110  # a third of what `any` costs
            if batch.apart:
                return True
        return False

    def as_worker(
        self, lanes: npt.NDArray[np.bool_] | None, free_at_ns: int, overdue_since_ns: int = 0
    ) -> WorkerView:
        """What a decision sees of it; the last one again if that is the same."""
        seen, in_flight = self._worker, len(self.batches)
        closed = overdue_since_ns > 0 or self.runs_apart()
        if (
            seen is None
            or seen.in_flight != in_flight
            or seen.lanes is not lanes
            or seen.free_at_ns != free_at_ns
            or seen.closed is not closed
            or seen.overdue_since_ns != overdue_since_ns
        ):
            seen = self._worker = WorkerView(
                self.number, in_flight, lanes, self.time, free_at_ns, closed, overdue_since_ns
            )
        return seen

    def was_launched(self, batch: DispatchedBatch) -> bool:
        """Whether the worker ever began with this batch; if so its rows may be why it died."""
        return self.worker_segment.launched.get() >= batch.token

    def outputs_stand(self, batch: DispatchedBatch) -> bool:
        """Whether the worker finished this batch, whatever its completion ring says."""
        return bool(self.worker_segment.finished[batch.record] == batch.token)

    def free(self, batch: DispatchedBatch) -> None:
        """Every completion of the batch stands: the record may be used again."""
        self.worker_segment.freed[batch.record] = batch.token
        del self.batches[batch.record]

    def advance(self) -> None:
        """All batches of the last `finished` are handled."""
        if self._seen:
            self._cq.advance(self._seen)
            self._seen = 0

    _seen = 0
    _worker: WorkerView | None = None
