"""Runs queued tasks: claims what there is room for, puts tasks of one shape into one call, and ends
each with its own rows.

Of each model so many rows are in flight as keep its workers busy, and no more: the rest waits in
the store, where it costs no memory. A model that cannot be asked now is left alone for a while.
The ends of tasks that wait for a full disk count as rows in flight, so that nothing is claimed in
their place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import InternalError, NotFound, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.tasks.committer import Committer
from batchpool.tasks.engine import Engine
from batchpool.tasks.judgement import OtherInputs, judge
from batchpool.tasks.known_form import KnownForms
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import (
    ClaimedTask,
    Reclaimed,
    TaskAnswer,
    Want,
)
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.stacking import (
    ReadTask,
    answer_rows,
    fits,
    in_calls,
    read_task,
    stacked,
    wanted_outputs,
)
from batchpool.tasks.store import StoreAway, StoreFull
from batchpool.tasks.task_ends import TaskEnds
from batchpool.wire.codec import Codec

_LOG = logging.getLogger("batchpool.tasks")
GAVE_UP = "gave_up"
_BATCHES = 4  # of the largest size that are in flight
_CLAIMED_BYTES = 64 * 2**20  # of inputs, at one time
_LONG_BYTES = 256 * 1024  # of outputs; writing more takes the loop long
_STORE_RETRY_S = 1.0
_UNSERVED_S = 10.0  # a model that this pool has not is left alone, for pools that have it


@dataclass(slots=True)
class _Model:
    """The runner's view of a model. due_ms: when one of its tasks may run, None for none.
    paused_ms: it could not be asked, and is not before that time. rows: claimed and not ended."""

    due_ms: int | None = None
    paused_ms: int = 0
    rows: int = 0
    facts: ModelFacts | None = None
    codec: Codec | None = None
    forms: KnownForms | None = None


class Runner:
    """Runs the tasks of one store in one pool. clock_ms: Unix time."""

    def __init__(
        self,
        committer: Committer,
        engine: Engine,
        settings: TaskSettings,
        ends: TaskEnds,
        metrics: TaskMetrics,
        clock_ms: Callable[[], int],
    ) -> None:
        self._committer = committer
        self._engine = engine
        self._settings = settings
        self._ends = ends
        self._metrics = metrics
        self._clock_ms = clock_ms
        self._models: dict[str, _Model] = {}
        self._wake = asyncio.Event()
        self._calls: dict[asyncio.Task[None], Sequence[str]] = {}
        self._stopping = False

    # -- what there is to do ------------------------------------------------------------

    def submitted(self, model: str, due_ms: int = 0) -> None:
        """A task of this model is queued. due_ms: when it may run."""
        found = self._models.setdefault(model, _Model())
        if found.due_ms is None or due_ms < found.due_ms:
            found.due_ms = due_ms
            self._wake.set()

    def cancelled(self, identifier: str) -> None:
        """A task was taken back: a call that runs it alone ends."""
        for call, ids in list(self._calls.items()):
            if list(ids) == [identifier]:
                call.cancel()

    @property
    def running(self) -> list[Sequence[str]]:
        """The tasks of each call in flight; none for claims that are no calls yet."""
        return list(self._calls.values())

    async def reclaim(self) -> None:
        """Take over what owners that have vanished had claimed."""
        found: Reclaimed = await self._committer.run(lambda store, now_ms: store.reclaim(now_ms))
        self._metrics.counts["reclaimed"] += found.tasks
        if found.tasks:
            _LOG.info("%d tasks are queued again whose process ended", found.tasks)
        if found.lost:
            error = InternalError(
                "the processes that ran this task ended each time; it is given up"
            )
            await asyncio.gather(*(self._ends.failed(task, error, GAVE_UP) for task in found.lost))
        for model in await self._committer.run(lambda store, now_ms: store.models()):
            self.submitted(model)

    async def run(self) -> None:
        """Run tasks until `stop`."""
        while not self._stopping:
            self._wake.clear()
            try:
                started = await self._claim()
            except (StoreFull, StoreAway) as exc:
                _LOG.error("no tasks can be claimed: %s", exc)
                self._wake.clear()
                await self._sleep(_STORE_RETRY_S)
                continue
            if not started:
                await self._sleep(self._until_due_s())

    async def _sleep(self, seconds: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _until_due_s(self) -> float | None:
        due = [
            max(model.due_ms, model.paused_ms)
            for model in self._models.values()
            if model.due_ms is not None and self._room(model)
        ]
        return max(0.0, (min(due) - self._clock_ms()) / 1000) if due else None

    async def stop(self) -> None:
        """Claim nothing any more, and wait for the calls in flight."""
        self._stopping = self._ends.stopping = True
        self._wake.set()
        while self._calls:
            await asyncio.wait(list(self._calls))

    def _room(self, model: _Model) -> int:
        """Rows that may be claimed, in whole batches: what is claimed together is a call, and if
        each made room for the next one, small calls would stay small for ever."""
        batch = 1 if model.facts is None else model.facts.max_batch
        batches = 1 if model.facts is None else _BATCHES
        window = min(batches * batch, self._settings.client_slots // 2 or 1)
        batch = min(batch, window // batches or 1)
        return max(0, window - model.rows) // batch * batch

    async def _claim(self) -> bool:
        """Claim and start what there is room for; False if there was nothing to ask for."""
        now_ms = self._clock_ms()
        wants = []
        for name, model in self._models.items():
            room = self._room(model)
            due_ms = model.due_ms
            if due_ms is not None and max(due_ms, model.paused_ms) <= now_ms and room:
                wants.append(Want(name, room, _CLAIMED_BYTES))
        if not wants:
            return False
        for want in wants:
            self._models[want.model].due_ms = None  # unless one is submitted meanwhile
        # Each with its own end: they may be of two commits, of which one fails.
        claims = await self._committer.ask_each("claim", wants)
        failed = None
        for want, found in zip(wants, claims, strict=True):
            if isinstance(found, BaseException):
                failed = found
                self.submitted(want.model)  # to be tried again
                continue
            if found.tasks:
                self._start(found.tasks)
            if found.due_ms is not None:
                self.submitted(want.model, found.due_ms)
        if failed is not None:
            raise failed
        return True

    # -- calls --------------------------------------------------------------------------

    def _start(self, tasks: Sequence[ClaimedTask]) -> None:
        """Run tasks of one model, once it is known."""
        model = self._models[tasks[0].model]
        self._track(self._run_all(model, tasks), model, sum(task.rows for task in tasks), ())

    def _track(
        self, work: Coroutine[Any, Any, None], model: _Model, rows: int, ids: Sequence[str]
    ) -> None:
        """Do the work for so many rows, and count them meanwhile. ids: the tasks of a call."""
        model.rows += rows
        running = asyncio.create_task(work)
        self._calls[running] = ids
        running.add_done_callback(lambda done: self._done(done, model, rows))

    def _done(self, work: asyncio.Task[None], model: _Model, rows: int) -> None:
        model.rows -= rows
        del self._calls[work]
        self._wake.set()
        if not work.cancelled() and (exc := work.exception()) is not None:
            _LOG.error("tasks ended unexpectedly", exc_info=exc)

    async def _run_all(self, model: _Model, tasks: Sequence[ClaimedTask]) -> None:
        """Cut the tasks into calls and start them."""
        name = tasks[0].model
        try:
            await self._learn(name, model)
        except PoolError as exc:
            if isinstance(exc, NotFound) and self._ends.is_shared:
                model.paused_ms = self._clock_ms() + int(_UNSERVED_S * 1000)
            await asyncio.gather(*(self._judge(task, exc) for task in tasks))
            return
        assert model.facts is not None
        assert model.forms is not None
        forms, spec = model.forms, model.facts.spec
        known = {word for t in spec.outputs for word in (t.name, t.sizes_name)}
        read = []
        for task in tasks:
            try:
                found = read_task(task, forms)
            except Exception as exc:  # of a damaged store; it must not keep the others from ending
                await self._ends.failed(task, _unreadable(exc), InternalError.code)
                continue
            if found.form is None:
                gone = [choice.name for choice in found.outputs if choice.name not in known]
                if gone:
                    error = NotFound(f"model {name!r} has no output {gone[0]!r} any more")
                    await self._judge(task, error)
                    continue
            read.append(found)
        for call in in_calls(read, model.facts.max_batch):
            ids = [task.task.id for task in call]
            rows = sum([task.n for task in call])
            self._track(self._run_call(name, call), model, rows, ids)

    async def _learn(self, name: str, model: _Model) -> None:
        """Know the model's tensors and limits as they are now."""
        facts = await self._engine.facts(name)
        if facts is model.facts:
            return
        if model.facts is None or facts.spec != model.facts.spec:
            model.codec = Codec(facts.spec)
            model.forms = KnownForms(model.codec, facts.spec)
        model.facts = facts

    async def _run_call(self, name: str, call: Sequence[ReadTask]) -> None:
        """Run the rows of a call and end each of its tasks."""
        model = self._models[name]
        assert model.facts is not None
        spec = model.facts.spec
        try:
            outputs = await self._engine.infer(
                name,
                stacked(call, spec.inputs),
                {} if call[0].form is not None else call[0].rows.parameters,
                wanted_outputs(call, spec),
            )
        except PoolError as exc:
            if not fits(call[0], spec.inputs):
                exc = OtherInputs(f"model {name!r} has other inputs than this task: {exc.message}")
            if len(call) > 1 and not judge(exc, 0, 1, 0.0).is_weather:
                for task in call:  # one of them is at fault, and the others are not to suffer
                    await self._run_call(name, [task])
            else:
                await asyncio.gather(*(self._judge(task.task, exc) for task in call))
            return
        except Exception:
            _LOG.exception("tasks of model %r could not be run", name)
            error = InternalError("internal error; the server's log has the details")
            await asyncio.gather(*(self._judge(task.task, error) for task in call))
            return
        first = 0
        done: list[tuple[ClaimedTask, TaskAnswer]] = []
        failed: list[tuple[ClaimedTask, PoolError]] = []
        found: TaskAnswer | PoolError | None
        for task in call:
            found = None if task.form is None else task.form.answer(outputs, first)
            if found is None:
                found = await self._answered(model, task, answer_rows(outputs, spec, first, task))
            if isinstance(found, PoolError):
                failed.append((task.task, found))
            else:
                done.append((task.task, found))
            first += task.n
        await asyncio.gather(
            self._ends.done(done), *(self._judge(task, error) for task, error in failed)
        )

    async def _answered(
        self, model: _Model, task: ReadTask, found: dict[str, Array] | PoolError
    ) -> TaskAnswer | PoolError:
        """The answer of a task with these outputs, or the error of one of its rows."""
        if isinstance(found, PoolError):
            return found
        assert model.codec is not None
        codec = model.codec
        request = task.request if task.form is None else task.form.request
        try:
            if sum(array.nbytes for array in found.values()) > _LONG_BYTES:
                headers, body = await asyncio.to_thread(codec.encode, request, found)
            else:
                headers, body = codec.encode(request, found)
        except PoolError as exc:
            return exc
        except Exception:  # a fault of ours: the task ends all the same
            _LOG.exception("the answer of a task of %r cannot be written", task.task.model)
            return InternalError("internal error; the server's log has the details")
        return TaskAnswer(200, tuple(headers), body)

    async def _judge(self, task: ClaimedTask, error: PoolError) -> None:
        """Try a task again later, or let it fail."""
        verdict, due_ms = await self._ends.error(task, error)
        if verdict.is_weather:
            self._models[task.model].paused_ms = due_ms
        if due_ms:
            self.submitted(task.model, due_ms)


def _unreadable(exc: Exception) -> InternalError:
    return InternalError(f"what is kept of this task cannot be read: {exc!r:.200}")
