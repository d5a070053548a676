"""The ends of claimed tasks: results, further attempts and failures, brought to the store.

What cannot be written, since the disk is full, is kept here and written later.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any

from batchpool.control.task_messages import TaskForm, TaskResult
from batchpool.core.errors import PoolError
from batchpool.tasks.alerts import Alerts
from batchpool.tasks.body_files import LONG_BYTES
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
    """Ends tasks. attempts: the most of one task. clock_ms: Unix time. find_traceback: the model's,
    by the worker's pid, the batch and the error's text; "" for none. is_shared: other pools run
    tasks of the store, too. stopping: what cannot be
    written is left to the next process, which runs it again."""

    def __init__(
        self,
        committer: Committer,
        attempts: int,
        ends: Ends,
        metrics: TaskMetrics,
        alerts: Alerts,
        clock_ms: Callable[[], int],
        find_traceback: Callable[[int, int, str], str] = lambda pid, batch, error: "",
        *,
        is_shared: bool = False,
    ) -> None:
        self._committer = committer
        self._attempts = attempts
        self._ends = ends
        self._metrics = metrics
        self._alerts = alerts
        self._clock_ms = clock_ms
        self._find_traceback = find_traceback
        self.is_shared = is_shared
        self._random = random.Random()
        self.stopping = False

    async def done(self, tasks: Sequence[tuple[ClaimedTask, TaskAnswer]]) -> None:
        """Tasks have their results."""
        ends = [
            (task, Ended(task.id, task.claim, TaskState.DONE, answer)) for task, answer in tasks
        ]
        await self._finish(ends)

    async def error(self, task: ClaimedTask, error: PoolError) -> tuple[Verdict, int]:
        """Try a task again later, or let it fail. The verdict, and when it is due again (ms); 0 if
        it is not."""
        jitter = self._random.uniform(-1, 1)
        age_s = (self._clock_ms() - task.submitted_ms) / 1000 if self.is_shared else None
        verdict = judge(error, task.attempts, self._attempts, jitter, age_s)
        if verdict.after_s is None:
            await self.failed(task, error, error.code)
            return verdict, 0
        due_ms = self._clock_ms() + int(verdict.after_s * 1000)
        again = Again(task.id, task.claim, due_ms, verdict.counted)
        return verdict, due_ms if (await self._write("retry", [again]))[0] else 0

    async def failed(self, task: ClaimedTask, error: PoolError, code: str) -> None:
        """A task has failed for good. code: of its dead letter."""
        facts: dict[str, Any] = dict(error.facts)
        if error.row is not None:
            facts["row"] = error.row
        if text := self._traceback(error):
            facts["traceback"] = text
        end = Ended(
            task.id, task.claim, TaskState.FAILED, error_answer(error), code=code,
            error=error.message, facts=facts, is_letter=True,
        )  # fmt: skip
        (accepted,) = await self._finish([(task, end)])
        if accepted:
            self._metrics.letter(task.model, code)
            self._alerts.letter(task.model, code)
            _LOG.warning(
                "task %s... of model %r is a dead letter: %s",
                task.id[:10], task.model, error.message,
            )  # fmt: skip

    def _traceback(self, error: PoolError) -> str:
        """The model's traceback of an error, "" if there is none."""
        pid, batch = error.facts.get("worker_pid"), error.facts.get("batch")
        if pid is None or batch is None:
            return ""
        return self._find_traceback(pid, batch, error.message)

    async def _finish(self, ends: Sequence[tuple[ClaimedTask, Ended]]) -> list[bool]:
        accepted = await self._write("finish", [end for _, end in ends])
        now_ms = self._clock_ms()
        for (task, end), is_end in zip(ends, accepted, strict=True):
            if not is_end:
                self._metrics.counts["duplicate"] += 1
                continue
            self._metrics.ended(task.model, (now_ms - task.submitted_ms) / 1000)
            if listeners := self._ends.ended(task.id):
                result = _result(task, end, now_ms)
                for listener in listeners:
                    listener(result)
        return accepted

    async def _write(self, kind: str, entries: Sequence[Ended | Again]) -> list[bool]:
        """Have the store take ends, however long it cannot; False for those of other claims."""
        accepted = [False] * len(entries)
        places = list(range(len(entries)))
        while True:
            found = await self._committer.ask_each(kind, [entries[at] for at in places])
            left, error = [], None
            for at, answer in zip(places, found, strict=True):
                if isinstance(answer, (StoreFull, StoreAway)):
                    left.append(at)
                    error = answer
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    accepted[at] = bool(answer)
            if not left:
                return accepted
            _LOG.error("the ends of %d tasks cannot be kept yet: %s", len(left), error)
            if self.stopping:
                return accepted
            places = left
            await asyncio.sleep(_STORE_RETRY_S)


def _result(task: ClaimedTask, end: Ended, now_ms: int) -> TaskResult | None:
    """The result of a task for those who wait for it; None for one that is read by itself."""
    answer = end.answer
    if len(answer.body) > LONG_BYTES:
        return None
    form = TaskForm(
        task.id, end.state.label, task.model, task.attempts + end.counted, task.submitted_ms,
        task.started_ms, now_ms, end.code, end.error,
    )  # fmt: skip
    return TaskResult(form, answer.status, answer.headers, answer.body)
