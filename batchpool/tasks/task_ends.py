"""The ends of claimed tasks: results, further attempts and failures, brought to the store.

What cannot be written, since the disk is full, is kept here and written later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from batchpool.core.errors import PoolError
from batchpool.tasks.alerts import Alerts
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.judgement import Verdict, judge
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import Again, ClaimedTask, Ended, TaskAnswer, TaskState
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.tasks.task_rows import error_answer

_LOG = logging.getLogger("batchpool.tasks")
_STORE_RETRY_S = 1.0


class TaskEnds:
    """Ends tasks. attempts: the most of one task. clock_ms: Unix time. stopping: what cannot be
    written is left to the next process, which runs it again."""

    def __init__(
        self,
        committer: Committer,
        attempts: int,
        ends: Ends,
        metrics: TaskMetrics,
        alerts: Alerts,
        clock_ms: Callable[[], int],
    ) -> None:
        self._committer = committer
        self._attempts = attempts
        self._ends = ends
        self._metrics = metrics
        self._alerts = alerts
        self._clock_ms = clock_ms
        self._random = random.Random()
        self.stopping = False

    async def done(self, task: ClaimedTask, answer: TaskAnswer) -> None:
        """A task has its result."""
        await self._finish(task, Ended(task.id, task.claim, TaskState.DONE, answer))

    async def error(self, task: ClaimedTask, error: PoolError) -> tuple[Verdict, int]:
        """Try a task again later, or let it fail. The verdict, and when it is due again (ms); 0 if
        it is not."""
        jitter = self._random.uniform(-1, 1)
        verdict = judge(error, task.attempts, self._attempts, jitter)
        if verdict.after_s is None:
            await self.failed(task, error, error.code)
            return verdict, 0
        due_ms = self._clock_ms() + int(verdict.after_s * 1000)
        again = Again(task.id, task.claim, due_ms, verdict.counted)
        return verdict, due_ms if await self._write("retry", again) else 0

    async def failed(self, task: ClaimedTask, error: PoolError, code: str) -> None:
        """A task has failed for good. code: of its dead letter."""
        row = {} if error.row is None else {"row": error.row}
        end = Ended(
            task.id, task.claim, TaskState.FAILED, error_answer(error), code=code,
            error=error.message, facts={**error.facts, **row}, is_letter=True,
        )  # fmt: skip
        if await self._finish(task, end):
            self._metrics.letter(task.model, code)
            self._alerts.letter(task.model, code)
            _LOG.warning(
                "task %s... of model %r is a dead letter: %s",
                task.id[:10], task.model, error.message,
            )  # fmt: skip

    async def _finish(self, task: ClaimedTask, end: Ended) -> bool:
        accepted = await self._write("finish", end)
        if accepted:
            self._metrics.ended(task.model, (self._clock_ms() - task.submitted_ms) / 1000)
            self._ends.tell([task.id])
        else:
            self._metrics.counts["duplicate"] += 1
        return accepted

    async def _write(self, kind: str, entry: Ended | Again) -> bool:
        """Have the store take an end, however long it cannot."""
        while True:
            try:
                return bool(await self._committer.ask(kind, entry))
            except (StoreFull, StoreAway) as exc:
                _LOG.error("the end of a task cannot be kept yet: %s", exc)
                if self.stopping:
                    return False
                await asyncio.sleep(_STORE_RETRY_S)
