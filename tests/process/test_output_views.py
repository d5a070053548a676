"""copy=False against a real pool: right values, slots that come back, and what ends around them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, serving
from tests.process.test_reload import begin, configure, end

SLOTS = 64
AFFINE = {"import": "Affine", "slots": SLOTS}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(AFFINE, server={"client_slots": SLOTS}) as pool:
        yield pool


def rows(n: int, first: int = 0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4) + np.float32(first)


def right(n: int, first: int = 0) -> list[list[float]]:
    found: list[list[float]] = (rows(n, first) * 2 + 1).tolist()
    return found


def test_views_stay_right_while_other_rows_go_through_the_lane(pool: Pool) -> None:
    with pool.client() as client:
        with client.infer("affine", x=rows(8), copy=False) as kept:
            y = kept["y"]
            assert y.base is not None
            for i in range(40):
                assert client.infer("affine", x=rows(16, i))["y"].tolist() == right(16, i)
                assert client.infer("affine", x=rows(3, i), copy=False)["y"].tolist() == right(3, i)
            assert y.tolist() == right(8)
        del y
        bound = int(SLOTS * 0.9)
        assert client.infer("affine", x=rows(bound), copy=False)["y"].tolist() == right(bound)


def test_futures_of_views(pool: Pool) -> None:
    with pool.client() as client:
        futures = [client.submit("affine", x=rows(4, i), copy=False) for i in range(8)]
        found = [future.result(PATIENCE_S) for future in futures]
        del futures
        assert all(isinstance(outputs, bp.OutputViews) for outputs in found)
        assert [outputs["y"].tolist() for outputs in found] == [right(4, i) for i in range(8)]


def test_more_rows_than_the_lane_holds_are_copies(pool: Pool) -> None:
    with pool.client() as client:
        y = client.infer("affine", x=rows(3 * SLOTS), copy=False)["y"]
        assert y.tolist() == right(3 * SLOTS)
        assert client.infer("affine", x=rows(SLOTS // 2))["y"].tolist() == right(SLOTS // 2)


def test_too_many_views_are_refused_and_never_overwritten(pool: Pool) -> None:
    with pool.client() as client:
        held = [client.infer("affine", x=rows(8, i), copy=False) for i in range(7)]
        for call in (client.infer, client.submit):
            with pytest.raises(bp.Overloaded, match=r"56 of the 57 slots .* held by results"):
                call("affine", x=rows(8))
        assert [outputs["y"].tolist() for outputs in held] == [right(8, i) for i in range(7)]
        with pytest.raises(bp.TooLarge, match="58 rows at once; model 'affine' takes at most 57"):
            client.submit("affine", x=rows(58))  # however much is released
        held.clear()
        assert client.infer("affine", x=rows(8))["y"].tolist() == right(8)


def test_errors_in_their_places_are_no_views(pool: Pool) -> None:
    with pool.client() as client, pytest.raises(bp.InvalidRequest, match="copy=False"):
        client.infer("affine", x=rows(2), errors="return", copy=False)


def test_views_of_an_async_client(pool: Pool) -> None:
    async def main() -> None:
        async with bp.AsyncClient(pool.socket) as client:
            held = [await client.infer("affine", x=rows(8, i), copy=False) for i in range(7)]
            with pytest.raises(bp.Overloaded, match="held by results"):
                await client.infer("affine", x=rows(8))
            assert [outputs["y"].tolist() for outputs in held] == [right(8, i) for i in range(7)]
            assert all(outputs.release() for outputs in held)
            with await client.infer("affine", x=rows(8), copy=False) as outputs:
                assert outputs["y"].tolist() == right(8)

    asyncio.run(main())


def test_views_outlive_their_client(pool: Pool) -> None:
    with pool.client() as client:
        y = client.infer("affine", x=rows(5), copy=False)["y"]
    with pool.client() as other:
        for i in range(10):
            other.infer("affine", x=rows(50, i))
    assert y.tolist() == right(5)


def test_views_outlive_the_lane_that_a_reload_replaces_and_do_not_hold_it_up(pool: Pool) -> None:
    with pool.client() as client:
        y = client.infer("affine", x=rows(5), copy=False)["y"]
        configure(pool, {**AFFINE, "slots": 2 * SLOTS}, client_slots=2 * SLOTS)
        status, line = end(begin(pool))
        assert status == 0, line
        for i in range(10):
            assert client.infer("affine", x=rows(50, i), copy=False)["y"].tolist() == right(50, i)
        assert y.tolist() == right(5)
    assert y.tolist() == right(5)


def test_views_outlive_the_pool() -> None:
    with serving(AFFINE) as pool, pool.client() as client:
        y = client.infer("affine", x=rows(5), copy=False)["y"]
        pool.stop()
        assert "stopped: every accepted request was answered" in pool.log
        with pytest.raises(bp.PoolError):
            client.infer("affine", x=rows(1))
        assert y.tolist() == right(5)
