"""CPU of one task in the server and in the store's thread, step by step, without a pool.

The steps are those of a task that is submitted over HTTP, waited for and collected. They are done
in groups, as the task process does them: the more come together, the less each one costs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from batchpool.tasks.choice import now_ms
from batchpool.tasks.record import (
    ClaimedTask,
    Ended,
    NewTask,
    PutOutcome,
    TaskAnswer,
    TaskState,
    Want,
    partition_for,
    task_id,
)
from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_store import RedisStore
from bench.boxes.redis_process import redis_process
from bench.boxes.runner_box import LIMITS, MODEL

_BODY = bytes(range(256)) * 8
_FORM = b"\x81\xa4form\xa4json"
_HEADERS = ((b"content-type", b"application/json"),)
_CALLERS = 8
_WANT_BYTES = 2**26
_SWEPT = 1024
# What was read is dropped by the sweep after it, so that this step has all that the others made.
_LIMITS = replace(LIMITS, grace_ms=0, evict_on_read=True)
STEPS = ("put", "claim", "finish", "look", "collect", "mark_read", "sweep")


class Meter:
    """CPU by step of the server's main thread and of this one, in nanoseconds: of each group. pid:
    of the server."""

    def __init__(self, pid: int) -> None:
        self._file = f"/proc/{pid}/schedstat"
        self.used_ns: dict[str, list[tuple[int, int]]] = {step: [] for step in STEPS}

    def _server_ns(self) -> int:
        with open(self._file, "rb") as counts:
            return int(counts.read().split()[0])

    def measure(self, step: str, work: Callable[[], Any]) -> Any:
        """The result of this work, which is counted as this step."""
        before = self._server_ns(), time.thread_time_ns()
        found = work()
        now = self._server_ns(), time.thread_time_ns()
        self.used_ns[step].append((now[0] - before[0], now[1] - before[1]))
        return found


def _tasks(n: int) -> list[NewTask]:
    now, found = now_ms(), []
    for number in range(n):
        token = os.urandom(16)
        identifier = task_id(now, token, partition_for(b"", now, 0))
        caller = f"caller-{number % _CALLERS}"
        found.append(NewTask(identifier, MODEL, 1, _BODY, _FORM, caller, "", now, now + 86_400_000))
    return found


def _ended(tasks: Iterable[ClaimedTask]) -> list[Ended]:
    answer = TaskAnswer(200, _HEADERS, _BODY)
    return [Ended(task.id, task.claim, TaskState.DONE, answer) for task in tasks]


def _live(store: RedisStore, meter: Meter, group: int) -> None:
    """The life of one group of tasks until their callers have read their results."""
    tasks = _tasks(group)
    ids = [task.id for task in tasks]
    puts = meter.measure("put", lambda: store.put(tasks, now_ms()))
    if any(put.outcome is not PutOutcome.NEW for put in puts):
        raise SystemExit("a task was not taken")
    want = Want(MODEL, group, _WANT_BYTES)
    claims = meter.measure("claim", lambda: _claimed(store, want))
    if not all(meter.measure("finish", lambda: store.finish(_ended(claims), now_ms()))):
        raise SystemExit("an end was not accepted")
    meter.measure("look", lambda: store.look(ids, now_ms()))
    results = meter.measure("collect", lambda: store.collect(ids, now_ms()))
    if any(kept is None or kept.answer is None or kept.answer.body != _BODY for kept in results):
        raise SystemExit("a result is not that of its task")
    meter.measure("mark_read", lambda: store.mark_read(ids, now_ms()))


def _claimed(store: RedisStore, want: Want) -> Sequence[ClaimedTask]:
    with store.group():
        return store.claim([want], now_ms())


def _sweep(store: RedisStore, tasks: int) -> None:
    """Drop what was read, as once a second: so many tasks."""
    while tasks:
        tasks -= store.sweep(now_ms()).results


def cost(group: int, tasks: int, fsync: str) -> dict[str, Any]:
    """CPU (us) of a task by step, [of the server, of the store's thread], in groups of so many."""
    groups = max(1, _SWEPT // group)
    with redis_process("--appendonly", "yes", "--appendfsync", fsync) as server:
        store = RedisStore(StoreAddress(server.url), _LIMITS, now_ms)
        _live(store, Meter(server.pid), group)  # scripts and connections are there from now on
        _sweep(store, group)
        meter = Meter(server.pid)
        for _ in range(max(1, tasks // (groups * group))):
            for _ in range(groups):
                _live(store, meter, group)
            meter.measure("sweep", lambda: _sweep(store, groups * group))
        store.close()
    # The median of groups: the caches of a busy machine make some of them twice as dear.
    found: dict[str, Any] = {}
    for step, used in meter.used_ns.items():
        n = group * (groups if step == "sweep" else 1)
        found[step] = [
            round(statistics.median(side) / n / 1000, 1) for side in zip(*used, strict=True)
        ]
    sums = [round(sum(side), 1) for side in zip(*found.values(), strict=True)]
    return {"all": sums, **found}
