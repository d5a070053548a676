"""Tasks per second of one, two and three boxes on one Redis, with a model that takes no CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from batchpool.core.tensors.rows import check_rows
from batchpool.tasks.choice import now_ms
from batchpool.tasks.record import NewTask, PutOutcome, partition_for, task_id
from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_keys import PARTITIONS, task_partition
from batchpool.tasks.redis_store import RedisStore
from batchpool.wire.codec import Codec
from batchpool.wire.task_form import pack_answer, pack_input
from bench.boxes.redis_process import RedisProcess, redis_process
from bench.boxes.runner_box import LIMITS, MAX_BATCH, MODEL, SPEC, WIDTH
from bench.support.serving import cpu_seconds

_AT_ONCE = 256
_CALLERS = 8
_LOOK_S = 0.02
_TOGETHER = 16  # tasks that come within a few milliseconds, and so to one partition


def _tasks(first: int, n: int) -> list[NewTask]:
    """Tasks whose numbers can be told from their answers."""
    codec, now, found = Codec(SPEC), now_ms(), []
    for number in range(first, first + n):
        row = np.full((1, WIDTH), number, np.float32)
        rows = check_rows(SPEC, {"x": row})
        request = codec.parse({b"inference-header-content-length": b"0"}, row.tobytes())
        token = os.urandom(16)
        identifier = task_id(now, token, partition_for(b"", now, number // _TOGETHER))
        caller, given, answer = str(number % _CALLERS), pack_input(rows), pack_answer(request)
        deadline_ms = now + 10**8
        found.append(NewTask(identifier, MODEL, 1, given, answer, caller, "", now, deadline_ms))
    return found


def _fill(store: RedisStore, tasks: int) -> list[str]:
    """Put so many tasks; their ids by number."""
    ids: list[str] = []
    for first in range(0, tasks, _AT_ONCE):
        group = _tasks(first, min(_AT_ONCE, tasks - first))
        for put in store.put(group, now_ms()):
            if put.outcome is not PutOutcome.NEW:
                raise SystemExit(f"a task was not taken: {put.outcome}")
        ids += [task.id for task in group]
    return ids


def _wrong(store: RedisStore, ids: list[str]) -> int:
    """The number of tasks that have not exactly the answer of their own input."""
    wrong = 0
    for first in range(0, len(ids), _AT_ONCE):
        for at, kept in enumerate(store.collect(ids[first : first + _AT_ONCE], now_ms())):
            right = np.full(WIDTH, 2 * (first + at) + 1, np.float32).tobytes()
            wrong += (
                kept is None or kept.answer is None or not kept.answer.body.endswith(right)
            )  # fmt: skip
    return wrong


def _box(server: RedisProcess, batch_ms: float, row_ms: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.boxes.runner_box", server.url]
    box = subprocess.Popen(
        [*command, str(batch_ms), str(row_ms)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert box.stdout is not None
    if box.stdout.readline() != "connected\n":
        raise SystemExit("a box could not be started")
    return box


def scaling(boxes: int, tasks: int, batch_ms: float, row_ms: float) -> dict[str, Any]:
    """The rate of so many boxes, which find `tasks` for each of them in the store."""
    with redis_process("--appendonly", "yes", "--appendfsync", "everysec") as server:
        store = RedisStore(StoreAddress(server.url), LIMITS, now_ms)
        ids = _fill(store, tasks * boxes)
        running = [_box(server, batch_ms, row_ms) for _ in range(boxes)]
        pids = {"redis": server.pid, **{f"box {i}": box.pid for i, box in enumerate(running)}}
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        begun_s = time.monotonic()
        for box in running:
            assert box.stdin is not None
            box.stdin.write("go\n")
            box.stdin.flush()
        while store.models():
            time.sleep(_LOOK_S)
        took_s = time.monotonic() - begun_s
        cpu = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        spent: list[dict[str, float]] = []
        for box in running:
            assert box.stdin is not None
            box.stdin.close()
            spent.append(json.loads(box.stdout.readline()) if box.stdout else {})
            box.wait(60)
        owners = Counter(
            server.client.hget(f"bp:{{{_partition(identifier)}}}:t:{identifier}", "owner")
            for identifier in ids
        )
        done = store.counts().tasks
        wrong = _wrong(store, ids)
        store.close()
    ideal = boxes * 1000 * MAX_BATCH / (batch_ms + row_ms * MAX_BATCH)
    rate = len(ids) / took_s
    return {
        "tasks_per_s": round(rate),
        "share_of_ideal": round(rate / ideal, 3),
        "tasks": len(ids),
        "wrong": wrong,
        "states": msgspec.to_builtins(done.get(MODEL, {})),
        "tasks_by_box": sorted(owners.values()),
        "rows_a_batch": round(len(ids) / sum(box["batches"] for box in spent), 1),
        "late_s_by_box": [round(box["late_s"], 2) for box in spent],
        "idle_s_by_box": [round(box["idle_s"], 2) for box in spent],
        "took_s": round(took_s, 2),
        "cpu_us_per_task": {name: round(used / len(ids) * 1e6) for name, used in cpu.items()},
    }


def _partition(identifier: str) -> int:
    return task_partition(identifier, PARTITIONS) or 0
