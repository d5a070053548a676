"""Lists of rows of different sizes: every value in its place, the rest is the pad."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.ragged import as_sized_rows, padded, separate, trimmed
from batchpool.core.tensors.rows import check_named, check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.specs import model

IDS = Tensor("ids", "int64", (Dim(5),), pad=-1)
GRID = Tensor("grid", "int16", (Dim(4), 2, Dim(3)), pad=7)
WORDS = Tensor("words", "bytes", (Dim(3),), max_bytes=4)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=6))
def test_rows_go_in_and_come_out_as_they_were(shapes: list[tuple[int, int]]) -> None:
    rows = [np.arange(a * 2 * b, dtype=np.int16).reshape(a, 2, b) for a, b in shapes]
    for brought in (rows, tuple(rows)):
        whole, sizes = as_sized_rows(GRID, brought)
        most = tuple(np.max(shapes, axis=0).tolist())
        assert (whole.dtype, whole.shape) == (np.int16, (len(rows), most[0], 2, most[1]))
        if len(set(shapes)) == 1:
            assert sizes is None
            np.testing.assert_array_equal(whole, np.stack(rows))
            continue
        assert sizes is not None
        assert sizes.tolist() == [list(shape) for shape in shapes]
        for row, back in zip(rows, separate(GRID, whole, sizes), strict=True):
            np.testing.assert_array_equal(row, back)
        written = sum(row.size for row in rows)
        assert int((whole == 7).sum()) >= whole.size - written


@pytest.mark.parametrize(
    ("tensor", "value", "rows", "sizes"),
    [
        (IDS, [[1, 2], [3]], [[1, 2], [3, -1]], [[2], [1]]),
        (IDS, [[], [3]], [[-1], [3]], [[0], [1]]),
        (IDS, [np.array([1, 2]), [3], ()], [[1, 2], [3, -1], [-1, -1]], [[2], [1], [0]]),
        (IDS, [np.array([1], np.int8), np.array([], np.int64)], [[1], [-1]], [[1], [0]]),
        (WORDS, [["a", b"b"], []], [[b"a", b"b"], [b"", b""]], [[2], [0]]),
        (WORDS, [np.array(["a"], object), ["b", "c"]], [[b"a", b""], [b"b", b"c"]], [[1], [2]]),
        (GRID, [[], [[[1], [2]]]], [[[[7], [7]]], [[[1], [2]]]], [[0, 0], [1, 1]]),
    ],
)
def test_lists_of_lists_and_arrays(tensor: Tensor, value: Any, rows: Any, sizes: Any) -> None:
    found, own = as_sized_rows(tensor, value)
    assert own is not None
    assert (found.tolist(), own.tolist()) == (rows, sizes)
    assert found.dtype == tensor.np_dtype


def test_rows_without_elements_in_every_row() -> None:
    found, sizes = as_sized_rows(GRID, [[], []])
    assert (found.shape, sizes) == ((2, 0, 2, 0), None)


def test_torch_tensors_of_different_sizes() -> None:
    torch = pytest.importorskip("torch")
    found, sizes = as_sized_rows(IDS, [torch.tensor([1, 2]), torch.tensor([3])])
    assert found.tolist() == [[1, 2], [3, -1]]
    assert sizes is not None
    assert sizes.tolist() == [[2], [1]]


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        ([[1], [1] * 6], TooLarge, "row 1: input 'ids' has shape [1, 6], larger than a slot"),
        ([[1, 2], 3], InvalidRequest, "row 1: input 'ids' has shape [1]; [n, 0..5] was expected"),
        ([[1, 2], ["a"]], InvalidRequest, "row 1: input 'ids': the value 'a' does not fit int64"),
        ([[1, 1], [[1, 2]]], InvalidRequest, "row 1: input 'ids' has shape [1, 1, 2]"),
        ([[1], np.zeros(2)], InvalidRequest, "row 1: input 'ids': the value 0.0 does not fit"),
        ([], InvalidRequest, "input 'ids' has shape [0]; [n, 0..5] was expected"),
    ],
)
def test_a_row_that_is_wrong_is_named(value: Any, kind: type[PoolError], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        as_sized_rows(IDS, value)


def test_a_fixed_tensor_has_rows_of_one_shape() -> None:
    with pytest.raises(InvalidRequest, match="'x'"):
        check_rows(model(Tensor("x", "float32", (2,))), {"x": [[1, 2], [3]]})


def test_dimensions_of_one_name_have_one_size_in_every_row() -> None:
    tokens = Dim(8, "tokens")
    spec = model(Tensor("ids", "int64", (tokens,)), Tensor("mask", "int64", (tokens,)))
    found = check_rows(spec, {"ids": [[1, 2], [3]], "mask": [[1, 1], [1]]})
    assert {name: own.tolist() for name, own in found.sizes.items()} == {
        "ids": [[2], [1]],
        "mask": [[2], [1]],
    }
    text = "input 'mask' has 2 along 'tokens' in row 1, but input 'ids' has 1"
    for mask in ([[1, 1], [1, 1]], [[1, 1], [1, 0], [1]][:2]):
        with pytest.raises(InvalidRequest, match=text):
            check_rows(spec, {"ids": [[1, 2], [3]], "mask": mask})


def test_a_padded_array_is_cut_to_its_largest_row() -> None:
    array = np.arange(8).reshape(2, 4)
    rows, sizes = trimmed(IDS, array, np.array([[1], [3]]))
    assert rows.tolist() == [[0, 1, 2], [4, 5, 6]]
    assert sizes is not None
    rows, sizes = trimmed(IDS, array, np.array([[2], [2]]))
    assert (rows.tolist(), sizes) == ([[0, 1], [4, 5]], None)
    for wrong in ([[1], [5]], [[-1], [2]]):
        with pytest.raises(InvalidRequest, match=r"input 'ids\.sizes': row"):
            trimmed(IDS, array, np.array(wrong))


def test_separated_rows_hold_no_memory_of_the_others() -> None:
    whole, sizes = padded(IDS, [np.array([1]), np.array([2, 3])])
    assert sizes is not None
    assert all(row.base is None for row in separate(IDS, whole, sizes))


def test_an_iterator_gives_one_row_after_another() -> None:
    """Of arrays, of lists and of texts; once, as iterators do, and none is an error as for a
    list."""
    spec = model(IDS, Tensor("x", "float32", (2,)), Tensor("word", "bytes", max_bytes=4))
    rows = check_rows(
        spec,
        {
            "ids": ([i] * i for i in range(3)),
            "x": (np.full(2, i, np.float32) for i in range(3)),
            "word": iter([b"a", "b", b"c"]),
        },
    )
    assert rows.n == 3
    assert rows.sizes["ids"].tolist() == [[0], [1], [2]]
    assert rows.tensors["x"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert rows.tensors["word"].tolist() == [b"a", b"b", b"c"]
    for none in ([], iter(())):
        with pytest.raises(InvalidRequest, match=r"input 'x' has shape \[0\]"):
            check_rows(model(Tensor("x", "float32", (2,))), {"x": none})


def test_of_rows_that_differ_in_a_named_dimension_the_first_is_told() -> None:
    shape = (Dim(4, "n"),)
    spec = ModelSpec(
        "a", "numpy", (Tensor("x", "int64", shape), Tensor("z", "int64", shape)),
        (Tensor("y", "int64"),),
    )  # fmt: skip
    arrays = {name: np.zeros((3, 4), "i8") for name in "xz"}
    own = np.array([[2], [3], [4]])
    check_named(spec, arrays, {"x": own, "z": own.copy()})
    with pytest.raises(InvalidRequest) as caught:
        check_named(spec, arrays, {"x": own, "z": np.array([[2], [4], [1]])})
    assert caught.value.message == ("input 'z' has 4 along 'n' in row 1, but input 'x' has 3")
