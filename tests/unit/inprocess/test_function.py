"""Values that a model function may return, and those that it may not."""

from __future__ import annotations

import array
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.inprocess.function import outputs_of
from tests.lazy import library

torch = library("torch")


@pytest.mark.parametrize(
    "made",
    [
        list,
        tuple,
        lambda given: range(given[0], given[-1] + 1),
        np.array,
        lambda given: torch.tensor(given),  # noqa: PLW0108 # torch is not imported yet
        partial(array.array, "i"),
    ],
    ids=["list", "tuple", "range", "ndarray", "Tensor", "array"],
)
def test_sequences_and_arrays_are_outputs(made: Callable[[list[int]], Any]) -> None:
    outputs = outputs_of(made([1, 2, 3]), 3)
    assert type(outputs) is list
    assert [int(output) for output in outputs] == [1, 2, 3]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("abc", "a str"),
        (b"abc", "a bytes"),
        (bytearray(b"abc"), "a bytearray"),
        (None, "None"),
        ({0: 1, 1: 2, 2: 3}, "a dict"),
        (OrderedDict.fromkeys("abc"), "a OrderedDict"),
        ({1, 2, 3}, "a set"),
        (3, "a int"),
        (iter([1, 2, 3]), "a list_iterator"),
        (np.array(1.0), "a ndarray"),
        (lambda: torch.tensor(1.0), "a Tensor"),  # torch is imported when it is called
        (np.float32(1.0), "a float32"),
    ],
)
def test_anything_else_is_named(answer: Any, kind: str) -> None:
    answer = answer() if callable(answer) else answer
    with pytest.raises(bp.ModelError, match=f"model_fn returned {kind} for 3 inputs; a list"):
        outputs_of(answer, 3)


@pytest.mark.parametrize(
    "make", [list, lambda: [1, 2], lambda: np.zeros((2, 3)), lambda: torch.zeros(2, 3)]
)
def test_a_wrong_number_names_both(make: Callable[[], Any]) -> None:
    answer = make()
    with pytest.raises(bp.ModelError, match=f"returned {len(answer)} outputs for 3 inputs"):
        outputs_of(answer, 3)


def test_a_sequence_that_lies_about_its_length_is_counted() -> None:
    class Liar(list[int]):
        def __len__(self) -> int:
            return 3

    with pytest.raises(bp.ModelError, match="returned 2 outputs for 3 inputs"):
        outputs_of(Liar([1, 2]), 3)


@pytest.mark.parametrize("kind", [np, torch])
def test_a_model_may_use_its_output_buffer_again(kind: Any) -> None:
    buffer = kind.zeros((2, 3))
    outputs = outputs_of(buffer, 2)
    buffer[:] = 7
    assert [output.tolist() for output in outputs] == [[0.0] * 3] * 2


def test_a_generator_function_is_no_model() -> None:
    b = bp.InferenceBatcher(lambda inputs: (x for x in inputs))
    b.add_request(1, "a")
    with pytest.raises(bp.ModelError, match="returned a generator for 1 inputs"):
        b.process_batch()
