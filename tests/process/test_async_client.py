"""bp.AsyncClient: many calls of one loop, cancelling them, a full lane, the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def test_five_hundred_calls_at_once_with_cancellations(everyday: Pool) -> None:
    """C55: right answers for the others, every slot back."""

    async def work() -> None:
        async with everyday.async_client() as client:

            async def call(tag: int) -> int:
                found = await client.infer("probe", tag=[tag], seconds=[0.0])
                return int(found["tag"][0])

            tasks = [asyncio.create_task(call(tag)) for tag in range(500)]
            await asyncio.sleep(0)
            for task in tasks[::7]:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            for tag, outcome in enumerate(outcomes):
                if tag % 7:
                    assert outcome == tag
                else:
                    assert isinstance(outcome, asyncio.CancelledError)
            await asyncio.to_thread(
                until, lambda: everyday.claimed() == 0, "the return of all slots"
            )

    run(work())


def test_rows_of_any_number_of_many_calls(everyday: Pool) -> None:
    async def work() -> None:
        async with everyday.async_client() as client:

            async def call(i: int) -> None:
                n = (1, 2, 63, 64, 65, 921, 922, 2500)[i % 8]
                x = np.arange(4 * n, dtype=np.float32).reshape(n, 4) + i
                found = await client.infer("affine", x=x)
                np.testing.assert_array_equal(found["y"], 2 * x + 1)

            await asyncio.gather(*(call(i) for i in range(32)))

    run(work())


def test_models_opened_by_many_tasks_at_once(everyday: Pool) -> None:
    async def work() -> None:
        async with everyday.async_client() as client:
            until(lambda: not everyday.lanes(), "the end of the lanes of others")
            x = np.ones((1, 4), np.float32)
            calls = [client.infer("affine", x=x) for _ in range(10)]
            calls += [client.infer("probe", tag=[i], seconds=[0.0]) for i in range(10)]
            calls += [client.infer("special", x=np.ones((1, 3), np.float32)) for _ in range(10)]
            found = await asyncio.gather(*calls)
            assert [f["tag"][0] for f in found[10:20]] == list(range(10))
            models = sorted(lane["model"] for lane in everyday.lanes())
            assert models == ["affine", "probe", "special"]

    run(work())


def test_a_deadline_is_kept_though_its_row_goes_on(everyday: Pool) -> None:
    async def work() -> None:
        async with everyday.async_client() as client:
            await client.infer("slow", tag=[0], seconds=[0.0])
            start = time.monotonic()
            with (
                opened_at_last(everyday, 601),
                pytest.raises(bp.DeadlineExceeded, match=r"'slow'.*deadline"),
            ):
                await client.infer("slow", tag=[1], seconds=[0.0], gate=[601], timeout_s=0.1)
            assert time.monotonic() - start >= 0.1
            assert (await client.infer("slow", tag=[2], seconds=[0.0]))["tag"] == [2]

    run(work())


def test_a_full_lane_waits_or_refuses_as_asked(everyday: Pool) -> None:
    async def work() -> None:
        async with everyday.async_client() as client:
            n = 921
            full = {"tag": np.arange(n), "seconds": np.zeros(n, np.float32)}
            full["gate"] = np.full(n, 602)
            until(lambda: everyday.claimed() == 0, "the slots of those that were here before")
            with opened_at_last(everyday, 602):
                first = asyncio.create_task(client.infer("slow", full))
                while everyday.claimed() < n:
                    assert not first.done()
                    await asyncio.sleep(0.005)
                with pytest.raises(bp.Overloaded):
                    await client.infer("slow", tag=[1], seconds=[0.0], wait_for_room=False)
                waiting = asyncio.create_task(client.infer("slow", tag=[2], seconds=[0.0]))
                await asyncio.sleep(0)
                open_gate(everyday, 602)
                assert (await waiting)["tag"].tolist() == [2]
                assert (await first)["tag"].tolist() == list(range(n))

    run(work())


def test_closing_fails_what_is_under_way(everyday: Pool) -> None:
    async def work() -> None:
        client = everyday.async_client()
        await client.infer("slow", tag=[0], seconds=[0.0])
        with opened_at_last(everyday, 603):
            call = asyncio.create_task(client.infer("slow", tag=[1], seconds=[0.0], gate=[603]))
            await asyncio.sleep(0)
            await client.close()
            with pytest.raises(bp.PoolStopped):
                await call
        with pytest.raises(bp.PoolStopped, match=r"closed"):
            await client.infer("slow", tag=[0], seconds=[0.0])
        await client.close()

    run(work())


@pytest.mark.long
def test_the_end_of_the_pool_fails_what_is_under_way_and_a_new_one_serves_again() -> None:
    async def work() -> None:
        with serving("Probe") as pool:
            client = pool.async_client()
            await client.infer("probe", tag=[0], seconds=[0.0])
            call = asyncio.create_task(client.infer("probe", tag=[1], seconds=[5.0]))
            await asyncio.sleep(0.05)
            start = time.monotonic()
            pool.end_at_once()
            with pytest.raises(bp.PoolStopped):
                await call
            assert time.monotonic() - start < 10
            with pytest.raises(bp.PoolStopped, match=r"no pool listens"):
                await client.infer("probe", tag=[2], seconds=[0.0])
            with pool.again("Probe"):
                assert (await client.infer("probe", tag=[3], seconds=[0.0]))["tag"] == [3]
                await client.close()

    run(work())


def test_another_loop_needs_a_client_of_its_own(everyday: Pool) -> None:
    client = everyday.async_client()

    async def open_here() -> None:
        await client.infer("slow", tag=[0], seconds=[0.0])

    async def use_here() -> None:
        with pytest.raises(RuntimeError, match=r"another event loop"):
            await client.infer("slow", tag=[0], seconds=[0.0])

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(open_here())
        run(use_here())
        loop.run_until_complete(client.close())
    finally:
        loop.close()
