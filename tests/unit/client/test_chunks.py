"""Windows of rows and their results, also where the rows differ in size."""

from __future__ import annotations

import numpy as np

from batchpool.client.chunks import cut, join
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.specs import model


def test_windows_of_ragged_rows_have_their_sizes() -> None:
    spec = model(Tensor("ids", "int64", (Dim(4),)), Tensor("x", "float32"))
    rows = check_rows(spec, {"ids": [[1], [2, 3], []], "x": [1, 2, 3]})
    first, second = cut(rows, 2)
    assert (first.n, first.sizes["ids"].tolist()) == (2, [[1], [2]])
    assert (second.n, second.sizes["ids"].tolist()) == (1, [[0]])
    assert list(first.sizes) == ["ids"]


def test_results_of_one_size_are_joined_to_an_array_and_others_to_a_list() -> None:
    one, two = np.ones((2, 1)), np.ones((1, 2))
    joined = join([{"y": one, "z": one, "w": one}, {"y": one, "z": two, "w": [one[0], two[0]]}])
    assert joined["y"].shape == (4, 1)
    assert [row.shape for row in joined["z"]] == [(1,), (1,), (2,)]
    assert [row.shape for row in joined["w"]] == [(1,), (1,), (1,), (2,)]
    assert join([{"w": [one[0], two[0]]}])["w"][1] is not None
