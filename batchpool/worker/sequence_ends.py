"""The ends of sequences: what their rows are told, and their records."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from batchpool.core.errors import InvalidInput, Status
from batchpool.core.layout.states import BatchOutcome
from batchpool.shm.lane import Origin
from batchpool.worker.backends.backend import describe_error
from batchpool.worker.failed_rows import refusal_details, refusal_text
from batchpool.worker.generator_metrics import GeneratorMetrics
from batchpool.worker.sequence_lane import I64, SequenceLane
from batchpool.worker.sequence_records import EndedRecord, RecordRing
from batchpool.worker.sequence_table import SequenceTable
from batchpool.worker.token_writer import by_lane

_REASONS = {Status.CANCELLED: "cancelled", Status.DEADLINE: "deadline_exceeded"}


class SequenceEnds:
    """Ends sequences by their numbers, which are free afterwards.

    origin: of a row's error, by its record's token.
    """

    def __init__(
        self,
        table: SequenceTable,
        lanes: Mapping[int, SequenceLane],
        records: RecordRing,
        metrics: GeneratorMetrics,
        origin: Callable[[int], Origin],
        clock_ns: Callable[[], int],
    ) -> None:
        self._table = table
        self._lanes = lanes
        self._records = records
        self._metrics = metrics
        self._origin = origin
        self._clock_ns = clock_ns

    def finish(self, numbers: I64, reason: bytes) -> None:
        """They have all their tokens, or stopped by themselves."""
        table = self._table
        for lane, rows in by_lane(table.lane[numbers]):
            which = numbers[rows]
            self._lanes[lane].finish(table.slot[which], table.length[which], reason)
        self._end(numbers, BatchOutcome.OK, Status.OK, reason.decode())

    def over(self, numbers: I64, status: Status) -> None:
        """They are cancelled or late; the tokens that they have stay."""
        table = self._table
        for lane, rows in by_lane(table.lane[numbers]):
            self._lanes[lane].lane.write_status(table.slot[numbers[rows]], status)
        self._end(numbers, BatchOutcome.OK, status, _REASONS[status])

    def refuse(self, refused: Mapping[int, Exception]) -> None:
        """The generator refused these when they were to join."""
        table = self._table
        for number, error in refused.items():
            numbers = np.array([number])
            lane, slots = self._lanes[int(table.lane[number])].lane, table.slot[numbers]
            if isinstance(error, InvalidInput):
                text, details = refusal_text(error), refusal_details(error)
                lane.write_status(slots, Status.INVALID_INPUT, text, details=details)
                self._end(numbers, BatchOutcome.OK, Status.INVALID_INPUT, "invalid_input")
            else:
                origin = self._origin(int(table.token[number]))
                lane.write_status(slots, Status.MODEL_ERROR, describe_error(error), origin)
                self._end(numbers, BatchOutcome.OK, Status.MODEL_ERROR, "model_error")

    def write_failure(self, numbers: I64, text: str) -> None:
        """Tell the rows of sequences that the generator failed; `fail` ends them."""
        table = self._table
        for number in numbers.tolist():
            lane = self._lanes[int(table.lane[number])].lane
            origin = self._origin(int(table.token[number]))
            lane.write_status(table.slot[[number]], Status.MODEL_ERROR, text, origin)

    def fail(self, numbers: I64, outcome: BatchOutcome) -> None:
        """They failed together: one batch to the batcher, whose records all have this outcome."""
        self._end(numbers, outcome, Status.MODEL_ERROR, "model_error")

    def give_back(self, numbers: I64) -> None:
        """They go on in another worker, behind the tokens that they have."""
        self._end(numbers, BatchOutcome.RETURNED, Status.OK, "returned")

    def _end(self, numbers: I64, outcome: BatchOutcome, status: Status, reason: str) -> None:
        if not len(numbers):
            return
        pairs = zip(
            self._table.record[numbers].tolist(), self._table.token[numbers].tolist(), strict=True
        )
        ended = [EndedRecord(record, token, outcome, status) for record, token in pairs]
        self._table.give_back(numbers)
        for _ in ended:
            self._metrics.ended(reason)
        self._records.end(ended, self._clock_ns())
