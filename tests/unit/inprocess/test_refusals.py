"""Inputs that the model refuses, one by one, without a pool: the others get their outputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import batchpool as bp

BAD = {3, 17, 18, 39}
INPUTS = list(range(40))
RIGHT = [f"{x} is bad" if x in BAD else 2 * x for x in INPUTS]


class Named:
    """Doubles; a bad input has its refusal in the output's place. calls: the batches."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []

    def __call__(self, inputs: Any) -> list[Any]:
        self.calls.append(list(map(int, inputs)))
        return [bp.InvalidInput(f"{x} is bad") if x in BAD else 2 * x for x in self.calls[-1]]


class Raised(Named):
    """Doubles; raises the refusal of the first bad input."""

    def __call__(self, inputs: Any) -> list[Any]:
        for output in (outputs := super().__call__(inputs)):
            if isinstance(output, bp.InvalidInput):
                raise output
        return outputs


def shown(output: Any) -> Any:
    return str(output) if isinstance(output, bp.InvalidInput) else output


@pytest.mark.parametrize("made", [list, np.array, iter])
@pytest.mark.parametrize("kind", [Named, Raised])
def test_bulk_has_a_refusal_among_its_outputs(
    kind: Callable[[], Named], made: Callable[[list[int]], Any]
) -> None:
    model = kind()
    outputs = bp.batch_inference(model, made(INPUTS), batch_size=32)
    assert [shown(output) for output in outputs] == RIGHT
    if kind is Named:
        assert [len(call) for call in model.calls] == [32, 8], "nothing runs twice"
    else:
        assert all(model.calls.count([x]) == 1 for x in BAD)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("kind", [Named, Raised])
def test_predict_raises_the_refusal_and_the_others_are_answered(
    kind: Callable[[], Named], is_async: bool
) -> None:
    model: Any = kind()

    async def awaited(inputs: list[int]) -> list[Any]:
        await asyncio.sleep(0)
        found: list[Any] = model(inputs)
        return found

    async def all_of_them() -> list[Any]:
        batcher = bp.InferenceBatcher(awaited if is_async else model, 64, max_wait_ms=0)
        found = await asyncio.gather(*map(batcher.predict, INPUTS), return_exceptions=True)
        assert await batcher.predict(7) == 14
        return found

    found = asyncio.run(all_of_them())
    assert [type(output) for output in found] == [
        bp.InvalidInput if x in BAD else int for x in INPUTS
    ]
    assert [shown(output) for output in found] == RIGHT
    if kind is Named:
        assert model.calls == [INPUTS, [7]]


@pytest.mark.parametrize("kind", [Named, Raised])
def test_by_hand_a_refused_request_has_an_error_and_does_not_come_again(
    kind: Callable[[], Named],
) -> None:
    batcher = bp.InferenceBatcher(kind(), 64, max_wait_ms=0)
    for x in INPUTS:
        batcher.add_request(x, f"id {x}")
    found = batcher.process_batch()
    assert [one["id"] for one in found] == [f"id {x}" for x in INPUTS]
    assert [set(one) - {"id"} for one in found] == [
        {"error"} if x in BAD else {"output"} for x in INPUTS
    ]
    assert [shown(one.get("output", one.get("error"))) for one in found] == RIGHT
    assert batcher.process_batch() == []
    assert batcher.drop_failed() == []


def test_what_else_is_raised_in_a_part_is_the_batchs() -> None:
    def model(inputs: list[int]) -> list[int]:
        if 5 in inputs and len(inputs) == 1:
            raise KeyError("five")
        if len(inputs) > 1:
            raise bp.InvalidInput("some")
        return inputs

    with pytest.raises(KeyError, match="five") as caught:
        bp.batch_inference(model, range(8))
    assert caught.value.__notes__ == ["in batchpool.batch_inference, inputs 0 to 7"]
    batcher = bp.InferenceBatcher(model, 8, max_wait_ms=0)
    for x in range(8):
        batcher.add_request(x, x)
    with pytest.raises(KeyError):
        batcher.process_batch()
    assert [one["id"] for one in batcher.drop_failed()] == list(range(8))
