"""In which order a real pool runs what waits: flows by turns, priorities, deadlines.

One row a batch and a worker that waits at a gate: what is queued meanwhile is run in an order
that the rows' call numbers tell, however fast or slow the machine is. Up to RECORDS rows are with
the worker already, whatever comes later: the shorter its batches are, the more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.layout.segments import RECORDS
from tests.process.gates import open_gate
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.test_fairness import GATED, claimed, soon
from tests.process.test_http import connections, infer_url, outputs, tensor


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    model = {**GATED, "slots": 256}
    with serving(model, server={"frontends": 1, "client_slots": 256}) as found:
        yield found


def submit(client: bp.Client, tag: int, gate: int = 0, **more: Any) -> Future[Any]:
    return client.submit("gated", tag=[tag], seconds=np.zeros(1, "f4"), gate=[gate], **more)


def waiting(pool: Pool) -> int:
    """Rows in the batcher and with the worker."""
    found = pool.tally("gated")
    return int(found["queued"] + found["batches"] - found["completed"])


def call_of(future: Future[Any]) -> int:
    return int(future.result(PATIENCE_S)["call"][0])


def wait_for(pool: Pool, rows: int) -> None:
    """Until so many rows wait."""
    until(lambda: waiting(pool) == rows, f"{rows} rows that wait")


def keep_busy(pool: Pool, client: bp.Client, gate: int) -> Future[Any]:
    """Give the worker all rows that it takes before one of them is done, the first of which waits
    at this gate."""
    submit(client, 0).result(PATIENCE_S)  # the worker has mapped its lane
    held = submit(client, 0, gate=gate)
    for tag in range(1, RECORDS):
        submit(client, tag)
    wait_for(pool, RECORDS)
    return held


def test_a_bulk_client_does_not_push_an_interactive_one_back(pool: Pool) -> None:
    """C67: local programs are served by turns."""
    with pool.client() as bulk, pool.client() as interactive:
        submit(interactive, 0).result(PATIENCE_S)  # the worker has mapped its lane
        many = [submit(bulk, tag, gate=1 if tag == 0 else 0) for tag in range(200)]
        wait_for(pool, 200)
        few = [submit(interactive, 1000 + i) for i in range(3)]
        wait_for(pool, 203)
        open_gate(pool, 1)
        first = call_of(many[0])
        calls = [call_of(future) - first for future in few]
        order = [call_of(future) for future in many]
    # By turns: at most one row of the other before each of its own.
    assert all(call <= RECORDS + 2 * i + 1 for i, call in enumerate(calls)), calls
    assert order == sorted(order), "each client's own rows in the order they came"


async def ask(pool: Pool, http: Any, name: str, tag: int, gate: int = 0) -> int:
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


def test_so_too_over_http_with_the_bulk_caller_on_the_same_front_end(pool: Pool) -> None:
    """C67: 80 rows of one caller, three of another."""

    async def work() -> list[int]:
        async with connections(100) as http:
            first = asyncio.create_task(ask(pool, http, "bulk", 0, gate=2))
            await soon(lambda: claimed(pool) == 1, "the first row")
            many = [asyncio.create_task(ask(pool, http, "bulk", tag)) for tag in range(1, 80)]
            await soon(lambda: waiting(pool) == 80, "the bulk caller's rows")
            few = [asyncio.create_task(ask(pool, http, "interactive", 1000 + i)) for i in range(3)]
            await soon(lambda: waiting(pool) == 83, "all rows")
            open_gate(pool, 2)
            start = await first
            await asyncio.gather(*many)
            return sorted([await task - start for task in few])

    calls = asyncio.run(work())
    assert all(call <= RECORDS + 2 * i + 1 for i, call in enumerate(calls)), calls


def test_a_new_name_for_each_request_is_no_more_than_one_caller(pool: Pool) -> None:
    """Else its rows, which came first, would all go before the second of a local client."""

    async def work() -> list[int]:
        async with connections(100) as http:
            first = asyncio.create_task(ask(pool, http, "first", 0, gate=5))
            await soon(lambda: claimed(pool) == 1, "the first row")
            begun = [asyncio.create_task(ask(pool, http, "first", 0)) for _ in range(RECORDS)]
            await soon(lambda: waiting(pool) == 1 + RECORDS, "what the worker takes")
            names = [asyncio.create_task(ask(pool, http, f"name {i}", i)) for i in range(20)]
            await soon(lambda: waiting(pool) == 21 + RECORDS, "the rows with names")
            with pool.client() as client:
                local = [submit(client, 100 + i) for i in range(10)]
                await soon(lambda: waiting(pool) == 31 + RECORDS, "all rows")
                open_gate(pool, 5)
                start = await first
                found = [await asyncio.to_thread(call_of, future) - start for future in local]
            await asyncio.gather(*begun, *names)
            return found

    calls = asyncio.run(work())
    assert calls == sorted(calls)
    # On a machine that is busy the worker takes some more of them before the local rows come.
    assert all(call <= 1 + 2 * RECORDS + 2 * (i + 1) for i, call in enumerate(calls)), calls


def test_priorities_go_first_and_the_default_is_between(pool: Pool) -> None:
    with pool.client() as client:
        wanted = [255, 0, 1]  # so far apart that none of them ages meanwhile
        held = keep_busy(pool, client, 3)
        futures = {priority: submit(client, 5, priority=priority) for priority in wanted}
        wait_for(pool, RECORDS + len(wanted))
        open_gate(pool, 3)
        held.result(PATIENCE_S)
        ran = sorted(futures, key=lambda priority: call_of(futures[priority]))
    assert ran == [1, 0, 255]


def test_of_one_caller_the_earliest_deadline_goes_first(pool: Pool) -> None:
    with pool.client() as client:
        held = keep_busy(pool, client, 4)
        limits = [280.0, 250.0, 290.0, 240.0, 260.0]
        futures = {timeout: submit(client, 5, timeout_s=timeout) for timeout in limits}
        wait_for(pool, RECORDS + len(limits))
        open_gate(pool, 4)
        held.result(PATIENCE_S)
        ran = sorted(futures, key=lambda timeout: call_of(futures[timeout]))
    assert ran == sorted(limits)


def test_rows_that_are_over_before_the_worker_comes_to_them_are_not_executed(pool: Pool) -> None:
    """C26: they are with the worker already, behind one that runs, when they are late or
    cancelled."""
    with pool.client() as client:
        submit(client, 0).result(PATIENCE_S)  # the worker has mapped its lane
        before = pool.tally("gated")
        held = submit(client, 1, gate=31)
        wait_for(pool, 1)
        late = [submit(client, tag, timeout_s=2) for tag in (7, 8)]
        cancelled = submit(client, 9)
        wait_for(pool, RECORDS)
        assert cancelled.cancel()
        for future in late:
            with pytest.raises(bp.DeadlineExceeded):
                future.result(PATIENCE_S)
        open_gate(pool, 31)
        assert call_of(submit(client, 10)) - call_of(held) == 1
        after = pool.tally("gated")
    ended = {key: after[key] - before[key] for key in ("expired", "cancelled", "completed")}
    assert ended == {"expired": 2, "cancelled": 1, "completed": 5}
