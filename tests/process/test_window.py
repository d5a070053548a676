"""The batching window as callers meet it: full or waited, counted from submission."""

from __future__ import annotations

import asyncio
import concurrent.futures as cf
import itertools
import time
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_wake_ups import fastest_s

WAIT_S = 1.0
GATES = itertools.count(1)
QUICK = {"policy": "fixed", "max_wait_ms": 200, "max_batch": 64}
PATIENT = {"policy": "fixed", "max_wait_ms": 1000 * WAIT_S, "max_batch": 4}


@pytest.fixture(scope="module")
def pool() -> Any:
    models = [
        {"import": "Probe", **QUICK},
        {"import": "Slow", **PATIENT, "workers_per_device": 2},
        {"import": "Alone", **PATIENT},
    ]
    with serving(*models) as pool:
        yield pool


def rows_per_batch(before: dict[str, Any], after: dict[str, Any]) -> float:
    return float((after["rows"] - before["rows"]) / (after["batches"] - before["batches"]))


def new_reasons(before: dict[str, Any], after: dict[str, Any]) -> dict[str, int]:
    found = {k: n - before["reasons"].get(k, 0) for k, n in after["reasons"].items()}
    return {k: n for k, n in found.items() if n}


@pytest.mark.long
def test_sixty_four_threads_form_large_batches(pool: Pool) -> None:
    before = pool.tally("probe")
    with pool.client() as client, cf.ThreadPoolExecutor(64) as threads:

        def call(tag: int) -> int:
            return int(client.infer("probe", tag=[tag], seconds=[0.0])["tag"][0])

        assert list(threads.map(call, range(640))) == list(range(640))
    assert rows_per_batch(before, pool.tally("probe")) > 4


def test_sixty_four_tasks_form_large_batches(pool: Pool) -> None:
    before = pool.tally("probe")

    async def work() -> None:
        async with pool.async_client() as client:

            async def caller(first: int) -> None:
                for tag in range(first, 640, 64):
                    found = await client.infer("probe", tag=[tag], seconds=[0.0])
                    assert found["tag"].tolist() == [tag]

            await asyncio.gather(*(caller(i) for i in range(64)))

    asyncio.run(work())
    assert rows_per_batch(before, pool.tally("probe")) > 4


def test_requests_of_many_sizes_ride_together_and_part_again(pool: Pool) -> None:
    """C08: two clients' rows in common batches, each with its own answers."""
    before = pool.tally("probe")
    with pool.client() as one, pool.client() as other:
        sizes = [10, 2, 10, 1, 64] * 12
        futures = []
        for i, n in enumerate(sizes):
            client = (one, other)[i % 2]
            tags = [1000 * i + k for k in range(n)]
            futures.append((tags, client.submit("probe", tag=tags, seconds=[0.0] * n)))
            if i % 10 == 9:
                for tags, future in futures[-10:]:
                    assert future.result(PATIENCE_S)["tag"].tolist() == tags
    assert rows_per_batch(before, pool.tally("probe")) > 4


def burst(client: bp.Client, model: str, count: int) -> float:
    """Send `count` rows at once; how long until all are answered, in seconds."""
    start = time.monotonic()
    found = client.infer(model, tag=np.arange(count), seconds=np.zeros(count, np.float32))
    assert found["tag"].tolist() == list(range(count))
    assert set(found["rows"].tolist()) == {count}, "they did not ride together"
    return time.monotonic() - start


def test_a_full_batch_leaves_at_once_and_a_partial_one_when_it_has_waited(pool: Pool) -> None:
    """C14: of four, as callers measure it."""
    with pool.client() as client:
        burst(client, "slow", 4)
        before = pool.tally("slow")
        took_s, limit_s = fastest_s(lambda: burst(client, "slow", 4), WAIT_S / 2)
        assert took_s < limit_s
        middle = pool.tally("slow")
        assert new_reasons(before, middle).keys() == {"FULL"}
        took_s, limit_s = fastest_s(lambda: burst(client, "slow", 3), 1.5 * WAIT_S)
        assert WAIT_S <= took_s < limit_s
        assert new_reasons(middle, pool.tally("slow")).keys() == {"WAIT"}


@pytest.mark.parametrize("model", ["slow", "alone"])
def test_the_wait_is_counted_from_submission(pool: Pool, model: str) -> None:
    """C14: with an idle worker beside the busy one a row waits for the window only; without one it
    starts as soon as the worker is free, if its wait is over by then."""

    def trial() -> float:
        gate = next(GATES)
        before = pool.tally(model)["batches"]
        with opened_at_last(pool, gate):
            zeros = np.zeros(4, np.float32)
            running = client.submit(model, tag=np.arange(4), seconds=zeros, gate=np.full(4, gate))
            until(lambda: pool.tally(model)["batches"] > before, "the start of the long batch")
            begun_s = time.monotonic()
            late = client.submit(model, tag=[9], seconds=[0.0])
            if model == "alone":
                time.sleep(1.25 * WAIT_S)  # its wait
                assert not late.done()
                begun_s = time.monotonic()
                open_gate(pool, gate)
            late.result(PATIENCE_S)
            took_s = time.monotonic() - begun_s
            open_gate(pool, gate)
            assert running.result(PATIENCE_S)["tag"].tolist() == [0, 1, 2, 3]
        return took_s

    with pool.client() as client:
        burst(client, model, 4)
        least_s, limit_s = (WAIT_S, 1.5 * WAIT_S) if model == "slow" else (0.0, WAIT_S / 2)
        took_s, limit_s = fastest_s(trial, limit_s)
        assert least_s <= took_s < limit_s
