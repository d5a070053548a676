"""The answers of the task process to its askers: front ends and the command line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, assert_never

import msgspec

from batchpool.batches.service import BatchService
from batchpool.control.batch_messages import BatchQuestion
from batchpool.control.edges import TaskReply, ToTasks
from batchpool.control.task_messages import (
    CancelTask,
    CollectResult,
    DropLetters,
    GetTaskStatus,
    LetterForm,
    Letters,
    LettersChanged,
    ListLetters,
    ListTasks,
    LookAtTasks,
    MarkRead,
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
    NotSupported,
    PoolError,
    Retryable,
    StorageFull,
    TasksFull,
    TooLarge,
)
from batchpool.tasks.collecting import Collecting, Desk, Turn
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.full_texts import full_text
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import (
    KeptTask,
    NewTask,
    Put,
    PutOutcome,
    TaskState,
    fingerprint_of,
    key_digest,
    partition_for,
    submission_time,
    submitted_of,
    task_id,
)
from batchpool.tasks.runner import Runner
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.wire.task_form import without_id

_LOG = logging.getLogger("batchpool.tasks")
_OPEN = (TaskState.QUEUED.label, TaskState.RUNNING.label)
_FULL_RETRY_MS = 5000
_STORE_FULL = (
    "the disk or the server that keeps the tasks is full: collect or DELETE results, or come back"
    " after Retry-After; the pool's log says more"
)
_STORE_AWAY = "the store of tasks cannot be used at the moment; the pool's log says why"
_DISK_RETRY_MS = 30_000
_STATUS_FOR_S = 2.0  # counting takes the store's thread a while where many tasks are open


# methods: one for each question
class TaskAnswers:
    """Answers questions about the tasks of one store. clock_ms: Unix time. seed: as of
    `partition_for`."""

    def __init__(
        self,
        committer: Committer,
        runner: Runner,
        settings: TaskSettings,
        ends: Ends,
        metrics: TaskMetrics,
        clock_ms: Callable[[], int],
        where: str,
        batches: BatchService | None = None,
        seed: int = 0,
    ) -> None:
        self._committer = committer
        self._runner = runner
        self._settings = settings
        self._ends = ends
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._where = where
        self._batches = batches
        self._desk = Desk(committer, ends, self._missing, lambda: self.stopping)
        self._status: TaskStatus | None = None
        self._status_ms = 0
        self._seed = seed
        self.stopping = False

    def collecting(self, turn: Turn) -> Collecting:
        """Answers one asker's questions for results. turn: of it, to read a long one in: once it
        has taken the one before."""
        return Collecting(self._desk, turn)

    async def answer(self, message: ToTasks, turn: Turn = nullcontext) -> TaskReply:
        """The reply to one message, whatever happens. turn: as in `collecting`."""
        try:
            return await self._answer(message, turn)
        except Exception as exc:
            return refused(exc)

    async def _answer(self, message: ToTasks, turn: Turn) -> TaskReply:
        match message:
            case BatchQuestion():
                if self._batches is None:
                    raise NotSupported("this pool keeps no files and runs no batches")
                return await self._batches.answer(message)
            case SubmitTask():
                return (await self.submit([message]))[0]
            case LookAtTasks():
                return TaskStates(await self._look(message))
            case CollectResult():
                return await self._collect(message, turn)
            case MarkRead():
                await self._committer.ask_all("mark_read", message.ids)
                return TaskStates(())
            case CancelTask():
                return TaskStates((await self._cancel(message),))
            case GetTaskStatus():
                return await self._counts()
            case ListTasks():
                state, model, most = message.state, message.model, message.most
                tasks = await self._run(lambda store, _: store.list_tasks(state, model, most))
                return TaskList(tuple(tasks))
            case ListLetters():
                letters = await self._run(lambda store, _: store.letters(
                    message.model, message.code, message.before, message.most, message.ids,
                    whole=message.whole,
                ))  # fmt: skip
                return Letters(tuple(letters if message.whole else map(_in_a_list, letters)))
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

    async def submit(self, messages: Sequence[SubmitTask]) -> list[TaskReply]:
        """The replies to new tasks that came together, once those that are kept are on the disk."""
        now_ms = self._clock_ms()
        asked = [self._new_task(message, now_ms) for message in messages]
        tasks = [task for task in asked if isinstance(task, NewTask)]
        for model in {task.model for task in tasks}:
            self._runner.submitted(model)  # now, so that they are claimed with the same commit
        opened = [task.id for task in tasks if self._ends.opened(task.id, task.principal)]
        puts = await self._committer.ask_each("put", tasks)
        new: set[str] = set()
        replies: list[TaskReply] = []
        for task, put in zip(tasks, puts, strict=True):
            if isinstance(put, Put) and put.outcome is PutOutcome.NEW and put.task is not None:
                new.add(task.id)
                replies.append(TaskSubmitted(put.task))
            else:
                replies.append(self._put(task, put))
        self._metrics.counts["submitted"] += len(new)
        if len(new) < len(opened):
            self._ends.tell([identifier for identifier in opened if identifier not in new])
        if len(tasks) == len(asked):
            return replies
        found = iter(replies)
        return [next(found) if isinstance(task, NewTask) else task for task in asked]

    def _new_task(self, message: SubmitTask, now_ms: int) -> NewTask | TaskRefused:
        try:
            return self._checked(message, now_ms)
        except Exception as exc:
            return refused(exc)

    def _checked(self, message: SubmitTask, now_ms: int) -> NewTask:
        packed, answer = bytes(message.input), bytes(message.answer)
        settings = self._settings
        if len(packed) > settings.most_body_bytes:
            raise TooLarge(
                f"the input of this task takes {len(packed)} bytes; at most"
                f" {settings.most_body_bytes} are kept (task_max_body_mib): send fewer rows"
            )
        own_ms = message.timeout_ms
        deadline_ms = now_ms + min(settings.max_age_ms, own_ms or settings.max_age_ms)
        key = fingerprint = b""
        if message.key:
            key = key_digest(message.model, message.caller, message.principal, message.key)
            fingerprint = fingerprint_of(packed, without_id(answer))
        try:
            partition = partition_for(key, message.submitted_ms, self._seed)
            identifier = task_id(message.submitted_ms, message.token, partition)
        except (ValueError, OverflowError) as exc:
            raise NotReady(f"the front end sent no token of a task: {exc}") from None
        return NewTask(
            identifier, message.model, message.rows, packed, answer, message.caller,
            message.principal, submission_time(message.submitted_ms, now_ms), deadline_ms,
            0 < own_ms < settings.max_age_ms, key, fingerprint, message.origin,
        )  # fmt: skip

    def _put(self, task: NewTask, put: Put | BaseException) -> TaskReply:
        """The reply for what the store says of a task that it has not kept as a new one."""
        try:
            if isinstance(put, BaseException):
                raise put
            return self._submitted(task, put)
        except Exception as exc:
            return refused(exc)

    def _submitted(self, task: NewTask, put: Put) -> TaskSubmitted:
        match put.outcome:
            case PutOutcome.MISMATCH:
                raise IdempotencyMismatch(
                    "this Idempotency-Key came with another request before; a new key was expected"
                )
            case (
                PutOutcome.FULL | PutOutcome.SHARE_FULL
                | PutOutcome.BYTES_FULL | PutOutcome.BYTES_SHARE_FULL
            ):  # fmt: skip
                self._metrics.refused(put.outcome.value)
                text = full_text(put.outcome, self._settings.limits, task.holder)
                raise TasksFull(text, _FULL_RETRY_MS)
            case PutOutcome.DISK_FULL:
                self._metrics.refused(put.outcome.value)
                raise StorageFull(_STORE_FULL, _DISK_RETRY_MS)
        assert put.task is not None
        replayed = put.task.id != task.id
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

    async def _collect(self, message: CollectResult, turn: Turn) -> TaskResult:
        answered: asyncio.Future[TaskResult] = asyncio.get_running_loop().create_future()

        def reply(found: TaskResult | BaseException) -> None:
            if isinstance(found, BaseException):
                answered.set_exception(found)
            else:
                answered.set_result(found)

        collecting = self.collecting(turn)
        try:
            collecting.collect([(message, reply)])
            return await answered
        finally:
            collecting.close()

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
                None if self._batches is None else self._batches.counts(),
                dict(metrics.refusals),
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


def refused(exc: BaseException) -> TaskRefused:
    """The reply for an error."""
    match exc:
        case PoolError():
            after_ms = exc.retry_after_ms if isinstance(exc, Retryable) else 0
            return TaskRefused(exc.code, exc.message, after_ms, exc.param or "")
        # The addresses and paths in these two are for the log, not for callers over HTTP.
        case StoreFull():
            _LOG.warning("a question about tasks is refused: %s", exc)
            return TaskRefused(StorageFull.code, _STORE_FULL, _DISK_RETRY_MS)
        case StoreAway():
            _LOG.warning("a question about tasks is refused: %s", exc)
            return TaskRefused(NotReady.code, _STORE_AWAY, _FULL_RETRY_MS)
        case _:  # whatever one asker says, the others are answered
            _LOG.error("a question about tasks cannot be answered", exc_info=exc)
            return TaskRefused(InternalError.code, "internal error; the server's log has more")


def _in_a_list(letter: LetterForm) -> LetterForm:
    """A letter without the long ones of its facts."""
    facts = {name: value for name, value in letter.facts.items() if name != "traceback"}
    return msgspec.structs.replace(letter, facts=facts)
