"""A function on arrays works in batches as it does alone: arrays of one shape come as one array."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.inprocess.stacking import stacked
from tests.lazy import library

torch = library("torch")

ROWS = [np.arange(3.0) + i for i in range(6)]
SEEN: list[Any] = []


def double(x: Any) -> Any:
    SEEN.append(x)
    return x * 2


def expected() -> list[list[float]]:
    return [(row * 2).tolist() for row in ROWS]


def test_the_fields_ordinary_function_works() -> None:
    found = bp.batch_inference(lambda x: x * 2, ROWS, batch_size=4)
    assert [row.tolist() for row in found] == expected()


def test_by_hand_and_awaited() -> None:
    batcher = bp.InferenceBatcher(lambda x: x * 2, max_batch_size=6)
    for i, row in enumerate(ROWS):
        batcher.add_request(row, i)
    assert [row["output"].tolist() for row in batcher.process_batch()] == expected()

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*map(batcher.predict, ROWS)))

    assert [row.tolist() for row in asyncio.run(all_of_them())] == expected()


def test_an_async_function_is_one_still() -> None:
    async def model_fn(x: Any) -> Any:
        return x * 2

    batcher = bp.InferenceBatcher(model_fn, max_batch_size=6)

    async def all_of_them() -> list[Any]:
        return list(await asyncio.gather(*map(batcher.predict, ROWS)))

    assert [row.tolist() for row in asyncio.run(all_of_them())] == expected()


def test_tensors_of_torch_come_as_one_tensor() -> None:
    SEEN.clear()
    found = bp.batch_inference(double, [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])])
    assert [row.tolist() for row in found] == [[2, 4], [6, 8]]
    assert [tuple(x.shape) for x in SEEN] == [(2, 2)]


def test_without_stacking_the_function_gets_the_list() -> None:
    found = bp.batch_inference(lambda rows: [row.sum() for row in rows], ROWS, stack=False)
    assert found == [row.sum() for row in ROWS]
    seen: list[Any] = []

    def noted(rows: Any) -> Any:
        seen.append(rows)
        return rows

    batcher = bp.InferenceBatcher(noted, stack=False)
    batcher.add_request(ROWS[0], 0)
    batcher.process_batch()
    assert type(seen[0]) is list


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [1, 2],
        [np.float32(1), np.float32(2)],
        ["a", "b"],
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(2), [0, 0]],
        (np.zeros(2), np.zeros(2)),
        np.zeros((2, 2)),
    ],
    ids=repr,
)
def test_anything_else_stays_as_it_is(inputs: Any) -> None:
    assert stacked(inputs) is inputs


def test_tensors_of_torch_stay_as_they_are_where_they_do_not_fit() -> None:
    for inputs in ([np.zeros(2), torch.zeros(2)], [torch.zeros(2), torch.zeros(3)]):
        assert stacked(inputs) is inputs


def test_refused_inputs_are_found_among_arrays_too() -> None:
    def refuses_large(x: Any) -> Any:
        if (x > 6).any():
            raise bp.InvalidInput("too large")
        return x

    found = bp.batch_inference(refuses_large, ROWS)
    assert [isinstance(row, bp.InvalidInput) for row in found] == [False] * 5 + [True]
