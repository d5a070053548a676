"""The rows that fill a batch up, cut to the largest of its real rows."""

from __future__ import annotations

import numpy as np

from batchpool.core.tensors.spec import Dim, Tensor
from batchpool.worker.padding import Padding
from tests.unit.specs import X, model

GRID = Tensor("grid", "int64", (2, Dim(3), 5, Dim(4)), pad=-1)


def test_a_padding_row_is_cut_in_each_dynamic_dimension() -> None:
    warm_up = {"grid": np.ones((1, 2, 2, 5, 3), np.int64)}
    padding = Padding(model(GRID), (1, 4), warm_up)
    assert [padding.size_for(rows) for rows in (1, 2, 4)] == [1, 4, 4]
    assert padding.row("grid").shape == (1, 2, 3, 5, 4)
    array = np.zeros((4, 2, 3, 5, 2), np.int64)
    sizes = padding.fill("grid", array, np.array([[3, 2], [1, 1]]), 2)
    assert sizes is not None
    assert sizes.tolist() == [[3, 2], [1, 1], [2, 2], [2, 2]]
    assert not array[:2].any(), "the real rows"
    assert (array[2:, :, :2] == 1).all()
    assert (array[2:, :, 2] == -1).all(), "beyond the row's own size"


def test_a_padding_row_of_a_fixed_tensor_is_whole() -> None:
    padding = Padding(model(X), (4,), {"x": np.full((1, 4), 7, np.float32)})
    array = np.zeros((4, 4), np.float32)
    assert padding.fill("x", array, None, 3) is None
    assert array.tolist() == [[0] * 4] * 3 + [[7] * 4]
