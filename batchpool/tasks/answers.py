"""The answers of the task process to its askers: front ends and the command line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import Any, assert_never

from batchpool.control.edges import TaskReply, ToTasks
from batchpool.control.task_messages import (
    CancelTask,
    CollectResult,
    DropLetters,
    GetTaskStatus,
    Letters,
    LettersChanged,
    ListLetters,
    ListTasks,
    LookAtTasks,
    ReplayLetters,
    SubmitTask,
    TaskForm,
    TaskList,
    TaskRefused,
    TaskResult,
    TaskStates,
    TaskStatus,
    TaskSubmitted,
)
from batchpool.core.errors import (
    IdempotencyMismatch,
    InternalError,
    NotReady,
    PoolError,
    Retryable,
    StorageFull,
    TasksFull,
    TooLarge,
)
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import (
    KeptResult,
    KeptTask,
    NewTask,
    Put,
    PutOutcome,
    StoreLimits,
    TaskState,
    fingerprint_of,
    key_digest,
    partition_for,
    submitted_of,
    task_id,
)
from batchpool.tasks.runner import Runner
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.store import StoreAway, StoreFull

_LOG = logging.getLogger("batchpool.tasks")
_OPEN = (TaskState.QUEUED.label, TaskState.RUNNING.label)
_FULL_RETRY_MS = 5000
_DISK_RETRY_MS = 30_000
_STATUS_FOR_S = 2.0  # counting takes the store's thread a while where many tasks are open


# methods: one for each question
class TaskAnswers:
    """Answers questions about the tasks of one store. clock_ms: Unix time."""

    def __init__(
        self,
        committer: Committer,
        runner: Runner,
        settings: TaskSettings,
        ends: Ends,
        metrics: TaskMetrics,
        clock_ms: Callable[[], int],
        where: str,
    ) -> None:
        self._committer = committer
        self._runner = runner
        self._settings = settings
        self._ends = ends
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._where = where
        self._status: TaskStatus | None = None
        self._status_ms = 0
        self.stopping = False

    async def answer(
        self, message: ToTasks, turn: AbstractAsyncContextManager[Any] | None = None
    ) -> TaskReply:
        """The reply to one message, whatever happens. turn: of the asker's, to read a long result
        in: once it has taken the one before."""
        try:
            return await self._answer(message, turn or nullcontext())
        except PoolError as exc:
            after_ms = exc.retry_after_ms if isinstance(exc, Retryable) else 0
            return TaskRefused(exc.code, exc.message, after_ms)
        except StoreFull as exc:
            return TaskRefused(StorageFull.code, str(exc), _DISK_RETRY_MS)
        except StoreAway as exc:
            return TaskRefused(NotReady.code, str(exc), _FULL_RETRY_MS)
        except Exception:  # whatever one asker says, the others are answered
            _LOG.exception("a question about tasks cannot be answered")
            return TaskRefused(InternalError.code, "internal error; the server's log has more")

    async def _answer(self, message: ToTasks, turn: AbstractAsyncContextManager[Any]) -> TaskReply:
        match message:
            case SubmitTask():
                return await self._submit(message)
            case LookAtTasks():
                return TaskStates(await self._look(message))
            case CollectResult():
                return await self._collect(message, turn)
            case CancelTask():
                return TaskStates((await self._cancel(message),))
            case GetTaskStatus():
                return await self._counts()
            case ListTasks():
                state, model, most = message.state, message.model, message.most
                tasks = await self._run(lambda store, _: store.list_tasks(state, model, most))
                return TaskList(tuple(tasks))
            case ListLetters():
                return Letters(tuple(await self._run(lambda store, _: store.letters(
                    message.model, message.code, message.before, message.most, message.ids,
                    whole=message.whole,
                ))))  # fmt: skip
            case ReplayLetters():
                return await self._replay(message)
            case DropLetters():
                dropped = await self._run(lambda store, _: store.drop_letters(message.letters))
                return LettersChanged(
                    {n: "" for n, done in zip(message.letters, dropped, strict=True) if done}
                )
            case _:
                assert_never(message)

    async def _run(self, work: Callable[[Any, int], Any]) -> Any:
        return await self._committer.run(work)

    # -- new tasks ----------------------------------------------------------------------

    async def _submit(self, message: SubmitTask) -> TaskSubmitted:
        packed, answer = bytes(message.input), bytes(message.answer)
        settings = self._settings
        if len(packed) > settings.most_body_bytes:
            raise TooLarge(
                f"the input of this task takes {len(packed)} bytes; at most"
                f" {settings.most_body_bytes} are kept (task_max_body_mib): send fewer rows"
            )
        own_ms = message.timeout_ms
        deadline_ms = self._clock_ms() + min(settings.max_age_ms, own_ms or settings.max_age_ms)
        key = fingerprint = b""
        if message.key:
            key = key_digest(message.model, message.caller, message.principal, message.key)
            fingerprint = fingerprint_of(packed, answer)
        try:
            partition = partition_for(key, message.token)
            identifier = task_id(message.submitted_ms, message.token, partition)
        except (ValueError, OverflowError) as exc:
            raise NotReady(f"the front end sent no token of a task: {exc}") from None
        task = NewTask(
            identifier, message.model, message.rows, packed, answer, message.caller,
            message.principal, message.submitted_ms, deadline_ms,
            0 < own_ms < settings.max_age_ms, key, fingerprint,
        )  # fmt: skip
        put: Put = await self._committer.ask("put", task)
        match put.outcome:
            case PutOutcome.NEW:
                self._metrics.counts["submitted"] += 1
                self._runner.submitted(message.model)
            case PutOutcome.MISMATCH:
                raise IdempotencyMismatch(
                    "this Idempotency-Key came with another request before; a new key was expected"
                )
            case PutOutcome.FULL | PutOutcome.SHARE_FULL | PutOutcome.BYTES_FULL:
                raise TasksFull(_full_text(put.outcome, settings.limits), _FULL_RETRY_MS)
            case PutOutcome.DISK_FULL:
                raise StorageFull(
                    "the disk below the tasks is full: no new one is kept", _DISK_RETRY_MS
                )
        assert put.task is not None
        replayed = put.task.id != identifier
        self._metrics.counts["replayed"] += replayed
        return TaskSubmitted(put.task, replayed)

    # -- tasks that are there -----------------------------------------------------------

    async def _look(self, message: LookAtTasks) -> tuple[TaskForm, ...]:
        with self._ends.waiting(message.ids if message.wait_ms else ()) as ended:
            found = await self._states(message)
            if message.wait_ms and all(form.state in _OPEN for form in found):
                await self._wait(ended, message.wait_ms)
                found = await self._states(message)
        return found

    async def _states(self, message: LookAtTasks) -> tuple[TaskForm, ...]:
        kept: list[KeptTask | None] = await self._committer.ask_all("look", message.ids)
        return tuple(
            self._missing(identifier)
            if task is None or task.principal != message.principal
            else task.form
            for identifier, task in zip(message.ids, kept, strict=True)
        )

    async def _wait(self, ended: asyncio.Event, wait_ms: int) -> None:
        if self.stopping:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await ended.wait()

    def _missing(self, identifier: str) -> TaskForm:
        """A task that is not there: one that was kept for its time, or none that ever was."""
        submitted_ms = submitted_of(identifier)
        if submitted_ms is not None:
            kept_ms = self._settings.limits.result_ttl_ms
            if 0 < submitted_ms <= self._clock_ms() - kept_ms:
                return TaskForm(identifier, "expired")
        return TaskForm(identifier, "not_found")

    async def _collect(
        self, message: CollectResult, turn: AbstractAsyncContextManager[Any]
    ) -> TaskResult:
        # A stranger's look must not count as read.
        kept: KeptTask | None = await self._committer.ask("look", message.id)
        if kept is None or kept.principal != message.principal:
            return TaskResult(self._missing(message.id))
        if kept.form.state in _OPEN:
            return TaskResult(kept.form)
        async with turn if kept.is_long else nullcontext():
            return await self._collected(message)

    async def _collected(self, message: CollectResult) -> TaskResult:
        """The result of a task that its caller may see, which counts as read if there is one."""
        found: KeptResult | None = await self._committer.ask("collect", message.id)
        if found is None:
            return TaskResult(self._missing(message.id))
        answer = found.answer
        if answer is None:
            return TaskResult(found.form)
        return TaskResult(found.form, answer.status, answer.headers, answer.body)

    async def _cancel(self, message: CancelTask) -> TaskForm:
        kept: KeptTask | None = await self._committer.ask("look", message.id)
        if kept is None or kept.principal != message.principal:
            return self._missing(message.id)
        found: TaskForm | None = await self._committer.ask("cancel", message.id)
        if found is None:
            return TaskForm(message.id, "not_found")
        if found.state in _OPEN:
            self._runner.cancelled(message.id)
            self._ends.tell([message.id])
        return found

    # -- the operator -------------------------------------------------------------------

    async def _counts(self) -> TaskStatus:
        now_ms = self._clock_ms()
        if self._status is None or not 0 <= now_ms - self._status_ms < _STATUS_FOR_S * 1000:
            counts = await self._run(lambda store, _: store.counts())
            oldest_s = max(0, now_ms - counts.oldest_ms) / 1000 if counts.oldest_ms else 0.0
            metrics = self._metrics
            self._status = TaskStatus(
                counts.tasks, metrics.letters, counts.letters, oldest_s, counts.bytes,
                dict(metrics.counts), metrics.times, self._where,
            )  # fmt: skip
            self._status_ms = now_ms
        return self._status

    async def _replay(self, message: ReplayLetters) -> LettersChanged:
        deadline_ms = self._clock_ms() + self._settings.max_age_ms
        ids: list[str | None] = await self._run(
            lambda store, now_ms: store.replay(message.letters, now_ms, deadline_ms)
        )
        for model in await self._run(lambda store, _: store.models()):
            self._runner.submitted(model)
        found = zip(message.letters, ids, strict=True)
        return LettersChanged({letter: new for letter, new in found if new is not None})


def _full_text(outcome: PutOutcome, limits: StoreLimits) -> str:
    """The limit that holds, its number, and what makes room."""
    match outcome:
        case PutOutcome.BYTES_FULL:
            return (
                f"tasks, results and dead letters take {limits.bytes >> 20} MiB, the most that is"
                " kept (tasks_max_mib): collect or DELETE results, or come back after Retry-After"
            )
        case PutOutcome.SHARE_FULL:
            return (
                f"this caller has half of the {limits.open} open tasks that are taken (tasks_max),"
                " the most while others have some too: come back after Retry-After, when some of"
                " its own have ended"
            )
        case _:
            return (
                f"there are {limits.open} open tasks, the most that are taken (tasks_max): come"
                " back after Retry-After, when some have ended"
            )
