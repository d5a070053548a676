"""The worker's core: take batch records, run the model, write the outputs into the lanes.

`Worker.step()` launches the next record if there is one and room in flight, else finishes
the oldest in flight. What runs a batch is a `Backend` (worker/backends/cpu.py): the numpy and torch
roads on the CPU and the CUDA streams look the same from here.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batchpool.core.errors import PoolError, Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.shm.lane import Lane, Origin
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.device_errors import (
    FAILURES_IN_A_ROW_MOST,
    MustRestart,
    is_device_broken,
    is_out_of_memory,
)
from batchpool.worker.gather import BatchPart, count_extents, load_input, parts_of, store_output
from batchpool.worker.metrics import COMPUTE, GATHER, SCATTER, WorkerMetrics
from batchpool.worker.outputs import CheckedOutputs, check_answers
from batchpool.worker.padding import Padding

_LOG = logging.getLogger("batchpool.worker")
_MESSAGE_CHARS = 2000


class Backend(Protocol):
    """Runs batches of one model. `launch` may return before the work is done.

    depth: batches in flight. gathers: batches are best put together in its own `room`.
    direct: the inputs that it may `fetch` from the lanes by itself. graph_sizes: the batch sizes
    that it captures when it first sees them, so the warm-up shows it all of them.
    """

    depth: int
    gathers: bool
    direct: frozenset[str]
    graph_sizes: tuple[int, ...]

    def adopt(self, lane: Lane) -> None:
        """A lane that it may read and write by itself."""

    def release(self, lane: Lane) -> None:
        """The lane will be unmapped."""

    def room(self, tensor: Tensor, shape: tuple[int, ...]) -> Array:
        """Where the next launch's input [n, *row shape] is to be put together."""

    def fetch(
        self, tensor: Tensor, parts: Sequence[BatchPart], n: int, padding: Array | None
    ) -> Any:
        """An input of the next launch, n rows of which padding [1, *row shape] fills the end;
        None: it does not pay here."""

    def launch(
        self,
        rows: int,
        inputs: dict[str, Any],
        sizes: dict[str, Array | None],
        views: bool,
        parts: Sequence[BatchPart],
    ) -> Any:
        """Start a batch on its inputs [n, ...], of which the first `rows` are no padding.

        `views`: the inputs are views of the lane. parts: where the outputs will go.
        """

    def finish(self, flight: Any) -> Any:
        """Wait for a batch; its outputs {name: host array [n, ...]}. Raises what it raised."""


@dataclass
class LaunchedBatch:
    """A batch that was launched: `rows` rows, padded to n. sizes: [n, dynamic dims].

    loaded_ns: its inputs stood; computed_ns: the model's outputs did. 0 before that.
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

    padding: None if the model takes batches of any size. number: its place among the model's
    workers; with the pid and a batch's token it says for good where a row failed.
    """

    def __init__(
        self,
        spec: ModelSpec,
        worker_segment: WorkerSegment,
        runner: Backend,
        ring_batcher: Callable[[], None],
        clock_ns: Callable[[], int],
        padding: Padding | None = None,
        number: int = 0,
        meter: WorkerMetrics | None = None,
    ) -> None:
        self.spec = spec
        self._meter = WorkerMetrics() if meter is None else meter
        self._number, self._pid = number, os.getpid()
        self.lanes: dict[int, Lane] = {}
        self._worker_segment = worker_segment
        self._runner = runner
        self._ring_batcher = ring_batcher
        self._clock_ns = clock_ns
        self._padding = padding
        self._sq = worker_segment.sq_consumer()
        self._cq = worker_segment.cq_producer()
        self._flights: deque[LaunchedBatch] = deque()
        self._failures = 0

    def add_lane(self, number: int, serial: int, lane: Lane, *, adopt: bool = False) -> None:
        """A lane is mapped here; acknowledging it lets the batcher send its rows.

        adopt: the runner may read and write it by itself.
        """
        if adopt:
            self._runner.adopt(lane)
        self.lanes[number] = lane
        self._worker_segment.lanes[number] = serial

    def drop_lane(self, number: int) -> None:
        self._worker_segment.lanes[number] = 0
        lane = self.lanes.pop(number, None)
        if lane is not None:
            self._runner.release(lane)

    def step(self) -> bool:
        """One move; False when there was nothing to do."""
        if len(self._flights) < self._runner.depth and self._launch_next():
            return True
        if self._flights:
            self._finish_oldest()
            return True
        return False

    def _launch_next(self) -> bool:
        pending = self._sq.peek()
        if len(pending) <= len(self._flights):
            return False
        entry = int(pending[len(self._flights)])
        self._flights.append(self._launch(entry & 0xFFFFFFFF))
        return True

    def _launch(self, record: int) -> LaunchedBatch:
        worker_segment = self._worker_segment
        rows = int(worker_segment.n[record])
        token = int(worker_segment.token[record])
        now_ns = self._clock_ns()
        worker_segment.start_ns[record] = now_ns
        worker_segment.launched.set(token)
        if not self._flights:
            self._stamp(token, now_ns)
        parts = parts_of(
            self.lanes,
            worker_segment.row_lane[record, :rows],
            worker_segment.row_slot[record, :rows].copy(),
        )
        worker_segment.extents[record] = count_extents(parts)
        n = rows if self._padding is None else self._padding.size_for(rows)
        flight = LaunchedBatch(record, token, parts, rows, n, {}, None, None)
        try:
            inputs: dict[str, Array] = {}
            for tensor in self.spec.inputs:
                inputs[tensor.name], flight.sizes[tensor.name] = self._load(flight, tensor)
            for tensor in self.spec.parameters:
                inputs[tensor.name], _ = self._load(flight, tensor, parameter=True)
            flight.loaded_ns = self._clock_ns()
            self._meter.took(GATHER, flight.loaded_ns - now_ns)
            views = n == rows and len(parts) == 1 and isinstance(parts[0].where, slice)
            flight.handle = self._runner.launch(rows, inputs, flight.sizes, views, parts)
        except (Exception, SystemExit) as exc:  # whatever a model raises fails its batch only
            flight.error = exc
        return flight

    def _load(
        self, flight: LaunchedBatch, tensor: Tensor, *, parameter: bool = False
    ) -> tuple[Any, Array | None]:
        """One input or parameter, padding included: [n, *row shape], sizes [n, dynamic dims]."""
        parts, name, runner = flight.parts, tensor.name, self._runner
        padding = self._padding if flight.n > flight.rows else None
        if name in runner.direct:
            row = None if padding is None else padding.row(name)
            fetched = runner.fetch(tensor, parts, flight.n, row)
            if fetched is not None:
                return fetched, None
        if padding is None and (tensor.is_bytes or not runner.gathers):
            return load_input(parts, name, parameter=parameter)

        def room(shape: tuple[int, ...]) -> Array:
            return runner.room(tensor, (flight.n, *shape))

        array, sizes = load_input(parts, name, parameter=parameter, room=room)
        if padding is not None:
            sizes = padding.fill(name, array, sizes, flight.rows)
        return array, sizes

    def _finish_oldest(self) -> None:
        flight = self._flights[0]
        failed: dict[int, str] | None = None
        outcome, text = BatchOutcome.OK, ""
        try:
            if flight.error is not None:
                raise flight.error
            found = self._runner.finish(flight.handle)
            flight.computed_ns = self._clock_ns()
            self._meter.took(COMPUTE, flight.computed_ns - flight.loaded_ns)
            answers = check_answers(self.spec, found, flight.n, flight.sizes, flight.rows)
            self._store(flight, answers)
            failed = answers.failed
        except (Exception, SystemExit) as exc:
            text = describe_error(exc)
            self._log(flight, exc, text)
            if is_device_broken(exc):
                raise MustRestart(f"the device is broken: {text}") from exc
            outcome = BatchOutcome.NO_MEMORY if is_out_of_memory(exc) else BatchOutcome.FAILED
            for part in flight.parts:
                part.lane.write_status(part.slots, Status.MODEL_ERROR, text, self._origin(flight))
        if failed is not None:
            self._mark(flight, failed)
        wrong = flight.rows if failed is None else len(failed)
        self._publish(flight, outcome, wrong)
        if outcome is BatchOutcome.OK:
            self._failures = 0
        elif outcome is BatchOutcome.FAILED:
            self._failures += 1
            if self._failures >= FAILURES_IN_A_ROW_MOST:
                raise MustRestart(f"{self._failures} batches failed in a row: {text}")

    def _log(self, flight: LaunchedBatch, exc: BaseException, text: str) -> None:
        batch, worker, pid = self._origin(flight)
        said = {"rows": flight.rows, "error": text, "model": self.spec.name}
        said |= {"batch": batch, "worker": worker, "worker_pid": pid}
        _LOG.warning("a batch of %(rows)d rows failed: %(error)s", said, exc_info=exc)

    def _origin(self, flight: LaunchedBatch) -> Origin:
        return flight.token, self._number, self._pid

    def _store(self, flight: LaunchedBatch, answers: CheckedOutputs) -> None:
        for name, rows in answers.outputs.items():
            store_output(flight.parts, name, rows)

    def _mark(self, flight: LaunchedBatch, failed: dict[int, str]) -> None:
        for part in flight.parts:
            part.lane.status[part.slots] = int(Status.OK)
            for i in range(part.start, part.stop) if failed else ():
                if i in failed:
                    slot = part.slots[i - part.start : i - part.start + 1]
                    origin = self._origin(flight)
                    part.lane.write_status(slot, Status.MODEL_ERROR, failed[i], origin)

    def _publish(self, flight: LaunchedBatch, outcome: BatchOutcome, failed: int) -> None:
        """Outputs and statuses stand; `finished` says so, then the ring, then the bell."""
        worker_segment, record = self._worker_segment, flight.record
        now_ns = self._clock_ns()
        if outcome is BatchOutcome.OK:
            self._meter.took(SCATTER, now_ns - flight.computed_ns)
        self._meter.ran(outcome, flight.rows, failed)
        worker_segment.end_ns[record] = now_ns
        worker_segment.outcome[record] = int(outcome)
        worker_segment.fence()
        worker_segment.finished[record] = flight.token
        worker_segment.batches.set(worker_segment.batches.get() + 1)
        if outcome is BatchOutcome.OK:
            worker_segment.good.set(worker_segment.good.get() + 1)
        worker_segment.rows.set(worker_segment.rows.get() + flight.rows)
        self._flights.popleft()
        self._stamp(self._flights[0].token if self._flights else 0, now_ns)
        self._cq.push_few([record | (flight.token & 0xFFFFFFFF) << 32])
        self._sq.advance(1)
        self._ring_batcher()

    def _stamp(self, oldest: int, now_ns: int) -> None:
        """Which batch is the oldest in flight (0: none), and since when."""
        self._worker_segment.progress_ns.set(now_ns)
        self._worker_segment.running.set(oldest)


def describe_error(exc: BaseException) -> str:
    """One bounded line for the caller; an exception whose own text fails is no problem."""
    if isinstance(exc, PoolError):
        return exc.message[:_MESSAGE_CHARS]
    try:
        text = str(exc)
    except BaseException:
        text = "(its message cannot be shown)"
    text = " ".join(text[:_MESSAGE_CHARS].split())
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
