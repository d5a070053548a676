"""The worker: takes batch records from its ring, runs the model, writes outputs into the lanes.

`Worker.step()` launches the next record if there is one and fewer than `depth` batches are in
flight; else it finishes the oldest batch in flight. A `Backend` (worker/backends/backend.py) runs
the batches: numpy, torch on the CPU and torch on a CUDA device look the same from here.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchpool.core.errors import InvalidInput, Status
from batchpool.core.layout.segments import REFUSED_LANE
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.batch_record import DamagedSegment, read_record
from batchpool.shm.lane import Lane, Origin
from batchpool.shm.stats.tracebacks import NoteTraceback
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.backend import Backend, BatchPart, describe_error
from batchpool.worker.bucket_limits import BucketLimits
from batchpool.worker.device_errors import (
    MustRestart,
    is_device_broken,
    is_out_of_memory,
)
from batchpool.worker.ended_rows import end_rows, may_have_ended
from batchpool.worker.failed_rows import refusal_details, refusal_text
from batchpool.worker.gather import count_extents, load_input, parts_of, store_output
from batchpool.worker.metrics import COMPUTE, GATHER, SCATTER, WorkerMetrics
from batchpool.worker.model_check import ModelCheck
from batchpool.worker.outputs import CheckedOutputs, check_outputs
from batchpool.worker.padding import Padding

_LOG = logging.getLogger("batchpool.worker")
_OK = int(Status.OK)


@dataclass
class LaunchedBatch:
    """A batch in flight: `rows` rows, 0 if all were over before, padded to n.

    sizes: {input: [n, dynamic dimensions]}. handle: the backend's, for `finish`. error: raised by
    `launch`; the batch fails with it when it is finished. loaded_ns, computed_ns: when its inputs
    and the model's outputs were complete; 0 before that.
    """

    record: int
    token: int
    parts: list[BatchPart]
    rows: int
    n: int
    sizes: dict[str, Array | None]
    handle: Any
    error: BaseException | None
    loaded_ns: int = 0
    computed_ns: int = 0


class Worker:
    """One worker of one model, without the process around it.

    padding: None if the model accepts batches of any size. number: the worker's index among the
    workers of its model. (token, number, pid) identifies a batch permanently: `Origin`.
    """

    def __init__(
        self,
        spec: ModelSpec,
        worker_segment: WorkerSegment,
        backend: Backend,
        ring_batcher: Callable[[], None],
        clock_ns: Callable[[], int],
        padding: Padding | None = None,
        number: int = 0,
        metrics: WorkerMetrics | None = None,
        run_warm_up_row: Callable[[], None] = lambda: None,
        note_traceback: NoteTraceback | None = None,
    ) -> None:
        self.spec = spec
        self._metrics = WorkerMetrics() if metrics is None else metrics
        self._number, self._pid = number, os.getpid()
        self.lanes: dict[int, Lane] = {}
        self._worker_segment = worker_segment
        self._backend = backend
        self._ring_batcher = ring_batcher
        self._clock_ns = clock_ns
        self._padding = padding
        self._bucket_limits = BucketLimits(spec)
        self._sq = worker_segment.sq_consumer()
        self._cq = worker_segment.cq_producer()
        self._in_flight: deque[LaunchedBatch] = deque()
        self._model_check = ModelCheck(run_warm_up_row, clock_ns)
        self._note_traceback = note_traceback
        self._depth = backend.depth

    def add_lane(self, number: int, serial: int, lane: Lane, *, pinned: bool = False) -> None:
        """Use a mapped lane, and acknowledge it, whereupon the batcher sends rows of it.

        pinned: the device transfers the rows of the lane by itself (`Backend.pin`).
        """
        if pinned:
            self._backend.pin(lane)
        self.lanes[number] = lane
        self._worker_segment.lanes[number] = serial

    def refuse_lane(self, number: int) -> None:
        """Say that a lane cannot be mapped; the batcher sends no rows of it."""
        self._worker_segment.lanes[number] = REFUSED_LANE

    def drop_lane(self, number: int) -> None:
        """Withdraw the acknowledgement and forget the lane; no row of it is in flight."""
        self._worker_segment.lanes[number] = 0
        lane = self.lanes.pop(number, None)
        if lane is not None:
            self._backend.unpin(lane)

    def release_lanes(self) -> None:
        """Unpin all lanes before the process ends; no batch is in flight, and none follows."""
        for lane in self.lanes.values():
            self._backend.unpin(lane)

    def step(self) -> bool:
        """Launch or finish one batch; False if there was nothing to do."""
        if len(self._in_flight) < self._depth and self._launch_next():
            return True
        if self._in_flight:
            self._finish_oldest()
            return True
        return False

    def _launch_next(self) -> bool:
        pending = self._sq.peek()
        if len(pending) <= len(self._in_flight):
            return False
        entry = int(pending[len(self._in_flight)])
        self._in_flight.append(self._launch(entry & 0xFFFFFFFF))
        return True

    def _launch(self, record: int) -> LaunchedBatch:
        worker_segment = self._worker_segment
        try:
            written = read_record(worker_segment, record)
        except DamagedSegment as exc:
            raise MustRestart(str(exc)) from exc
        rows, token = written.n, written.token
        now_ns = self._clock_ns()
        numbers, slots, _ = written.tickets
        parts = parts_of(self.lanes, numbers, slots)
        ended = None
        if may_have_ended(written, parts, now_ns):
            ended = end_rows(written, parts, now_ns)
        worker_segment.expired_of[record] = ended.expired if ended else 0
        worker_segment.cancelled_of[record] = ended.cancelled if ended else 0
        if ended is not None:
            rows = int(np.count_nonzero(ended.kept))
            parts = parts_of(self.lanes, numbers[ended.kept], slots[ended.kept]) if rows else []
        worker_segment.start_ns_of[record] = now_ns
        worker_segment.launched.set(token)
        if not self._in_flight:
            self._stamp(token, now_ns)
        worker_segment.extents_of[record] = count_extents(parts)
        if rows == 0:
            return LaunchedBatch(record, token, parts, 0, 0, {}, None, None)
        n = rows if self._padding is None else self._padding.size_for(rows)
        batch = LaunchedBatch(record, token, parts, rows, n, {}, None, None)
        try:
            inputs: dict[str, Array] = {}
            limits = self._bucket_limits.of(written.detail)
            for tensor in self.spec.inputs:
                most = limits.get(tensor.name)
                inputs[tensor.name], batch.sizes[tensor.name] = self._load(batch, tensor, most)
            self._bucket_limits.cut(written.detail, inputs)
            for tensor in self.spec.parameters:
                inputs[tensor.name], _ = self._load(batch, tensor, parameter=True)
            batch.loaded_ns = self._clock_ns()
            self._metrics.took(GATHER, batch.loaded_ns - now_ns)
            views = n == rows and len(parts) == 1 and isinstance(parts[0].where, slice)
            batch.handle = self._backend.launch(rows, inputs, batch.sizes, views, parts)
        except (Exception, SystemExit) as exc:  # an exception of the model fails its batch only
            batch.error = exc
        return batch

    def _load(
        self,
        batch: LaunchedBatch,
        tensor: Tensor,
        most: npt.NDArray[np.int64] | None = None,
        *,
        parameter: bool = False,
    ) -> tuple[Any, Array | None]:
        """One input or parameter, padding included: [n, *row shape], and its sizes
        [n, dynamic dimensions], which are at most `most`."""
        parts, name, backend = batch.parts, tensor.name, self._backend
        padding = self._padding if batch.n > batch.rows else None
        if name in backend.direct:
            row = None if padding is None else padding.row(name)
            fetched = backend.fetch(tensor, parts, batch.n, row)
            if fetched is not None:
                return fetched, None
        if padding is None and (tensor.is_bytes or not backend.gathers):
            return load_input(parts, name, parameter=parameter, most=most)

        def allocate(shape: tuple[int, ...]) -> Array:
            return backend.allocate(tensor, (batch.n, *shape))

        array, sizes = load_input(parts, name, parameter=parameter, allocate=allocate, most=most)
        if padding is not None:
            sizes = padding.fill(name, array, sizes, batch.rows)
        return array, sizes

    def _finish_oldest(self) -> None:
        batch = self._in_flight[0]
        checked: CheckedOutputs | None = None
        outcome = BatchOutcome.OK
        if batch.rows == 0:
            batch.computed_ns = self._clock_ns()
            self._publish(batch, outcome, 0, 0)
            return
        try:
            if batch.error is not None:
                raise batch.error
            found = self._backend.finish(batch.handle)
            batch.computed_ns = self._clock_ns()
            self._metrics.took(COMPUTE, batch.computed_ns - batch.loaded_ns)
            outputs = check_outputs(self.spec, found, batch.n, batch.sizes, batch.rows)
            self._store(batch, outputs)
            checked = outputs
        except InvalidInput as exc:
            batch.computed_ns = self._clock_ns()
            if batch.rows == 1:
                self._metrics.took(COMPUTE, batch.computed_ns - batch.loaded_ns)
                checked = CheckedOutputs(refused={0: exc})
            else:
                outcome = BatchOutcome.INVALID_INPUT
                text = (
                    f"the model refused one of {batch.rows} rows that ran together, and did not"
                    f" say which: {refusal_text(exc)}"
                )
                self._fail_all(batch, text)
        except (Exception, SystemExit) as exc:
            text = describe_error(exc)
            self._log(batch, exc, text)
            if is_device_broken(exc):
                raise MustRestart(f"the device is broken: {text}") from exc
            outcome = BatchOutcome.NO_MEMORY if is_out_of_memory(exc) else BatchOutcome.FAILED
            self._fail_all(batch, text)
            if outcome is BatchOutcome.FAILED:
                self._check_model(batch)
        failed, refused = batch.rows, 0
        if checked is not None:
            failed, refused = len(checked.failed), len(checked.refused)
            self._write_statuses(batch, checked)
            if failed + refused < batch.rows:
                self._model_check.passed()
                self._depth = self._backend.depth
        self._publish(batch, outcome, failed, refused)

    def _check_model(self, batch: LaunchedBatch) -> None:
        """After a failed batch: run one at a time until one is good, and look whether the model
        is broken. Its time is not the batch's."""
        self._depth = 1
        self._stamp(batch.token, self._clock_ns())
        self._model_check.failed()

    def _fail_all(self, batch: LaunchedBatch, text: str) -> None:
        for part in batch.parts:
            part.lane.write_status(part.slots, Status.MODEL_ERROR, text, self._origin(batch))

    def _log(self, batch: LaunchedBatch, exc: BaseException, text: str) -> None:
        token, worker, pid = self._origin(batch)
        fields = {"rows": batch.rows, "error": text, "model": self.spec.name}
        fields |= {"batch": token, "worker": worker, "worker_pid": pid}
        _LOG.warning("a batch of %(rows)d rows failed: %(error)s", fields, exc_info=exc)
        if self._note_traceback is not None:
            self._note_traceback(exc, text, token)

    def _origin(self, batch: LaunchedBatch) -> Origin:
        return batch.token, self._number, self._pid

    def _store(self, batch: LaunchedBatch, checked: CheckedOutputs) -> None:
        for name, rows in checked.outputs.items():
            store_output(batch.parts, name, rows)

    def _write_statuses(self, batch: LaunchedBatch, checked: CheckedOutputs) -> None:
        """OK for all rows but the failed and the refused ones."""
        failed, refused = checked.failed, checked.refused
        for part in batch.parts:
            part.lane.status[part.where] = _OK
            for i in range(part.start, part.stop) if failed or refused else ():
                slot = part.slots[i - part.start : i - part.start + 1]
                if i in failed:
                    origin = self._origin(batch)
                    part.lane.write_status(slot, Status.MODEL_ERROR, failed[i], origin)
                elif i in refused:
                    text, details = refusal_text(refused[i]), refusal_details(refused[i])
                    part.lane.write_status(slot, Status.INVALID_INPUT, text, details=details)

    def _publish(
        self, batch: LaunchedBatch, outcome: BatchOutcome, failed: int, refused: int
    ) -> None:
        """Announce outputs and statuses, which are written: store `finished`, push the ring entry,
        ring the bell, in this order. failed, refused: the numbers of rows with these errors."""
        worker_segment, record = self._worker_segment, batch.record
        now_ns = self._clock_ns()
        if outcome is BatchOutcome.OK:
            self._metrics.took(SCATTER, now_ns - batch.computed_ns)
        self._metrics.finish(outcome, batch.rows, failed, refused)
        worker_segment.end_ns_of[record] = now_ns
        worker_segment.refused_of[record] = refused
        worker_segment.outcome_of[record] = int(outcome)
        worker_segment.fence()
        worker_segment.finished_of[record] = batch.token
        worker_segment.batches.set(worker_segment.batches.get() + 1)
        if outcome is BatchOutcome.OK and batch.rows:
            worker_segment.good.set(worker_segment.good.get() + 1)
        worker_segment.rows.set(worker_segment.rows.get() + batch.rows)
        self._in_flight.popleft()
        self._stamp(self._in_flight[0].token if self._in_flight else 0, now_ns)
        self._cq.push_few([record | (batch.token & 0xFFFFFFFF) << 32])
        self._sq.advance(1)
        self._ring_batcher()

    def _stamp(self, oldest: int, now_ns: int) -> None:
        """Store the token of the oldest batch in flight (0: none) and when it became the oldest."""
        self._worker_segment.progress_ns.set(now_ns)
        self._worker_segment.running.set(oldest)
