"""In which order a real pool runs what waits: flows by turns, priorities, deadlines.

One row a batch and a worker that waits at a gate: what is queued meanwhile is run in an order
that the rows' call numbers tell, however fast or slow the machine is. Two rows are with the
worker already, whatever comes later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import Pool, serving, until
from tests.process.test_fairness import GATED, claimed, open_gate, soon
from tests.process.test_http_road import connections, infer_url, outputs, tensor

WITH_THE_WORKER = 2


@pytest.fixture
def pool() -> Iterator[Pool]:
    model = {**GATED, "slots": 256}
    with serving(model, server={"frontends": 1, "client_slots": 256}) as found:
        yield found


def submit(client: bp.Client, tag: int, gate: int = 0, **more: Any) -> Future[Any]:
    return client.submit("gated", tag=[tag], seconds=np.zeros(1, "f4"), gate=[gate], **more)


def queued(pool: Pool) -> int:
    return int(pool.tally("gated")["queued"])


def call_of(future: Future[Any]) -> int:
    return int(future.result(60)["call"][0])


def wait_for(pool: Pool, rows: int) -> None:
    """Until so many rows wait in the batcher."""
    until(lambda: queued(pool) == rows, f"{rows} rows in the queue")


def test_a_bulk_client_does_not_push_an_interactive_one_back(pool: Pool) -> None:
    with pool.client() as bulk, pool.client() as interactive:
        submit(interactive, 0).result(60)  # the worker has mapped its lane
        many = [submit(bulk, tag, gate=1 if tag == 0 else 0) for tag in range(200)]
        wait_for(pool, 200 - WITH_THE_WORKER)
        few = [submit(interactive, 1000 + i) for i in range(3)]
        wait_for(pool, 203 - WITH_THE_WORKER)
        open_gate(pool, 1)
        first = call_of(many[0])
        calls = [call_of(future) - first for future in few]
        order = [call_of(future) for future in many]
    # By turns: at most one row of the other before each of its own.
    assert all(call <= WITH_THE_WORKER + 2 * i + 1 for i, call in enumerate(calls)), calls
    assert order == sorted(order), "each client's own rows in the order they came"


def test_so_too_over_http_with_the_bulk_caller_on_the_same_front_end(pool: Pool) -> None:
    async def ask(http: Any, name: str, tag: int, gate: int = 0) -> int:
        inputs = [
            tensor("tag", "INT64", [tag]),
            tensor("seconds", "FP32", [0.0]),
            tensor("gate", "INT64", [gate]),
        ]
        headers = {"X-Client-Id": name}
        async with http.post(
            infer_url(pool, "gated"), json={"inputs": inputs}, headers=headers
        ) as response:
            answer = await response.json()
            assert response.status == 200, answer
            return int(outputs(answer)["call"][0])

    async def work() -> list[int]:
        async with connections(100) as http:
            first = asyncio.create_task(ask(http, "bulk", 0, gate=1))
            await soon(lambda: claimed(pool) == 1, "the first row")
            many = [asyncio.create_task(ask(http, "bulk", tag)) for tag in range(1, 80)]
            await soon(lambda: queued(pool) == 80 - WITH_THE_WORKER, "the bulk caller's rows")
            few = [asyncio.create_task(ask(http, "interactive", 1000 + i)) for i in range(3)]
            await soon(lambda: queued(pool) == 83 - WITH_THE_WORKER, "all rows")
            open_gate(pool, 1)
            start = await first
            await asyncio.gather(*many)
            return sorted([await task - start for task in few])

    calls = asyncio.run(work())
    assert all(call <= WITH_THE_WORKER + 2 * i + 1 for i, call in enumerate(calls)), calls


def test_priorities_go_first_and_the_default_is_between(pool: Pool) -> None:
    with pool.client() as client:
        wanted = [255, 0, 1]  # so far apart that none of them ages meanwhile
        held = submit(client, 0, gate=1)
        submit(client, 1)
        until(lambda: claimed(pool) == WITH_THE_WORKER, "rows with the worker")
        futures = {priority: submit(client, 5, priority=priority) for priority in wanted}
        wait_for(pool, len(wanted))
        open_gate(pool, 1)
        held.result(60)
        ran = sorted(futures, key=lambda priority: call_of(futures[priority]))
    assert ran == [1, 0, 255]


def test_of_one_caller_the_earliest_deadline_goes_first(pool: Pool) -> None:
    with pool.client() as client:
        held = submit(client, 0, gate=1)
        submit(client, 1)
        until(lambda: claimed(pool) == WITH_THE_WORKER, "rows with the worker")
        limits = [280.0, 250.0, 290.0, 240.0, 260.0]
        futures = {timeout: submit(client, 5, timeout_s=timeout) for timeout in limits}
        wait_for(pool, len(limits))
        open_gate(pool, 1)
        held.result(60)
        ran = sorted(futures, key=lambda timeout: call_of(futures[timeout]))
    assert ran == sorted(limits)
