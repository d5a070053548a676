"""The parts of the task process on a store in memory and an engine that a test steers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np

from batchpool.client.pool_facts import ModelFacts
from batchpool.control.task_messages import SubmitTask, TaskSubmitted
from batchpool.core.errors import NotFound, PoolError
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.tasks.alerts import Alerts
from batchpool.tasks.answers import TaskAnswers
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import StoreLimits
from batchpool.tasks.runner import Runner
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.task_ends import TaskEnds
from batchpool.tasks.upkeep import Upkeep
from batchpool.wire.codec import Codec
from batchpool.wire.task_form import pack_answer, pack_input
from tests.unit.tasks.memory_store import MemoryStore, Shelf

SPEC = ModelSpec(
    "twice",
    "numpy",
    (Tensor("x", "int64"),),
    (Tensor("y", "int64"),),
)
RAGGED = ModelSpec(
    "ragged",
    "numpy",
    (Tensor("ids", "int64", (Dim(8),), pad=0),),
    (Tensor("next", "int64", (Dim(8),), pad=0),),
)
SETTINGS = TaskSettings(
    StoreLimits(open=1000, bytes=2**30, result_ttl_ms=1000, grace_ms=100, evict_on_read=True),
    most_body_bytes=1000,
    max_age_ms=10_000,
    attempts=2,
    client_slots=64,
    alert_command="",
)
MAX_BATCH = 4


class FakeEngine:
    """Doubles rows. errors: of values of x, raised for their rows, or for a whole call where they
    are in `whole`. calls: the values of each call. gate: calls wait for it."""

    def __init__(self) -> None:
        self.errors: dict[int, PoolError] = {}
        self.whole: dict[int, Exception] = {}
        self.unknown = False
        self.calls: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def facts(self, model: str) -> ModelFacts:
        if self.unknown:
            raise NotFound(f"there is no model {model!r}")
        return ModelFacts(0, RAGGED if model == "ragged" else SPEC, 0.9, 30.0, MAX_BATCH)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        outputs: Iterable[str],
    ) -> dict[str, list[Any]]:
        await self.gate.wait()
        if model == "ragged":
            return {"next": [np.asarray(row) + 1 for row in inputs["ids"]]}
        values = inputs["x"].tolist()
        self.calls.append(values)
        for value in values:
            if value in self.whole:
                raise self.whole[value]
        return {"y": [self.errors.get(value, np.int64(2 * value)) for value in values]}

    async def close(self) -> None:
        """Nothing to let go of."""


class Desk:
    """Everything of a task process but its socket. now_ms: its clock. is_shared: other pools are
    said to run tasks of the store, too."""

    def __init__(
        self,
        shelf: Shelf | None = None,
        settings: TaskSettings = SETTINGS,
        *,
        is_shared: bool = False,
    ) -> None:
        self.now_ms = 1_000_000
        self.shelf = Shelf() if shelf is None else shelf
        self.store = MemoryStore(self.shelf, settings.limits)
        self.engine = FakeEngine()
        self.metrics, self.ends = TaskMetrics(), Ends(is_alone=True)
        self.alerts = Alerts("", lambda: 0.0)
        self.committer = Committer(self.store, lambda: self.now_ms, self.metrics.committed)
        self.tracebacks: dict[Any, str] = {}  # by pid, batch and the error's text
        task_ends = TaskEnds(
            self.committer, settings.attempts, self.ends, self.metrics, self.alerts,
            lambda: self.now_ms, lambda *where: self.tracebacks.get(where, ""),
            is_shared=is_shared,
        )  # fmt: skip
        self.runner = Runner(
            self.committer, self.engine, settings, task_ends, self.metrics, lambda: self.now_ms
        )  # fmt: skip
        self.answers = TaskAnswers(
            self.committer, self.runner, settings, self.ends, self.metrics, lambda: self.now_ms,
            "here",
        )  # fmt: skip
        self.upkeep = Upkeep(
            self.committer, self.runner, self.ends, self.metrics, self.alerts, self.store.lease_s
        )
        self._count = 0

    def message(self, values: list[int], **more: Any) -> SubmitTask:
        """A task of the model `twice`, or of another."""
        self._count += 1
        model = more.pop("model", "twice")
        spec = RAGGED if model == "ragged" else SPEC
        given = {"ids": values} if model == "ragged" else {"x": np.array(values)}
        body = b'{"instances": %s}' % msgspec.json.encode(values)
        request = Codec(spec).parse({b"content-type": b"application/json"}, body)
        rows = check_rows(spec, given)
        message = SubmitTask(
            self._count.to_bytes(16, "big"), self.now_ms, model, rows.n,
            msgspec.Raw(pack_input(rows)), msgspec.Raw(pack_answer(request)), "me",
        )  # fmt: skip
        return msgspec.structs.replace(message, **more)

    async def submit(self, values: list[int], **more: Any) -> str:
        """The id of a task that is taken."""
        found = await self.answers.answer(self.message(values, **more))
        assert isinstance(found, TaskSubmitted), found
        return found.task.id

    def state(self, identifier: str) -> str:
        kept = self.shelf.tasks.get(identifier)
        return "" if kept is None else kept.state.label

    def body(self, identifier: str) -> bytes:
        answer = self.shelf.tasks[identifier].answer
        assert answer is not None
        return answer.body

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop turn until the condition holds."""
        async with asyncio.timeout(60):
            while not condition():
                await asyncio.sleep(0.001)

    async def until_state(self, identifier: str, *states: str) -> None:
        await self.until(lambda: self.state(identifier) in states)


@asynccontextmanager
async def running(desk: Desk) -> AsyncIterator[Desk]:
    """The runner of a desk at work."""
    await desk.runner.reclaim()
    work = asyncio.create_task(desk.runner.run())
    try:
        yield desk
    finally:
        desk.engine.gate.set()
        await desk.runner.stop()
        await work
        await desk.committer.close()
