"""One stage of a model as the batcher sees it: limits, admitted rows, suspects, metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from batchpool.batcher.metrics import BatcherMetrics
from batchpool.core.scheduler.background import BackgroundWatch
from batchpool.core.scheduler.decide import Limits, WorkerView
from batchpool.core.scheduler.estimators import ArrivalEstimator
from batchpool.core.scheduler.latency_target import why_out_of_reach
from batchpool.core.scheduler.queue import I64, Queue, QueueColumn
from batchpool.core.scheduler.suspect_rows import SuspectRows
from batchpool.core.tensors.stages import Stage

# A model that raises twice for a row, the second time for it alone, would raise again. The death
# of a worker may have other causes, so there the model's `attempts` hold.
_MODEL_ATTEMPTS = 2


@dataclass
class ModelQueue:
    """The rows of one model that wait for a worker of one stage, and the rules for running them.

    attempts: failed batches after which a row that fails alone gets the error. idempotent: rows
    may run again after a failure. suspects: rows of failed batches, which run apart from others.
    following: where rows go whose batch was good; None after the last stage. waits_since: the
    column with the time from which a row's wait is counted. generates: the rows are sequences of a
    generator, which join workers one by one.
    """

    name: str
    limits: Limits
    attempts: int = 3
    idempotent: bool = True
    queue: Queue = field(default_factory=Queue)
    suspects: SuspectRows = field(default_factory=SuspectRows)
    traffic: ArrivalEstimator = field(default_factory=ArrivalEstimator)
    background: BackgroundWatch = field(default_factory=BackgroundWatch)
    metrics: BatcherMetrics = field(default_factory=BatcherMetrics)
    stage: Stage = Stage.INFER
    following: ModelQueue | None = None
    waits_since: int = QueueColumn.SUBMIT_NS
    generates: bool = False
    _warned_target_ns: int = 0
    _kept: tuple[Limits, list[int]] | None = None
    _kept_until_ns: int = 0

    def follow(self, earlier: ModelQueue) -> None:
        """Take the rows of an earlier stage from now on."""
        earlier.following, self.waits_since = self, QueueColumn.SINCE_NS

    def keeps_waiting(self, facts: list[int], now_ns: int) -> int:
        """Until when the last decision holds, by which nothing left; 0 if it is to be made again.

        facts: all that it depends on beside the time and the limits, as `keep_waiting` had it.
        Of its workers these are how many are ready and how many batches they were ever sent and
        have: among the same workers none of these goes back without another one going on. A
        stage is looked at whenever anything happens in any stage, mostly in another one.
        """
        kept = self._kept
        if kept is None or now_ns >= self._kept_until_ns:
            return 0
        same = kept[0] is self.limits and kept[1] == facts
        return self._kept_until_ns if same else 0

    def keep_waiting(self, facts: list[int], until_ns: int) -> None:
        """Keep a decision by which nothing leaves before that time. facts: see `keeps_waiting`."""
        self._kept, self._kept_until_ns = (self.limits, facts), until_ns

    def attempts_after(self, lost: bool) -> int:
        """The failed batches after which a row that fails alone gets the error. lost: their worker
        died, else the model raised."""
        return self.attempts if lost else min(self.attempts, _MODEL_ATTEMPTS)

    def take_lane(self, lane: int) -> I64:
        """Take a lane's rows out of the queue and out of the suspects, in this order."""
        found = np.flatnonzero(self.queue.view()[QueueColumn.LANE] == lane)
        return np.concatenate([self.queue.drop(found), self.suspects.take_lane(lane)], axis=1)

    def onward(self) -> Iterator[ModelQueue]:
        """This stage, then those that follow it."""
        stage: ModelQueue | None = self
        while stage is not None:
            yield stage
            stage = stage.following

    def refusal_text(self) -> str:
        """The error message of rows that are refused although the lane has free slots."""
        return (
            f"model {self.name!r} is overloaded: this request would not be answered in time"
            f" (target_p99_ms = {self._target_ms:g})"
        )

    def too_large_text(self, tokens: int, most: int) -> str:
        """The error message of a row that reserves more tokens than any worker holds."""
        return (
            f"model {self.name!r}: the prompt and max_tokens make {tokens} tokens; at most {most}"
            " fit into a worker; send a shorter prompt or a smaller max_tokens"
        )

    def target_warning(self, workers: Sequence[WorkerView]) -> str:
        """A warning for the log that the latency target is out of reach, once for each target;
        "" if it is not, or if the warning was given before."""
        if self._warned_target_ns == self.limits.target_ns:
            return ""
        why = why_out_of_reach(workers, self.limits)
        if not why:
            return ""
        self._warned_target_ns = self.limits.target_ns
        return f"model {self.name!r} cannot keep target_p99_ms = {self._target_ms:g}: {why}"

    @property
    def _target_ms(self) -> float:
        return self.limits.target_ns / 1e6
