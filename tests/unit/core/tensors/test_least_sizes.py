"""Least sizes of dynamic dimensions: shorter rows are refused before they take a slot."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ConfigError, InvalidInput, InvalidRequest
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.generator import Generator
from batchpool.model import spec_of
from tests.unit.generator_worker import STORY, Story
from tests.unit.specs import model

IDS = Tensor("ids", "int64", (Dim(5, min=2),))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 1), np.int64), "input 'ids' has size 1; at least 2 of [n, 2..5]"),
        ([[]], "input 'ids' is empty; at least 2 of [n, 2..5] was expected"),
        ([[1, 2], [1], [1, 2, 3]], "input 'ids' has size 1 in row 1; at least 2"),
        ([[1, 2], [], [1]], "input 'ids' is empty in row 1; at least 2"),
    ],
)
def test_a_row_that_is_too_short_is_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(text)):
        check_rows(model(IDS), {"ids": value})


def test_a_row_of_the_least_size_is_taken() -> None:
    assert check_rows(model(IDS), {"ids": [[1, 2]]}).tensors["ids"].tolist() == [[1, 2]]
    assert check_rows(model(IDS), {"ids": [[1, 2], [1, 2, 3]]}).n == 2


def test_of_several_dimensions_the_message_names_the_one() -> None:
    grid = Tensor("grid", "float32", (Dim(4), Dim(6, min=3)))
    text = "input 'grid' has size 2 along dimension 2; at least 3 of [n, 0..4, 3..6] was expected"
    with pytest.raises(InvalidInput, match=re.escape(text)):
        check_rows(model(grid), {"grid": np.zeros((1, 0, 2), np.float32)})
    assert check_rows(model(grid), {"grid": np.zeros((1, 0, 3), np.float32)}).n == 1


def test_a_default_takes_the_size_of_the_dimension_of_its_name() -> None:
    mask = Tensor("mask", "bool", (Dim(5, "tokens", min=1),), default=True)
    spec = model(Tensor("ids", "int64", (Dim(5, "tokens"),)), mask)
    assert check_rows(spec, {"ids": [[1]]}).tensors["mask"].shape == (1, 1)
    with pytest.raises(InvalidInput, match="input 'mask' is empty"):
        check_rows(spec, {"ids": [[]]})


@pytest.mark.parametrize("least", [-1, 6, 1.0, True, "1"])
def test_a_least_size_that_cannot_be(least: Any) -> None:
    with pytest.raises(ConfigError, match="min must be a whole number from 0 to 5"):
        Dim(5, min=least)


def test_it_is_told_to_clients_and_moves_no_byte() -> None:
    spec = model(IDS)
    again = ModelSpec.from_wire(spec.to_wire())
    assert again == spec
    assert again.inputs[0].min_shape == (2,)
    assert IDS.describe_slot() == "[n, 0..5]"
    assert model(Tensor("ids", "int64", (Dim(5),))).to_wire()["inputs"][0]["shape"] == [[5, ""]]


def story(dim: Dim) -> ModelSpec:
    class Other(Story):
        prompt = Tensor("prompt", "int64", (dim,))

    return spec_of(Other)


def test_a_prompt_has_at_least_one_element_unless_it_says_otherwise() -> None:
    assert STORY.inputs[0].min_shape == (1,)
    assert [story(Dim(8, min=n)).inputs[0].min_shape for n in (0, 4)] == [(0,), (4,)]
    with pytest.raises(InvalidRequest, match=r"input 'prompt' is empty; at least 1 of \[n, 1\.\.8"):
        check_rows(STORY, {"prompt": [[]]}, {"max_tokens": 1})
    assert check_rows(story(Dim(8, min=0)), {"prompt": [[]]}, {"max_tokens": 1}).n == 1


@pytest.mark.parametrize(("dim", "size"), [(Dim(5), 5), (Dim(20), 8), (Dim(20, min=9), 9)])
def test_the_prompt_of_the_warm_up_is_one_that_callers_may_send(dim: Dim, size: int) -> None:
    class Other(Generator):
        prompt = Tensor("prompt", "int64", (dim,))

    assert len(Other().warm_up_prompt()) == size
