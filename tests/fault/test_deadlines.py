"""Deadlines hold whatever the workers do, and nobody works for callers who were told no."""

from __future__ import annotations

import concurrent.futures as cf
import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import batchpool as bp
from tests.fault.ledger import fill_workers, ledger_table, open_gate, runs, tags_of, tags_run
from tests.fault.test_worker_deaths import restarts, serves_again
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ROADS, outputs

LIMIT_S = 0.3
GRACE_S = 15.0  # loose: what a busy machine may add
GATES = itertools.count(1)
TAGS = itertools.count(1000, 1000)


@pytest.fixture(scope="module")
def pool() -> Any:
    # A batcher that is stopped for some seconds, on a busy machine, is to be left alone.
    with serving(ledger_table(workers_per_device=2), server={"stall_timeout_s": 0}) as pool:
        yield pool


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def over_http(pool: Pool, road: str, tag: int) -> None:
    limit = f"{LIMIT_S * 1000:.0f}"
    answer = ROADS[road].infer(pool, "ledger", "row", [[tag, 0]], X_Request_Timeout_Ms=limit)
    assert answer.refused == (504, "deadline_exceeded")


def by_infer(client: bp.Client, tag: int) -> None:
    with pytest.raises(bp.DeadlineExceeded):
        client.infer("ledger", row=[[tag, 0]], timeout_s=LIMIT_S)


def by_submit(client: bp.Client, tag: int) -> None:
    future = client.submit("ledger", row=[[tag, 0]], timeout_s=LIMIT_S)
    assert isinstance(future.exception(PATIENCE_S), bp.DeadlineExceeded)


def all_are_refused_in_time(pool: Pool, client: bp.Client, first: int) -> int:
    """Requests over every road at once, none of which can be run; how many they were.

    (bp.AsyncClient is what the front end waits with.)
    """

    def timed(call: Any, *arguments: Any) -> float:
        start = time.monotonic()
        call(*arguments)
        return time.monotonic() - start

    calls: list[tuple[Any, ...]] = [(over_http, pool, road) for road in ROADS]
    calls += [(by_infer, client), (by_submit, client)]
    with cf.ThreadPoolExecutor(3 * len(calls)) as threads:
        under_way = [
            threads.submit(timed, *call, first + tag) for tag, call in enumerate(3 * calls)
        ]
        took_s = [future.result(PATIENCE_S) for future in under_way]
    assert all(LIMIT_S <= took < LIMIT_S + GRACE_S for took in took_s), took_s
    return len(took_s)


@pytest.mark.parametrize("held_up", ["busy workers", "stopped workers", "stopped batcher"])
def test_deadlines_hold_and_late_requests_are_never_run(pool: Pool, held_up: str) -> None:
    """C26: what is late is answered in time and dropped; the next ones do not wait behind it."""
    gate, first = next(GATES), next(TAGS)
    with pool.client() as client:
        client.infer("ledger", row=[[first + 999, 0]])
        before = pool.tally("ledger")
        blockers = fill_workers(pool, client, first, gate)
        victims = {"busy workers": [], "stopped workers": pool.pids("worker")}
        with stopped(victims.get(held_up, pool.pids("batcher"))):
            late = all_are_refused_in_time(pool, client, first + 500)
        fresh = [client.submit("ledger", row=[[first + 700 + i, 0]]) for i in range(5)]
        open_gate(pool, gate)
        blocking = tags_of(blockers)
        assert blocking == list(range(first, first + len(blocking)))
        assert [tags_of(future)[0] for future in fresh] == [first + 700 + i for i in range(5)]
        answer = ROADS["json"].infer(pool, "ledger", "row", [[first + 800, 0]])
        assert outputs(answer) == {"tag": [first + 800]}
        until(lambda: not any(lane["claimed"] for lane in pool.status()["lanes"]), "free slots")
        run = [tag for tag in tags_run(pool) if first <= tag < first + 900]
        wanted = [*blocking, *range(first + 700, first + 705), first + 800]
        assert sorted(run) == wanted, "the late ones were run, or others twice"
        after = pool.tally("ledger")
        dropped = after["expired"] + after["cancelled"] - before["expired"] - before["cancelled"]
        assert dropped == late
        assert restarts(pool) == 0


@pytest.mark.long
def test_rows_given_to_a_stopped_worker_are_not_run_by_the_next_one() -> None:
    """C26: their callers have gone when the worker is killed, so the retry finds nobody to
    run for."""
    with serving(ledger_table(batch_timeout_s=4)) as pool, pool.client() as client:
        client.infer("ledger", row=[[1, 0]])
        (worker,) = pool.pids("worker")
        os.kill(worker, signal.SIGSTOP)
        late = all_are_refused_in_time(pool, client, 500)
        until(lambda: restarts(pool) == 1, "the end of the stopped worker")
        serves_again(pool, "ledger", 1)
        assert client.infer("ledger", row=[[2, 0]])["tag"].tolist() == [2]
        until(lambda: not any(lane["claimed"] for lane in pool.status()["lanes"]), "free slots")
        assert tags_run(pool) == [1, 2]
        tally = pool.tally("ledger")
        assert tally["expired"] + tally["cancelled"] == late
        assert [run.pid for run in runs(pool)] == [worker, *pool.pids("worker")]
