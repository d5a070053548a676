"""The worker process: one model on one device, between its bell and the batcher's.

It takes the messages `ToWorker` and sends `FromWorker`; see `batchpool/control/edges.py`.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from typing import assert_never

from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.edges import TO_WORKER, FromWorker, InvalidMessage
from batchpool.control.messages import Message
from batchpool.control.process_messages import (
    AddWorkerLane,
    DropLane,
    EndSequences,
    EndWorker,
    ReturnSequences,
    StartWorker,
    WorkerFailed,
    WorkerReady,
)
from batchpool.core.layout.arena import arena_of
from batchpool.core.layout.segments import lane_layout, worker_layout_of
from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage, fused_spec
from batchpool.process import bootstrap, own_process
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.ring import DamagedRing
from batchpool.shm.segment import map_checked
from batchpool.shm.stats.counters import Counters
from batchpool.shm.stats.tracebacks import NoteTraceback, Tracebacks
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.backend import describe_error
from batchpool.worker.device_errors import MustRestart
from batchpool.worker.generator_metrics import GeneratorMetrics
from batchpool.worker.loaded_generator import load_generator
from batchpool.worker.loaded_model import Unload, load_model
from batchpool.worker.metrics import WorkerMetrics
from batchpool.worker.sequence_loop import SequenceLoop
from batchpool.worker.warm_up import BatchTime
from batchpool.worker.worker import Worker

_LOG = logging.getLogger("batchpool.worker")
_LOOK_MS = 1000.0
_MOVES_BETWEEN_LOOKS = 16


class WorkerProcess:
    """The process around a `Worker`, or a generator's `SequenceLoop`: control messages, load,
    warm-up, the loop, unload.

    It runs one stage of the model, or all as one. spec: as lanes have it.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        start, fds = channel.receive(TO_WORKER)
        if not isinstance(start, StartWorker):
            raise InvalidMessage(f"a worker starts with 'start', not with {type(start).__name__}")
        self._start = start
        self._declared = ModelSpec.from_wire(start.spec)
        self.spec = fused_spec(self._declared) if start.fused_rows else self._declared
        self._stage = Stage(start.stage)
        layout = worker_layout_of(self.spec, start.max_batch, start.max_lanes)
        segment_fd, bell_fd, batcher_fd, counters_fd, *tracebacks_fds = fds
        self._worker_segment = WorkerSegment(map_checked(segment_fd, layout), layout)
        counters = Counters(counters_fd, start.frontends)
        row = start.row
        self._counters = (counters.cells, counters.place("worker", row)) if row >= 0 else ()
        self._note_traceback: NoteTraceback | None = None
        for tracebacks_fd in tracebacks_fds:
            self._note_traceback = partial(Tracebacks(tracebacks_fd).note, row, os.getpid())
        close_all((segment_fd, counters_fd, *tracebacks_fds))
        self._bell = Doorbell(bell_fd)
        self._batcher_bell = Doorbell(batcher_fd)
        self._waiter = Waiter(self._bell.fd, channel.fileno())
        self._unloads: list[Unload] = []  # of what is loaded
        self._slowest = BatchTime(0, 0.0)
        self._is_to_end = False

    def load(self) -> Worker | SequenceLoop:
        """Import, load and warm up the model; its exceptions are the caller's."""
        try:
            return self._load_generator() if self.spec.generates else self._load_model()
        finally:
            own_process.end_if_forked()

    def _load_generator(self) -> SequenceLoop:
        start = self._start
        found = load_generator(
            self._declared,
            start.import_name,
            start.device,
            start.max_batch,
            start.options,
            self._unloads.append,
        )
        self._slowest = found.slowest
        return SequenceLoop(
            self.spec,
            self._worker_segment,
            found.generator,
            self._batcher_bell.ring,
            time.monotonic_ns,
            number=start.place,
            metrics=GeneratorMetrics(*self._counters),
            run_warm_up=found.run_warm_up,
            note_traceback=self._note_traceback,
        )

    def _load_model(self) -> Worker:
        start = self._start
        found = load_model(
            self._declared,
            start.import_name,
            start.device,
            start.max_batch,
            start.batch_sizes,
            start.options,
            self._unloads.append,
            self._stage,
            start.max_elements,
            start.fused_rows,
        )
        self._slowest = found.slowest
        return Worker(
            found.spec,
            self._worker_segment,
            found.backend,
            self._batcher_bell.ring,
            time.monotonic_ns,
            found.padding,
            start.place,
            WorkerMetrics(*self._counters),
            found.run_warm_up_row,
            note_traceback=self._note_traceback,
        )

    def run(self, worker: Worker | SequenceLoop) -> None:
        """Serve until the supervisor says the end, and no batch is in flight."""
        bootstrap.settle()
        self._hear(worker)
        self._worker_segment.ready.set(1)
        self._send(WorkerReady(self._slowest.rows, self._slowest.seconds))
        self._batcher_bell.ring()
        control, moves = self._channel.fileno(), 0
        # A step of a generator may take long, and who it is done for may be gone.
        between = 1 if isinstance(worker, SequenceLoop) else _MOVES_BETWEEN_LOOKS
        while True:
            moves += 1
            if moves % between == 0:
                self._hear(worker)
            if worker.step():
                continue
            if self._is_to_end:
                return
            self._bell.clear()
            if worker.step():
                continue
            if control in self._waiter.wait_ms(_LOOK_MS):
                self._hear(worker)

    def unload(self) -> None:
        """Undo each load once, the last one first; errors are logged."""
        while self._unloads:
            try:
                self._unloads.pop()()
            except BaseException as exc:  # sys.exit too: the worker ends anyway
                _LOG.error("unload of the model failed: %s", describe_error(exc), exc_info=exc)
            finally:
                own_process.end_if_forked()

    def _hear(self, worker: Worker | SequenceLoop) -> None:
        """Take all control messages there are."""
        while True:
            try:
                message, fds = self._channel.receive(TO_WORKER)
            except BlockingIOError:
                return
            match message:
                case AddWorkerLane():
                    self._map_lane(worker, message, *fds)
                case DropLane():
                    worker.drop_lane(message.lane)
                case EndSequences():
                    _sequences_of(worker, message).leave_lane(message.lane)
                case ReturnSequences():
                    _sequences_of(worker, message).return_sequences(message.on)
                case EndWorker():
                    self._is_to_end = True
                case StartWorker():
                    raise InvalidMessage("'start' came twice")
                case _:
                    assert_never(message)

    def _send(self, message: FromWorker) -> None:
        self._channel.send(message)

    def _map_lane(
        self,
        worker: Worker | SequenceLoop,
        message: AddWorkerLane,
        fd: int,
        client_bell_fd: int = -1,
    ) -> None:
        client_bell = Doorbell(client_bell_fd)
        arena = arena_of(self.spec, message.arena_bytes)
        layout = lane_layout(self.spec, message.slots, arena)
        try:
            lane = Lane(self.spec, map_checked(fd, layout), layout).of_stage(self._stage)
        except ValueError as exc:  # its client overwrote the head, which must end no other lane
            _LOG.error("lane %d stays unmapped: %s", message.lane, exc)
            worker.refuse_lane(message.lane)
            client_bell.close()
            return
        finally:
            os.close(fd)
        if isinstance(worker, SequenceLoop):
            worker.add_lane(message.lane, message.serial, lane, client_bell)
        else:
            worker.add_lane(message.lane, message.serial, lane, pinned=message.pinned)
        self._batcher_bell.ring()


def _sequences_of(worker: Worker | SequenceLoop, message: Message) -> SequenceLoop:
    if not isinstance(worker, SequenceLoop):
        raise InvalidMessage(f"{type(message).__name__} is for the worker of a generator")
    return worker


def main(argv: Sequence[str]) -> int:
    """Run as a worker; returns the exit status."""
    args = bootstrap.arguments("worker", argv)
    bootstrap.start(args.parent)
    bootstrap.outlast_sigterm()
    bootstrap.log_to_stderr("worker", args)
    bootstrap.print_by_lines()
    own_process.claim()
    channel = bootstrap.control_channel(args.control_fd)
    try:
        process = WorkerProcess(channel)
        channel.sock.setblocking(False)
        try:
            worker = process.load()
        except BaseException as exc:
            _LOG.error("the model cannot be loaded", exc_info=exc)
            channel.send(WorkerFailed(_where(exc)))
            process.unload()
            return bootstrap.EXIT_LOAD_FAILED
        try:
            process.run(worker)
        except (MustRestart, DamagedRing) as exc:
            channel.send(WorkerFailed(str(exc)))
            return bootstrap.EXIT_MUST_RESTART
        worker.release_lanes()
        process.unload()
    except Closed:
        return 0
    return 0


def _where(exc: BaseException) -> str:
    """The error and the innermost line of the user's own code."""
    notes = "".join(f"; {note}" for note in getattr(exc, "__notes__", ()))
    text = describe_error(exc)
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not frame.filename.startswith((ours, sys.base_prefix, sys.prefix)):
            return f"{text} ({frame.filename}:{frame.lineno}){notes}"
    return text + notes
