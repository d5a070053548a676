"""The dispatch of a generator's rows: each joins a worker as a batch of one row.

Which row joins which worker is decided in core/scheduler/seating.py, and where suspects may run in
batcher/probation.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batchpool.batcher.decided_rows import take
from batchpool.batcher.mapped_lanes import MappedLanes
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.probation import LOOK_AGAIN_NS, Probation
from batchpool.batcher.sequence_completion import SequenceCompletion
from batchpool.batcher.sequence_words import sequence_limits
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.core.errors import Status
from batchpool.core.layout.states import DispatchReason, SlotState
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.scheduler.seating import SequenceWorker, seat

_RUNNING = int(SlotState.RUNNING)


class SequenceDispatch:
    """Gives rows of generators to their workers. next_number: makes the numbers of batches."""

    def __init__(
        self,
        lanes: MappedLanes,
        completion: SequenceCompletion,
        probation: Probation,
        next_number: Callable[[], int],
    ) -> None:
        self._lanes = lanes
        self._completion = completion
        self._probation = probation
        self._next_number = next_number

    def decide(self, model: ModelQueue, workers: Sequence[WorkerProxy], now_ns: int) -> int:
        """Dispatch, expire and refuse rows of one generator; return when to decide again.

        workers: all of the model.
        """
        over = self._probation.clear(workers)
        able = [worker for worker in workers if worker.active and worker.is_ready()]
        wake_at_ns = NEVER_NS if over else now_ns + LOOK_AGAIN_NS
        held: WorkerProxy | None = None
        if model.suspects:
            late = model.suspects.take_late(now_ns)
            self._completion.end(model, late, Status.DEADLINE)
            if over and model.suspects:
                held = self._dispatch_apart(model, able, now_ns)
            wake_at_ns = min(wake_at_ns, model.suspects.next_deadline_ns())
            if held is not None:
                wake_at_ns = min(wake_at_ns, now_ns + LOOK_AGAIN_NS)
        if len(model.queue):
            settled = len(able) == sum(worker.active for worker in workers)
            wake_at_ns = min(wake_at_ns, self._seat(model, able, held, settled, now_ns))
        return wake_at_ns

    def _seat(
        self,
        model: ModelQueue,
        workers: Sequence[WorkerProxy],
        held: WorkerProxy | None,
        settled: bool,
        now_ns: int,
    ) -> int:
        model.queue.age(now_ns)
        views = [self._view(model, worker, worker is held) for worker in workers]
        decision = seat(now_ns, model.queue.view(), views, settled)
        groups, late, refused = take(model.queue, decision)
        for dispatch, rows in zip(decision.dispatch, groups, strict=True):
            worker = next(each for each in workers if each.number == dispatch.worker)
            self._send(model, worker, rows, dispatch.reason, now_ns)
        self._completion.end(model, late, Status.DEADLINE)
        most = max((view.kv_tokens for view in views), default=0)
        for at in range(refused.shape[1]):
            row = refused[:, at : at + 1]
            text = model.too_large_text(row.item(QueueColumn.BUCKET, 0), most)
            self._completion.end(model, row, Status.TOO_LARGE, text)
        return decision.wake_at_ns

    def _view(self, model: ModelQueue, worker: WorkerProxy, held: bool) -> SequenceWorker:
        sequences = min(model.limits.max_batch, worker.worker_segment.layout.slots)
        own, kv_tokens = sequence_limits(worker)
        return SequenceWorker(
            worker.number,
            worker.in_flight,
            min(sequences, own) if own else sequences,
            worker.reserved_tokens,
            kv_tokens,
            worker.runnable_lanes(self._lanes.serials, self._lanes.version),
            held or worker.runs_apart() or bool(worker.damage),
        )

    def _dispatch_apart(
        self, model: ModelQueue, workers: Sequence[WorkerProxy], now_ns: int
    ) -> WorkerProxy | None:
        """Dispatch as many rows of the next group of suspects as fit into a worker. Returns the
        worker that they go to, now or when it is ready for them; None if there is none."""
        group = model.suspects.peek()
        first = group[:, :1]
        lane, tokens = first.item(QueueColumn.LANE, 0), first.item(QueueColumn.BUCKET, 0)
        views = {worker.number: self._view(model, worker, False) for worker in workers}
        able = [
            worker
            for worker in workers
            if (lanes := views[worker.number].lanes) is None or lanes[lane]
            if views[worker.number].may_ever_run(tokens)
        ]
        worker, may_join = self._probation.worker_for(able)
        if worker is None or not may_join:
            return worker
        fitting = _fitting(group, views[worker.number])
        if not fitting:
            return worker
        group = model.suspects.take_next()
        here = group[:, :fitting]
        model.suspects.add_first(group[:, fitting:])
        self._send(model, worker, here, DispatchReason.APART, now_ns)
        return worker

    def _send(
        self,
        model: ModelQueue,
        worker: WorkerProxy,
        rows: I64,
        reason: DispatchReason,
        now_ns: int,
    ) -> None:
        """Send each of these rows to a worker as a batch.

        All records are written first, then the rows are RUNNING, then the ring entries are pushed,
        in the order of service: a takeover can tell from these how far the dispatch went.
        """
        batches = []
        for at in range(rows.shape[1]):
            row = rows[:, at : at + 1]
            lane = self._lanes.by_number[row.item(QueueColumn.LANE, 0)]
            tokens, number = row.item(QueueColumn.BUCKET, 0), self._next_number()
            batch = worker.prepare(row, reason, now_ns, number, lane.cancels_heard, tokens)
            lane.lane.state[row.item(QueueColumn.SLOT, 0)] = _RUNNING
            lane.running += 1
            batches.append(batch)
        worker.publish_all(batches)
        for batch in batches:
            waits_ns = batch.rows[model.waits_since]
            batch.queued_ns = model.metrics.dispatch(waits_ns, reason, now_ns)


def _fitting(group: I64, view: SequenceWorker) -> int:
    """The number of rows of a group, from the first on, that have a place in a worker."""
    places, unreserved = view.sequences - view.running, view.kv_tokens - view.reserved
    lanes, needs = group[QueueColumn.LANE], group[QueueColumn.BUCKET]
    for at, (lane, tokens) in enumerate(zip(lanes.tolist(), needs.tolist(), strict=True)):
        unreserved -= tokens
        if at >= places or (view.kv_tokens and unreserved < 0):
            return at
        if view.lanes is not None and not view.lanes[lane]:
            return at
    return len(lanes)
