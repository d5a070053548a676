"""A model that never ends: its caller is answered, nobody else notices, long batches survive."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

import batchpool as bp
from tests.fault.ledger import ledger_table, open_gate, runs, tags_of
from tests.fault.models import LOOPS
from tests.fault.test_worker_deaths import restarts, serves_again
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ROADS

HUNG_S = 1.5  # batch_timeout_s of the model that hangs
LONG_S = 4.0  # and of the one that takes long
LEGAL_S = 0.6 * LONG_S  # two of them are longer
GRACE_S = 20.0  # to kill the worker and to answer
STUCK = f"is stuck in a batch for more than batch_timeout_s = {HUNG_S:g}"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    hangs = ledger_table(workers_per_device=2, batch_timeout_s=HUNG_S, attempts=1)
    with serving(hangs, {"import": "Probe", "max_batch": 1, "batch_timeout_s": LONG_S}) as pool:
        yield pool


@pytest.fixture(scope="module", autouse=True)
def long_rows(pool: Pool) -> Iterator[list[Any]]:
    """Two batches that take 60 % of their limit each, the second handed over behind the first.

    They run while the other tests do.
    """
    with pool.client() as client:
        client.infer("probe", tag=[0], seconds=[0.0])  # one may stand behind, once times are known
        yield [client.submit("probe", tag=[tag], seconds=[LEGAL_S]) for tag in (1, 2)]


@pytest.mark.parametrize("stopped", [False, True])
def test_a_hung_worker_costs_its_own_caller_only(pool: Pool, stopped: bool) -> None:
    """C31: others are served, and it is replaced."""
    tag, before = 100_000 * (1 + stopped), restarts(pool)
    with pool.client() as client:
        start = time.monotonic()
        hung = client.submit("ledger", row=[[tag, 2 if stopped else LOOPS]])
        until(lambda: any(run.tags == (tag,) for run in runs(pool)), "the start of the row")
        victim = runs(pool)[-1].pid
        (other,) = {run_pid for run_pid in ledger_workers(pool) if run_pid != victim}
        if stopped:
            os.kill(victim, signal.SIGSTOP)
            open_gate(pool, 2)
        served = 0
        while not hung.done():
            served += 1
            rows = [[tag + served, 0]]
            assert client.infer("ledger", row=rows, timeout_s=20)["tag"].tolist() == [tag + served]
            assert ROADS["raw"].infer(pool, "ledger", "row", rows).status == 200
        assert isinstance(hung.exception(0), bp.WorkerLost)
        assert HUNG_S <= time.monotonic() - start < HUNG_S + GRACE_S
        theirs = [run.pid for run in runs(pool) if tag < run.tags[0] <= tag + served]
        assert len(theirs) == 2 * served
        assert other in theirs
        assert victim not in theirs
        assert other in ledger_workers(pool)
        serves_again(pool, "ledger", 2)
        assert restarts(pool) == pool.log.count(STUCK) == before + 1
        assert tags_of(client.submit("ledger", row=[[tag - 1, 0]])) == [tag - 1]


def ledger_workers(pool: Pool) -> set[int]:
    rows = pool.status()["processes"]
    return {row["pid"] for row in rows if row["name"].endswith("of ledger") and row["pid"]}


def test_batches_that_take_three_fifths_of_the_limit_survive(
    pool: Pool, long_rows: list[Any]
) -> None:
    """The clock of the second one starts when the first one ends."""
    found = [future.result(PATIENCE_S) for future in long_rows]
    assert [f["tag"][0] for f in found] == [1, 2]
    assert found[1]["call"][0] == found[0]["call"][0] + 1, "one was run twice"
    assert found[0]["pid"] == found[1]["pid"]
    assert f"batch_timeout_s = {LONG_S:g}" not in pool.log
