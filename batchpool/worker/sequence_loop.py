"""The loop of a generator's worker: sequences join, make tokens step by step, and leave.

    take     the next records of the ring become sequences, as many as there are numbers free
    end      those that are cancelled or late end, with the tokens that they have
    iterate  one step of the generator; its tokens go into the lanes, and whoever stopped or has all
             its tokens ends

Each call of `SequenceLoop.step` does these three once. What it stores, in this order: tokens, the
mark of a stop, fence, lengths, the clients' bells; of rows that end then their reasons and
statuses, fence, `finished`, the ring entries, the batcher's bell.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

import numpy as np

from batchpool.core.errors import InvalidInput, Status
from batchpool.core.layout.segments import REFUSED_LANE
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.tensors.spec import ModelSpec
from batchpool.generator import Generator, JoiningSequence
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.lane import Lane, Origin
from batchpool.shm.stats.tracebacks import NoteTraceback
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.backend import describe_error
from batchpool.worker.device_errors import MustRestart, is_device_broken, is_out_of_memory
from batchpool.worker.generator_calls import GeneratorCalls
from batchpool.worker.generator_metrics import GeneratorMetrics
from batchpool.worker.joining_row import joining_sequence, too_short
from batchpool.worker.model_check import ModelCheck
from batchpool.worker.sequence_ends import SequenceEnds
from batchpool.worker.sequence_lane import I64, LENGTH, STOP, SequenceLane
from batchpool.worker.sequence_records import RecordRing, RowRecord
from batchpool.worker.sequence_table import SequenceTable
from batchpool.worker.step_result import StepChecker
from batchpool.worker.token_writer import TokenWriter

_LOG = logging.getLogger("batchpool.worker")


# methods: one for each message about lanes, and one for each part of a step
class SequenceLoop:
    """The worker of one generator, without the process around it.

    generator: loaded and warm; its `sequences` run at most at once. number: the worker's index
    among the workers of its model. run_warm_up: raises what the generator raises.
    """

    def __init__(
        self,
        spec: ModelSpec,
        worker_segment: WorkerSegment,
        generator: Generator,
        ring_batcher: Callable[[], None],
        clock_ns: Callable[[], int],
        number: int = 0,
        metrics: GeneratorMetrics | None = None,
        run_warm_up: Callable[[], None] = lambda: None,
        note_traceback: NoteTraceback | None = None,
    ) -> None:
        self.spec = spec
        self._segment = worker_segment
        self._clock_ns = clock_ns
        self._number, self._pid = number, os.getpid()
        self._metrics = metrics or GeneratorMetrics()
        self._calls = GeneratorCalls(generator)
        n = generator.sequences
        self._checker = StepChecker(spec.name, generator.token, n)
        self._table = SequenceTable(n)
        self._lanes: dict[int, SequenceLane] = {}
        self._left: set[int] = set()  # lanes whose clients are gone
        self._returns = False
        self._note_traceback = note_traceback
        self._least_prompt = spec.inputs[0].min_shape[0]
        self._records = RecordRing(worker_segment, ring_batcher)
        self._writer = TokenWriter(self._table, self._lanes, self._metrics, worker_segment.made)
        self._ends = SequenceEnds(
            self._table, self._lanes, self._records, self._metrics, self._origin, clock_ns
        )
        self._model_check = ModelCheck(run_warm_up, clock_ns)
        worker_segment.sequences.set(n)
        worker_segment.kv_tokens.set(generator.kv_tokens)

    # -- messages -----------------------------------------------------------------------

    def add_lane(self, number: int, serial: int, lane: Lane, bell: Doorbell) -> None:
        """Use a mapped lane, and acknowledge it, whereupon the batcher sends rows of it. bell: of
        the lane's client, taken over."""
        self._lanes[number] = SequenceLane(lane, bell)
        self._left.discard(number)
        self._segment.lanes[number] = serial

    def refuse_lane(self, number: int) -> None:
        """Say that a lane cannot be mapped; the batcher sends no rows of it."""
        self._segment.lanes[number] = REFUSED_LANE

    def leave_lane(self, number: int) -> None:
        """The client of a lane is gone: end its sequences now, and those that still come."""
        if number in self._lanes:
            self._left.add(number)
            self._end_over(self._table.of_lane(number), Status.CANCELLED)
            self._rest()

    def drop_lane(self, number: int) -> None:
        """Withdraw the acknowledgement and forget the lane; no sequence of it runs."""
        self._segment.lanes[number] = 0
        self._left.discard(number)
        lane = self._lanes.pop(number, None)
        if lane is not None:
            lane.bell.close()

    def release_lanes(self) -> None:
        """Before the process ends there is nothing to undo: no device reads the lanes."""

    def return_sequences(self, on: bool) -> None:
        """Give all sequences back, and those that still come, to be gone on with elsewhere; or, as
        this worker serves again, take them from now on."""
        self._returns = on
        numbers = self._table.running()
        if on and len(numbers):
            self._ends.give_back(numbers)
            self._leave(numbers)
            self._rest()

    # -- steps --------------------------------------------------------------------------

    def step(self) -> bool:
        """Take, end, iterate; False if there was nothing to do."""
        took = self._take()
        if not len(self._table):
            if took:
                self._rest()
            return took
        self._end_those_over()
        if len(self._table):
            self._iterate()
        self._rest()
        return True

    def _take(self) -> bool:
        """Let the next rows join, those apart that are over, complete or to be given back."""
        rows = self._records.pending(self._table.free)
        if not rows:
            return False
        now_ns = self._clock_ns()
        numbers = [self._enter(row) for row in rows]
        self._records.begin(rows, now_ns)
        self._stamp(now_ns)
        if self._returns:
            self._ends.give_back(_array(numbers))
            return True
        joining: list[JoiningSequence] = []
        over: dict[Status, list[int]] = {Status.CANCELLED: [], Status.DEADLINE: []}
        complete: dict[bytes, list[int]] = {STOP: [], LENGTH: []}
        for row, number in zip(rows, numbers, strict=True):
            status = self._why_over(row, now_ns)
            if status is not None:
                over[status].append(number)
                continue
            reason = self._prepare(row, number, now_ns, joining)
            if reason:
                complete[reason].append(number)
        for status, found in over.items():
            self._ends.over(_array(found), status)
        for reason, found in complete.items():
            self._ends.finish(_array(found), reason)
        if joining:
            self._join(joining)
        return True

    def _enter(self, row: RowRecord) -> int:
        """A number for a row, with its place in the table."""
        table = self._table
        number = table.take()
        table.record[number], table.token[number] = row.record, row.token
        table.lane[number], table.slot[number], table.use[number] = row.lane, row.slot, row.use
        table.due_ns[number] = row.due_ns
        table.length[number] = 0
        return number

    def _why_over(self, row: RowRecord, now_ns: int) -> Status | None:
        """The status of a row that is over before it joins, else None."""
        if row.due_ns <= now_ns:
            return Status.DEADLINE
        own = self._lanes[row.lane]
        if row.lane in self._left or own.cancelled(_array([row.slot]), _array([row.use]))[0]:
            return Status.CANCELLED
        return None

    def _prepare(
        self, row: RowRecord, number: int, now_ns: int, joining: list[JoiningSequence]
    ) -> bytes:
        """Read a row out of its lane and add it to those that join; or the reason for which it has
        ended already, in a worker that was lost before it could say so."""
        own, table = self._lanes[row.lane], self._table
        sequence, stopped = joining_sequence(self.spec, own, row.slot, number, row.reserved)
        made = len(sequence.tokens)
        table.length[number], table.most[number] = made, sequence.max_tokens
        if stopped or made >= sequence.max_tokens:
            return STOP if stopped else LENGTH
        if made:
            table.last_ns[number] = now_ns
        else:
            own.begin(row.slot)
        table.reserved[number] = row.reserved
        table.submit_ns[number] = row.submit_ns
        joining.append(sequence)
        return b""

    def _join(self, joining: Sequence[JoiningSequence]) -> None:
        short = {s.number: too_short(self.spec, s) for s in joining if self._is_short(s)}
        if short:  # written by a client that checks nothing; the generator never sees such a one
            self._ends.refuse(short)
            joining = [sequence for sequence in joining if sequence.number not in short]
            if not joining:
                return
        numbers = frozenset(sequence.number for sequence in joining)
        try:
            refused = self._checker.check_join(self._calls.join(joining), numbers)
        except InvalidInput as exc:
            if len(joining) > 1:
                self._fail(exc)
                return
            refused = {joining[0].number: exc}
        except Exception as exc:
            self._fail(exc)
            return
        for sequence in joining:
            if sequence.number not in refused:
                self._metrics.joined(len(sequence.prompt), len(sequence.tokens))
        self._ends.refuse(refused)

    def _is_short(self, sequence: JoiningSequence) -> bool:
        return len(sequence.prompt) < self._least_prompt

    def _end_those_over(self) -> None:
        """End the sequences that are late or that their clients have cancelled."""
        table = self._table
        self._end_over(table.late(self._clock_ns()), Status.DEADLINE)
        for number, own in self._lanes.items():
            cancels = own.lane.cancels.get()
            if cancels != own.seen_cancels:
                own.seen_cancels = cancels
                numbers = table.of_lane(number)
                cancelled = own.cancelled(table.slot[numbers], table.use[numbers])
                self._end_over(numbers[cancelled], Status.CANCELLED)

    def _end_over(self, numbers: I64, status: Status) -> None:
        if len(numbers):
            self._ends.over(numbers, status)
            self._leave(numbers)

    def _iterate(self) -> None:
        """One step of the generator."""
        began_ns = self._clock_ns()
        self._stamp(began_ns)
        try:
            found = self._checker.check_step(self._calls.step(), self._table.active)
        except Exception as exc:
            self._fail(exc)
            return
        stopped, full = self._writer.write(found, began_ns, self._clock_ns())
        self._model_check.passed()
        if len(found.numbers):
            # A worker that is lost before a sequence has ended was useful all the same.
            self._segment.good.set(self._segment.good.get() + 1)
        if len(stopped) or len(full):
            self._ends.finish(stopped, STOP)
            self._ends.finish(full, LENGTH)
            self._leave(np.concatenate((stopped, full)))

    def _leave(self, numbers: I64) -> None:
        """Tell the generator that these have ended, which their rows know already. MustRestart
        where it fails, since what it holds is unknown then."""
        error = self._error_of_leave(numbers)
        if error is not None:
            raise MustRestart(f"leave failed: {describe_error(error)}") from error

    def _error_of_leave(self, numbers: I64) -> Exception | None:
        """Let them leave; what `leave` raised, which the log tells, or None."""
        try:
            self._calls.leave(numbers.tolist())
        except Exception as exc:
            _LOG.error("leave failed: %s", describe_error(exc), exc_info=exc)
            return exc
        return None

    def _fail(self, exc: Exception) -> None:
        """The generator raised: all sequences fail together. MustRestart where it is broken, and
        where `leave` fails too: the rows, the log and the traceback tell of the first exception."""
        text, numbers = describe_error(exc), self._table.running()
        fields = {"rows": len(numbers), "error": text, "model": self.spec.name}
        fields |= {"worker": self._number, "worker_pid": self._pid}
        _LOG.warning("%(rows)d sequences failed: %(error)s", fields, exc_info=exc)
        if self._note_traceback is not None and len(numbers):
            self._note_traceback(exc, text, int(self._table.token[numbers[0]]))
        if is_device_broken(exc):
            raise MustRestart(f"the device is broken: {text}") from exc
        left = self._error_of_leave(numbers)
        self._ends.write_failure(numbers, text)
        outcome = BatchOutcome.NO_MEMORY if is_out_of_memory(exc) else BatchOutcome.FAILED
        if left is not None:
            self._ends.fail(numbers, outcome)
            raise MustRestart(f"{text}; then leave failed too: {describe_error(left)}") from exc
        if outcome is BatchOutcome.FAILED:
            self._stamp(self._clock_ns())
            self._model_check.failed()
        self._ends.fail(numbers, outcome)

    def _origin(self, token: int) -> Origin:
        return token, self._number, self._pid

    def _stamp(self, now_ns: int) -> None:
        """A call of the generator begins now; a watchdog measures from here."""
        self._segment.progress_ns.set(now_ns)
        self._segment.running.set(self._segment.launched.get())

    def _rest(self) -> None:
        """Between two steps: say how many sequences run, and where none does, that nothing is under
        way."""
        running = len(self._table)
        self._metrics.runs(running, int(self._table.reserved.sum()))
        if not running:
            self._segment.running.set(0)


def _array(numbers: Sequence[int]) -> I64:
    return np.array(numbers, dtype=np.int64)
