"""The test's side of the model `Ledger`: hold workers up, let them go, and see what they ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import batchpool as bp
from batchpool.core.layout.segments import RECORDS
from tests.process.pool_under_test import PATIENCE_S, Pool, Settings, until

GATE = 1
MAX_BATCH = 4


def ledger_table(**settings: Any) -> Settings:
    """The model's table; a batch leaves when it is full, else at once."""
    return {
        "import": "tests.fault.models:Ledger",
        "max_batch": MAX_BATCH,
        "max_wait_ms": 0,
        "policy": "fixed",
        **settings,
    }


@dataclass(frozen=True)
class Run:
    """One call of the model: in which worker, with which tags."""

    pid: int
    tags: tuple[int, ...]


def runs(pool: Pool) -> list[Run]:
    """Every call so far, in the order in which they began."""
    path = pool.notes / "ledger"
    if not path.exists():
        return []
    lines = [[int(word) for word in line.split()] for line in path.read_text().splitlines()]
    return [Run(pid, tuple(tags)) for pid, *tags in lines]


def tags_run(pool: Pool) -> list[int]:
    return [tag for run in runs(pool) for tag in run.tags]


def fill_workers(pool: Pool, client: bp.Client, first: int, gate: int = GATE) -> Any:
    """Give every worker as many full batches as it may take, which wait for the gate.

    Returns the future of their rows, whose tags begin with `first`. Nothing else is dispatched
    before the gate opens: where a worker takes fewer, as while its batches run for long, the others
    stand first in the queue.
    """
    workers = pool.pids("worker")
    n = len(workers) * RECORDS * MAX_BATCH
    future = client.submit("ledger", row=[[first + i, gate] for i in range(n)], priority=1)
    tags = range(first, first + n)

    def begun() -> set[int]:
        return {run.pid for run in runs(pool) if set(run.tags) & set(tags)}

    until(lambda: begun() == set(workers), "a batch in every worker")
    return future


def open_gate(pool: Pool, gate: int = GATE) -> None:
    (pool.notes / f"gate-{gate}").touch()


def tags_of(future: Any) -> list[int]:
    tags: list[int] = future.result(PATIENCE_S)["tag"].tolist()
    return tags
