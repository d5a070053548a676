"""Calls of a store that several tests of the store in Redis make."""

from __future__ import annotations

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
from batchpool.tasks.redis_store import RedisStore

NOW = 1_000_000
LIMITS = StoreLimits(open=10**6, bytes=2**30, result_ttl_ms=1000, grace_ms=100, evict_on_read=True)
OK = TaskAnswer(200, ((b"content-type", b"application/json"),), b"{}")


def new(number: int, partition: int = 0, *, input: bytes = b"input", key: bytes = b"") -> NewTask:
    """A task of the model m."""
    identifier = task_id(NOW, number.to_bytes(16, "big"), partition)
    return NewTask(
        identifier, "m", 1, input, b"answer", "me", "", NOW, NOW + 10_000, key=key, fingerprint=b"f"
    )


def claimed(store: RedisStore, n: int = 1000, size: int = 2**30) -> list[ClaimedTask]:
    """Tasks that run from now on."""
    return store.claim([Want("m", n, size)], NOW)


def done(task: ClaimedTask) -> Ended:
    """The end of a task that went well."""
    return Ended(task.id, task.claim, TaskState.DONE, OK)


def letter(task: ClaimedTask) -> Ended:
    """The end of a task that becomes a dead letter."""
    answer = TaskAnswer(500, (), b"no")
    return Ended(
        task.id, task.claim, TaskState.FAILED, answer, code="model_error", error="no",
        is_letter=True,
    )  # fmt: skip


def state(store: RedisStore, identifier: str) -> str:
    """The state of a task, "" where it is not there."""
    (found,) = store.look([identifier], NOW)
    return "" if found is None else found.form.state
