"""Arrays that need no conversion take a short way through `check_rows`, with the same rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.specs import model

X, TAG = Tensor("x", "float32", (4,)), Tensor("tag", "int64")
TWO = model(X, TAG)
ROWS = np.arange(8, dtype="f4").reshape(2, 4)
TAGS = np.array([7, 8])


def test_arrays_stay_as_they_are() -> None:
    found = check_rows(TWO, {"tag": TAGS, "x": ROWS})
    assert found.n == 2
    assert found.tensors["x"] is ROWS
    assert found.tensors["tag"] is TAGS
    assert (found.parameters, found.sizes) == ({}, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": ROWS}, "input 'tag' of model 'm' is missing"),
        ({"x": ROWS, "tag": TAGS, "z": TAGS}, "no input 'z'"),
        ({"x": ROWS, "tag": TAGS[:1]}, "'tag' has 1 rows, but input 'x' has 2"),
        ({"x": ROWS[:0], "tag": TAGS[:0]}, "0 rows; at least 1"),
        ({"x": ROWS[:, :3], "tag": TAGS}, r"shape \[2, 3\]"),
        ({"x": ROWS.astype("f8"), "tag": TAGS}, "float64; float32 was expected"),
        ({"x": np.ma.masked_array(ROWS, ROWS > 6), "tag": TAGS}, "1 masked"),
    ],
)
def test_what_is_wrong_is_told_as_ever(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        check_rows(TWO, given)


def test_what_needs_a_conversion_gets_it() -> None:
    found = check_rows(TWO, {"x": ROWS.astype(">f4"), "tag": [7, 8]})
    np.testing.assert_array_equal(found.tensors["x"], ROWS)
    assert found.tensors["x"].dtype.isnative
    assert found.tensors["tag"].tolist() == [7, 8]
    ragged = check_rows(model(Tensor("x", "int64", (Dim(max=4),))), {"x": [[1], [2, 3]]})
    assert ragged.sizes["x"].tolist() == [[1], [2]]
    optional = model(X, Tensor("k", "int64", default=5))
    assert check_rows(optional, {"x": ROWS}).tensors["k"].tolist() == [5, 5]


def test_parameters_have_their_defaults_and_are_checked() -> None:
    spec = model(X, parameters=(Tensor("k", "int64", default=3),))
    assert check_rows(spec, {"x": ROWS}).parameters == {"k": 3}
    assert check_rows(spec, {"x": ROWS}, {"k": 4}).parameters == {"k": 4}
    with pytest.raises(InvalidRequest, match="no parameter 'j'"):
        check_rows(TWO, {"x": ROWS, "tag": TAGS}, {"j": 1})
