"""A box without a pool: store, runner and upkeep of the task process; the engine sleeps.

    python -m bench.boxes.runner_box URL BATCH_MS ROW_MS

It prints a line once it is connected, runs tasks from the line that it reads then, and ends with
its standard input, after a line with what became of the engine's time, as JSON. The engine runs one
batch at a time, as an accelerator does, and takes no CPU.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import uvloop

from batchpool.client.pool_facts import ModelFacts
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.tasks.alerts import Alerts
from batchpool.tasks.choice import now_ms
from batchpool.tasks.committer import Committer
from batchpool.tasks.ends import Ends
from batchpool.tasks.metrics import TaskMetrics
from batchpool.tasks.record import StoreLimits
from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.runner import Runner
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.task_ends import TaskEnds
from batchpool.tasks.upkeep import Upkeep

MODEL, WIDTH, MAX_BATCH = "sleeper", 512, 64
SPEC = ModelSpec(
    MODEL,
    "numpy",
    (Tensor("x", "float32", (WIDTH,)),),
    (Tensor("y", "float32", (WIDTH,)),),
)
LIMITS = StoreLimits(10**6, 2**33, 3_600_000, 60_000, evict_on_read=False)
_SETTINGS = TaskSettings(LIMITS, 2**20, 86_400_000, 3, 4096, "")


class SleepingEngine:
    """y = 2x + 1 after batch_s + row_s for each row, one call at a time.

    batches, rows: those that it ran. late_s: by which the machine was late to wake it. idle_s:
    between two calls.
    """

    def __init__(self, batch_s: float, row_s: float) -> None:
        self._batch_s, self._row_s = batch_s, row_s
        self._accelerator = asyncio.Lock()
        self._ended_s: float | None = None
        self.spent = {"batches": 0.0, "rows": 0.0, "late_s": 0.0, "idle_s": 0.0}

    async def facts(self, model: str) -> ModelFacts:
        return ModelFacts(0, SPEC, 0.9, 30.0, MAX_BATCH)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, Any],
        parameters: Mapping[str, Any],
        outputs: Iterable[str],
    ) -> dict[str, list[Any]]:
        rows = np.asarray(inputs["x"], np.float32)
        takes_s = self._batch_s + self._row_s * len(rows)
        clock, spent = asyncio.get_running_loop().time, self.spent
        async with self._accelerator:
            begun_s = clock()
            spent["idle_s"] += begun_s - (self._ended_s or begun_s)
            await asyncio.sleep(takes_s)
            self._ended_s = clock()
            spent["late_s"] += self._ended_s - begun_s - takes_s
        spent["batches"] += 1
        spent["rows"] += len(rows)
        return {"y": list(rows * 2 + 1)}

    async def close(self) -> None:
        """Nothing to let go of."""


async def run(url: str, batch_s: float, row_s: float) -> None:
    """Run the tasks of the store until the standard input ends."""
    store = RedisStore(StoreAddress(url), LIMITS, now_ms)
    metrics, ends, alerts = TaskMetrics(), Ends(), Alerts("", asyncio.get_running_loop().time)
    committer = Committer(store, store.clock_ms, metrics.committed)
    task_ends = TaskEnds(committer, 3, ends, metrics, alerts, store.clock_ms)
    engine = SleepingEngine(batch_s, row_s)
    runner = Runner(committer, engine, _SETTINGS, task_ends, metrics, store.clock_ms)
    upkeep = Upkeep(committer, runner, ends, metrics, alerts, store.lease_s)
    await upkeep.sweep()
    print("connected", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await runner.reclaim()
    works = [asyncio.create_task(runner.run()), asyncio.create_task(upkeep.run())]
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(engine.spent), flush=True)
    await runner.stop()
    works[1].cancel()
    await asyncio.wait(works)
    await committer.close()


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], float(sys.argv[2]) / 1000, float(sys.argv[3]) / 1000))
