"""Stores of tasks of every kind, and tasks for them."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import structs

from batchpool.tasks.record import (
    ClaimedTask,
    Ended,
    NewTask,
    StoreLimits,
    TaskAnswer,
    TaskState,
    Want,
    task_id,
)
from batchpool.tasks.store import TaskStore

NOW = 1_000_000
LIMITS = StoreLimits(open=100, bytes=2**30, result_ttl_ms=1000, grace_ms=100, evict_on_read=True)
OK = TaskAnswer(200, ((b"content-type", b"application/json"),), b"{}")
Open = Callable[..., TaskStore]


def new(number: int, *, model: str = "m", caller: str = "me", **more: object) -> NewTask:
    identifier = task_id(NOW, number.to_bytes(16, "big"))
    task = NewTask(
        identifier, model, 1, b"input %d" % number, b"answer", caller, "", NOW, NOW + 10_000
    )
    return structs.replace(task, **more)


def claimed(
    store: TaskStore, n: int = 100, now_ms: int = NOW, model: str = "m"
) -> list[ClaimedTask]:
    return store.claim([Want(model, n, 2**30)], now_ms)


def done(task: ClaimedTask, answer: TaskAnswer = OK) -> Ended:
    return Ended(task.id, task.claim, TaskState.DONE, answer)


def state(store: TaskStore, identifier: str) -> str:
    (found,) = store.look([identifier], NOW)
    return "" if found is None else found.form.state
