"""errors="return": a row that fails costs no other row of its call, on every way into the pool."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.models import FAULTS
from tests.process.pool_under_test import PATIENCE_S, Pool, until


def rows(n: int, bad: int) -> dict[str, Any]:
    fault = np.zeros(n, np.int64)
    fault[bad] = FAULTS["raises"]
    return {"x": np.arange(n, dtype=np.float32), "fault": fault}


def check(found: dict[str, Any], n: int, bad: int) -> None:
    assert list(found) == ["y"]
    entries = found["y"]
    assert len(entries) == n
    assert isinstance(entries[bad], bp.ModelError)
    assert "this row is bad" in str(entries[bad])
    good = [at for at in range(n) if at != bad]
    assert [float(entries[at]) for at in good] == [2.0 * at for at in good]


@pytest.mark.parametrize(("n", "bad"), [(1, 0), (100, 37), (2000, 1999)])
def test_one_bad_row_loses_no_other(everyday: Pool, n: int, bad: int) -> None:
    with everyday.client() as client:
        check(client.infer("faulty", rows(n, bad), errors="return"), n, bad)
        if n <= 100:
            check(client.submit("faulty", rows(n, bad), errors="return").result(PATIENCE_S), n, bad)
        until(lambda: everyday.claimed() == 0, "the return of all slots")


def test_one_bad_row_loses_no_other_of_an_async_call(everyday: Pool) -> None:
    async def work() -> None:
        async with everyday.async_client() as client:
            check(await client.infer("faulty", rows(100, 37), errors="return"), 100, 37)

    asyncio.run(work())


def test_wrong_arguments_are_raised_all_the_same(client: bp.Client) -> None:
    with pytest.raises(bp.InvalidRequest, match="no input 'z'"):
        client.infer("faulty", z=[1.0], errors="return")
    with pytest.raises(bp.InvalidRequest, match="errors is 'ignore'; 'raise' or 'return'"):
        client.infer("faulty", x=[1.0], fault=[0], errors="ignore")  # type: ignore[arg-type]
