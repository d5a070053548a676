"""The run of one batch: its lines in windows, their answers in the order of the lines.

    input file --LineFile--> window of lines under way --answers, in order--> store.add_lines

A line counts when its answer and the batch's place in the input are on the disk together. So a
process that goes on with the batch of a killed one begins behind the last line that counts: none is
lost, and none is answered twice. Lines that were under way then run again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from batchpool.batches.line_file import InputLine, LineFile
from batchpool.batches.line_runner import LineEnd, LineRunner
from batchpool.batches.records import LOSSES_MOST, BatchProgress, BatchRecord, BatchStatus
from batchpool.batches.store import BatchStore, away
from batchpool.batches.survey import Survey, request_of, take_survey
from batchpool.control.batch_messages import FaultForm
from batchpool.core.errors import NotReady, StorageFull
from batchpool.wire.batch_lines import LineFault, answered_line, line_id, unanswered_line

T = TypeVar("T")

_LOG = logging.getLogger("batchpool.tasks")
_READ_LINES, _READ_BYTES = 64, 1 << 20  # of one visit to the input
_WINDOW_BYTES = 32 << 20  # that the lines under way may take with their answers, by `cost_of`
_BYTES_OF_AN_ANSWER = 16 << 10  # for each text of a line
_COMMIT_BYTES = 1 << 20
_COMMIT_S = 0.5
_FULL_RETRY_S = 5.0
_LOOK_S = 1.0  # the longest time between two looks at the clock
LATE = "batch_expired"


def cost_of(raw: bytes) -> int:
    """The bytes that a line may take while it is under way. Each of its texts may become a vector,
    and the texts are fewer than half of the quotes."""
    return 8 * len(raw) + (raw.count(b'"') // 2 + 1) * _BYTES_OF_AN_ANSWER


@dataclass(slots=True)
class _UnderWay:
    """A line under way. end: of one that is not to run, at once."""

    line: InputLine
    custom_id: str
    cost: int
    task: asyncio.Task[LineEnd] | None = None
    fault: LineFault | None = None

    @property
    def is_done(self) -> bool:
        return self.task is None or self.task.done()


@dataclass(slots=True)
class _Answers:
    """Answers that are not on the disk. progress: once they are, but for the sizes of the files."""

    progress: BatchProgress
    outputs: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, line: bytes, *, is_good: bool) -> None:
        (self.outputs if is_good else self.errors).append(line)
        self.size += len(line)


class BatchRun:
    """Runs a batch from where it is to its end. record: as it is kept now. waiting_for: what keeps
    it from going on, "" for nothing. clock_ms: Unix time. window: the most lines under way now."""

    def __init__(
        self,
        store: BatchStore,
        record: BatchRecord,
        lines: LineRunner,
        window: Callable[[], int],
        clock_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._lines = lines
        self._window = window
        self._clock_ms = clock_ms
        self._under_way: deque[_UnderWay] = deque()
        self._cost = 0
        self._cancelled = asyncio.Event()
        self._settled = asyncio.Event()  # that the batch is cancelled stands on the disk
        self.record = record
        self.waiting_for = ""

    async def run(self) -> None:
        """Run to the end. Raises what the store raises; room for answers is waited for."""
        try:
            if self.record.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
                await self._run_lines()
            if self._cancelled.is_set() and self.record.status is not BatchStatus.FAILED:
                await self._step(BatchStatus.CANCELLING)
            await self._end()
        finally:
            self._cancel_tasks()
            self._settled.set()

    async def cancel(self) -> None:
        """Take no new line, and end with those that are done. Returns once the disk says so, or the
        run is over."""
        self._cancelled.set()
        await self._settled.wait()

    async def _run_lines(self) -> None:
        if fault := await self._damage():
            self._fail((fault,))
            return
        survey = await _read(
            lambda: take_survey(
                self._store.bodies.path(self.record.input_file),
                self.record.endpoint,
                self._store.settings.most_lines,
                self._cancelled.is_set,
            )
        )
        if self._cancelled.is_set():
            return
        if self.record.status is BatchStatus.VALIDATING:
            if survey.faults:
                self._fail(survey.faults)
                return
            self.record = msgspec.structs.replace(self.record, total=survey.total)
            await self._step(BatchStatus.IN_PROGRESS)
        record = self.record.run_in(self._store.process)
        if record.losses > LOSSES_MOST:
            text = (
                f"the process that ran these lines ended {record.losses} times, each time before"
                " one more had an answer; the batch is given up"
            )
            self.record = record
            self._fail((FaultForm("gave_up", text),))
            return
        await self._store.keep_batch(record)
        self.record = record
        await self._pass_lines(survey)
        if not self._cancelled.is_set():
            await self._step(BatchStatus.FINALIZING)

    def _fail(self, faults: tuple[FaultForm, ...]) -> None:
        changed = msgspec.structs.replace(self.record, faults=faults)
        self.record = changed.at(BatchStatus.FAILED, self._clock_ms())

    async def _damage(self) -> FaultForm | None:
        """The fault of an input that is not on the disk as it was uploaded: of its lines none may
        be left out without a word."""
        identifier = self.record.input_file
        uploaded = self._store.files[identifier].bytes
        there = await _read(lambda: self._store.bodies.size(identifier))
        if there == uploaded:
            return None
        text = (
            f"file {identifier} is damaged on the server's disk: {there} of its {uploaded} bytes"
            " are there; upload it again, and make a batch of that"
        )
        _LOG.error("batch %s fails: %s", self.record.id, text)
        return FaultForm("damaged_file", text)

    async def _pass_lines(self, survey: Survey) -> None:
        progress = self.record.progress
        path = self._store.bodies.path(self.record.input_file)
        lines = await _read(lambda: LineFile(path, progress.offset, progress.lines))
        waiting: deque[InputLine] = deque()
        answers, at_s = _Answers(progress), self._now_s()
        cancelled = asyncio.create_task(self._cancelled.wait())
        try:
            while not self._cancelled.is_set():
                while not waiting and self._has_room() and not lines.ended:
                    waiting += await _read(lambda: lines.next_lines(_READ_LINES, _READ_BYTES))
                while waiting and self._has_room():
                    self._start(waiting.popleft(), survey)
                if not self._under_way:
                    break
                await self._await_oldest(cancelled, _COMMIT_S if answers.size else _LOOK_S)
                self._take_done(answers)
                is_due = answers.size >= _COMMIT_BYTES or self._now_s() - at_s >= _COMMIT_S
                if answers.size and (is_due or not self._under_way):
                    await self._commit(answers)
                    answers, at_s = _Answers(self.record.progress), self._now_s()
            if self._cancelled.is_set():
                # First: no process may go on behind answers between which some are missing.
                await self._step(BatchStatus.CANCELLING)
                self._take_all(answers)
            if answers.size:
                await self._commit(answers)
        finally:
            cancelled.cancel()
            lines.close()

    # -- lines under way ----------------------------------------------------------------

    def _has_room(self) -> bool:
        return not self._under_way or (
            len(self._under_way) < self._window() and self._cost < _WINDOW_BYTES
        )

    def _start(self, line: InputLine, survey: Survey) -> None:
        cost = 0 if line.raw is None else cost_of(line.raw)
        under_way = _UnderWay(line._replace(raw=None), "", cost)
        try:
            request = request_of(line, self.record.endpoint, survey.repeats)
            under_way.custom_id = request.custom_id
            if self._is_late():
                under_way.fault = _late(request.custom_id)
            else:
                run = self._lines.run(self.record.endpoint, request)
                under_way.task = asyncio.create_task(run)
        except LineFault as fault:
            under_way.fault = fault.with_traceback(None)  # which would refer to what it is kept in
        self._under_way.append(under_way)
        self._cost += cost

    def _is_late(self) -> bool:
        return self._clock_ms() >= self.record.expires_ms

    async def _await_oldest(self, cancelled: asyncio.Task[bool], timeout_s: float) -> None:
        """Wait for the oldest line, but no longer than that, nor after the batch is cancelled; and
        for no line that is late by then."""
        task = self._under_way[0].task
        if task is not None and not task.done():
            await asyncio.wait(
                (task, cancelled), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        if self._is_late():
            for each in self._under_way:
                if not each.is_done:
                    assert each.task is not None
                    each.task.cancel()
                    each.task, each.fault = None, _late(each.custom_id)

    def _take_done(self, answers: _Answers) -> None:
        """Take the answers of the oldest lines, as far as all of them are done."""
        while self._under_way and self._under_way[0].is_done:
            self._take(self._under_way.popleft(), answers)

    def _take_all(self, answers: _Answers) -> None:
        """Take the answers of all lines that are done, since no other process goes on."""
        for each in self._under_way:
            if each.is_done:
                self._take(each, answers)
        self._cancel_tasks()

    def _take(self, each: _UnderWay, answers: _Answers) -> None:
        self._cost -= each.cost
        progress, number = answers.progress, each.line.number
        identifier = line_id(self.record.id, number)
        completed, failed, late = progress.completed, progress.failed, progress.late
        if each.task is None:
            assert each.fault is not None
            answers.add(unanswered_line(identifier, number, each.fault), is_good=False)
            failed, late = failed + 1, late + (each.fault.code == LATE)
        else:
            end = each.task.result()
            line = answered_line(identifier, each.custom_id, end.status, end.body)
            answers.add(line, is_good=end.is_good)
            completed, failed = completed + end.is_good, failed + (not end.is_good)
        answers.progress = BatchProgress(each.line.end, number, completed, failed, late)

    def _cancel_tasks(self) -> None:
        for each in self._under_way:
            if each.task is not None:
                each.task.cancel()
        self._under_way.clear()
        self._cost = 0

    # -- the store ----------------------------------------------------------------------

    async def _commit(self, answers: _Answers) -> None:
        """Write answers, once there is room for them."""
        outputs, errors = b"".join(answers.outputs), b"".join(answers.errors)
        caller = self.record.owner.caller
        while True:
            # Those of lines that came too late are short, and the batch could not end without them.
            lack = "" if self._is_late() else self._store.quotas.lack(caller, answers.size)
            if not lack:
                try:
                    self.record = await self._store.add_lines(
                        self.record, outputs, errors, answers.progress
                    )
                    break
                except (StorageFull, NotReady) as exc:
                    lack = exc.message
            if lack != self.waiting_for:
                _LOG.warning("batch %s waits for room for its answers: %s", self.record.id, lack)
            self.waiting_for = lack
            if self._cancelled.is_set():
                return
            await self._sleep(_FULL_RETRY_S)
        self.waiting_for = ""

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._cancelled.wait()
        except TimeoutError:
            pass

    async def _step(self, status: BatchStatus) -> None:
        """Keep the batch in another status, if it is not there."""
        if self.record.status is not status:
            record = self.record.at(status, self._clock_ms())
            await self._store.keep_batch(record)
            self.record = record
        if status is BatchStatus.CANCELLING:
            self._settled.set()

    async def _end(self) -> None:
        """Keep the batch with its last status, and its files."""
        record, now_ms = self.record, self._clock_ms()
        if record.status is BatchStatus.CANCELLING:
            record = record.at(BatchStatus.CANCELLED, now_ms)
        elif record.status is BatchStatus.FINALIZING:
            last = BatchStatus.EXPIRED if record.progress.late else BatchStatus.COMPLETED
            record = record.at(last, now_ms)
        self.record = await self._store.end_batch(record, now_ms)
        progress = record.progress
        _LOG.info(
            "batch %s is %s: %d lines have answers, %d have errors, of %d", record.id,
            record.status, progress.completed, progress.failed, record.total,
        )  # fmt: skip

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


async def _read(work: Callable[[], T]) -> T:
    """The result of some work that reads the input. Raises NotReady where the disk fails."""
    try:
        return await asyncio.to_thread(work)
    except OSError as exc:
        raise away(exc) from exc


def _late(custom_id: str) -> LineFault:
    return LineFault(
        LATE,
        "the line was not run before the end of the batch's completion_window",
        custom_id=custom_id,
    )
