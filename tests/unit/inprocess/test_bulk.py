"""batch_inference: any iterable in, outputs in order, never more than a batch held."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchpool as bp
from tests.lazy import library

torch = library("torch")


@given(st.lists(st.integers()), st.integers(1, 9), st.sampled_from([list, tuple, iter]))
def test_outputs_in_order_and_batches_as_large_as_they_may_be(
    inputs: list[int], size: int, kind: Any
) -> None:
    batches: list[list[int]] = []

    def model(batch: list[int]) -> list[str]:
        batches.append(list(batch))
        outputs = [str(x) for x in batch]
        batch.clear()  # a model may do what it likes with its list
        return outputs

    assert bp.batch_inference(model, kind(inputs), batch_size=size) == [str(x) for x in inputs]
    assert batches == [inputs[at : at + size] for at in range(0, len(inputs), size)]


def test_a_batch_is_thirty_two_by_default() -> None:
    sizes: list[int] = []

    def model(batch: list[int]) -> list[int]:
        sizes.append(len(batch))
        return batch

    assert bp.batch_inference(model, range(70)) == list(range(70))
    assert sizes == [32, 32, 6]


@pytest.mark.parametrize("kind", [np, torch])
def test_arrays_are_cut_into_views(kind: Any) -> None:
    inputs = kind.arange(12).reshape(6, 2)
    batches: list[Any] = []

    def model(batch: Any) -> Any:
        batches.append(batch)
        return batch * 2

    outputs = bp.batch_inference(model, inputs, batch_size=4)
    assert [output.tolist() for output in outputs] == (inputs * 2).tolist()
    assert [(type(batch), batch.tolist()) for batch in batches] == [
        (type(inputs), inputs[:4].tolist()),
        (type(inputs), inputs[4:].tolist()),
    ]
    inputs[0, 0] = 99
    assert int(batches[0][0, 0]) == 99
    assert bp.batch_inference(model, inputs[:0]) == []


def test_a_generator_is_read_a_batch_at_a_time_and_let_go() -> None:
    class Input:
        pass

    alive: weakref.WeakSet[Input] = weakref.WeakSet()
    most = 0

    def inputs() -> Iterator[Input]:
        nonlocal most
        for _ in range(20):
            one = Input()
            alive.add(one)
            most = max(most, len(alive))
            yield one
            del one

    def model(batch: list[Input]) -> list[int]:
        assert len(batch) == len(alive) == 4
        return [0] * len(batch)

    gc.disable()  # letting go must not need it
    try:
        assert bp.batch_inference(model, inputs(), batch_size=4) == [0] * 20
    finally:
        gc.enable()
    assert most == 4


def test_a_generator_is_not_read_beyond_a_failed_batch() -> None:
    source = itertools.count()

    def model(batch: list[int]) -> list[int]:
        if 5 in batch:
            raise ValueError("five")
        return batch

    with pytest.raises(ValueError, match="five") as caught:
        bp.batch_inference(model, source, batch_size=4)
    assert caught.value.__notes__ == ["in batchpool.batch_inference, inputs 4 to 7"]
    assert next(source) == 8


def test_a_wrong_number_of_outputs_is_an_error() -> None:
    with pytest.raises(bp.ModelError, match="returned 1 outputs for 2 inputs") as caught:
        bp.batch_inference(lambda batch: batch[:1], [1, 2, 3], batch_size=2)
    assert caught.value.__notes__ == ["in batchpool.batch_inference, inputs 0 to 1"]


def test_an_async_model_is_refused() -> None:
    async def model(batch: list[int]) -> list[int]:
        return batch

    with pytest.raises(bp.ModelError, match="returned a coroutine"):
        bp.batch_inference(model, [1])


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"model_fn": None}, TypeError, "model_fn must be callable, not None"),
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, not 0"),
        ({"batch_size": "4"}, TypeError, "batch_size must be a whole number, not '4'"),
        ({"inputs": 5}, TypeError, "inputs must be .*, not a int"),
        ({"inputs": np.array(5)}, TypeError, "inputs must be .*, not a ndarray"),
        ({"inputs": "abc"}, TypeError, "inputs must be .*, not a str"),
        ({"inputs": b"abc"}, TypeError, "inputs must be .*, not a bytes"),
        ({"inputs": {"ids": [1]}}, TypeError, "inputs must be .*, not a dict"),
    ],
)
def test_arguments_that_cannot_work(
    arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        bp.batch_inference(**{"model_fn": list, "inputs": [], **arguments})


def test_sizes_may_be_numpy_numbers() -> None:
    size: Any = np.int64(2)
    assert bp.batch_inference(list, [1, 2, 3], batch_size=size) == [1, 2, 3]
