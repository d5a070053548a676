"""Rows of a local program: taken with the same values, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.arrays import as_rows
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.specs import model

X = Tensor("x", "float32", (4,))
IDS = Tensor("ids", "int64", (Dim(5),))
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)


def rows(tensor: Tensor, value: Any) -> Any:
    return check_rows(model(tensor), {tensor.name: value}).tensors[tensor.name]


def refused(tensor: Tensor, value: Any, text: str, kind: type[PoolError] = InvalidRequest) -> None:
    with pytest.raises(kind, match=re.escape(text)) as caught:
        rows(tensor, value)
    assert type(caught.value) is kind


# -- shapes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(4,), (3, 3), (3, 5), (3, 4, 1), (1, 3, 4), (), (0,), (3, 0), (12,), (3, 8)]
)
def test_a_wrong_shape_is_named(shape: tuple[int, ...]) -> None:
    """C01: a local program is told the shape that came and the one expected."""
    text = f"input 'x' has shape {list(shape)}; [n, 4] was expected"
    refused(X, np.zeros(shape, np.float32), text)


def test_the_same_for_lists() -> None:
    assert rows(X, [[1, 2, 3, 4.5]]).tolist() == [[1, 2, 3, 4.5]]
    refused(X, [1, 2, 3, 4], "input 'x' has shape [4]; [n, 4] was expected")
    refused(X, [[1, 2, 3]], "input 'x' has shape [1, 3]; [n, 4] was expected")
    refused(X, [[1, 2, 3, 4, 5]], "input 'x' has shape [1, 5]; [n, 4] was expected")
    refused(X, [[1, 2, 3, 4], [1, 2, 3]], "input 'x'")
    refused(X, [], "input 'x' has shape [0]; [n, 4] was expected")
    refused(X, 1.0, "input 'x' has shape []; [n, 4] was expected")
    refused(X, [[1, 2, 3, "4"]], "input 'x': the value '4' does not fit float32")
    refused(X, [[1, 2, 3, None]], "input 'x': the value None does not fit float32")
    nested: Any = 1.0
    for _ in range(200):
        nested = [nested]
    refused(X, nested, "input 'x'")


@pytest.mark.parametrize("value", [None, "1 2 3 4", b"1234", {1: 2}, {1, 2}, object(), 1j])
def test_what_is_no_array_is_named(value: Any) -> None:
    kind = type(value).__name__
    refused(X, value, f"input 'x' is a {kind}; an array [n, 4] of float32 was expected")


def test_a_dynamic_dimension_up_to_its_maximum() -> None:
    for size in range(6):
        array = np.arange(2 * size, dtype=np.int64).reshape(2, size)
        assert rows(IDS, array).tolist() == array.tolist()
    text = "input 'ids' has shape [2, 6], larger than a slot holds: [n, 0..5]"
    refused(IDS, np.zeros((2, 6), np.int64), text, TooLarge)
    refused(IDS, np.zeros((2,), np.int64), "input 'ids' has shape [2]; [n, 0..5] was expected")


def test_zero_sized_rows_of_a_fixed_shape() -> None:
    tensor = Tensor("x", "float32", (0, 3))
    assert rows(tensor, np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)
    refused(tensor, np.zeros((2, 1, 3), np.float32), "[n, 0, 3] was expected")


def test_no_rows_at_all() -> None:
    refused(X, np.zeros((0, 4), np.float32), "input 'x' has 0 rows; at least 1 was expected")


# -- names and row counts -------------------------------------------------------------------

TWO = model(X, IDS)


def test_names_and_row_counts() -> None:
    ids = np.zeros((3, 2), np.int64)
    assert check_rows(TWO, {"ids": ids, "x": GRID}).n == 3
    assert list(check_rows(TWO, {"ids": ids, "x": GRID}).tensors) == ["x", "ids"]
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": GRID}, "input 'ids' of model 'm' is missing"),
        ({}, "input 'x' of model 'm' is missing"),
        ({"x": GRID, "ids": ids, "z": ids}, "model 'm' has no input 'z'; it has 'x', 'ids'"),
        ({"x": GRID, "ids": ids[:2]}, "input 'ids' has 2 rows, but input 'x' has 3"),
    ]
    for tensors, text in cases:
        with pytest.raises(InvalidRequest, match=re.escape(text)):
            check_rows(TWO, tensors)


def test_dimensions_of_one_name_have_one_size() -> None:
    tokens = Dim(8, "tokens")
    spec = model(Tensor("ids", "int64", (tokens,)), Tensor("mask", "bool", (tokens,)))
    ids, mask = np.zeros((2, 5), np.int64), np.ones((2, 5), bool)
    assert check_rows(spec, {"ids": ids, "mask": mask}).n == 2
    text = "input 'mask' has 4 along 'tokens', but input 'ids' has 5"
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        check_rows(spec, {"ids": ids, "mask": mask[:, :4]})


# -- dtypes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "int32", "uint8", "bool", "complex64", "complex128"]
)
def test_another_dtype_is_not_converted(dtype: str) -> None:
    text = f"input 'x' has dtype {dtype}; float32 was expected"
    refused(X, np.zeros((1, 4), dtype), text)


@pytest.mark.parametrize(
    "array",
    [
        np.array([[1.0, 2.0, 3.0, 4.0]], dtype=object),
        np.array([["a", "b", "c", "d"]]),
        np.array([[b"a", b"b", b"c", b"d"]]),
        np.zeros((1, 4), "M8[s]"),
        np.zeros((1, 4), "m8[s]"),
        np.zeros((1, 4), [("a", "f4")]),
        np.zeros((1, 4), "V4"),
        np.zeros((1, 4), np.longdouble),
    ],
)
def test_what_is_no_number_is_refused(array: Any) -> None:
    """C64: objects above all."""
    refused(X, array, "; float32 was expected")


def test_numbers_in_lists_take_the_declared_dtype() -> None:
    """C03: a local program's numbers fit exactly or are refused."""
    found = rows(Tensor("x", "uint64"), [2**64 - 1, 2**53 + 1])
    assert (found.dtype, found.tolist()) == (np.dtype("uint64"), [2**64 - 1, 2**53 + 1])
    refused(Tensor("x", "uint8"), [256], "input 'x': the value 256 does not fit uint8")


# -- layouts: the same values as np.ascontiguousarray in native order ------------------------

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda a: a,
    "every second row": lambda a: np.repeat(a, 2, axis=0)[::2],
    "every second column": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
    "reversed twice": lambda a: a[::-1].copy()[::-1],
    "columns reversed": lambda a: a[:, ::-1].copy()[:, ::-1],
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: a.T.copy().T,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "big-endian, strided": lambda a: np.repeat(a, 2, axis=1).astype(a.dtype.newbyteorder(">"))[
        :, ::2
    ],
    "a slice": lambda a: np.pad(a, 1)[1:-1, 1:-1],
    "unaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), a.dtype, a.size, 1).reshape(a.shape),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "np.matrix": lambda a: a.view(np.matrix),
    "a field of a record": lambda a: np.rec.fromarrays([a, a], names="p,q")["p"],
}


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16", "float64"])
@pytest.mark.parametrize("how", LAYOUTS)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_any_layout_arrives_with_the_same_values(how: str, dtype: str) -> None:
    """C64: strided, backward, Fortran, big-endian, read-only."""
    array = (np.arange(12).reshape(3, 4) * 7 + 1).astype(dtype)
    brought = LAYOUTS[how](array)
    found = rows(Tensor("x", dtype, (4,)), brought)
    assert type(found) is np.ndarray
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_zero_strides_and_the_real_part_of_complex() -> None:
    """C64: equal values; complex numbers are refused."""
    broadcast = np.broadcast_to(np.arange(4, dtype=np.float32), (3, 4))
    assert rows(X, broadcast).tolist() == [[0, 1, 2, 3]] * 3
    complexes = (GRID + 1j * (GRID + 100)).astype(np.complex64)
    assert rows(X, complexes.real).tolist() == GRID.tolist()
    assert rows(X, complexes.imag).tolist() == (GRID + 100).tolist()
    refused(X, complexes, "input 'x' has dtype complex64; float32 was expected")


def test_zero_dimensional_arrays_have_no_rows() -> None:
    for scalar in (np.float32(3), np.array(3, np.float32)):
        refused(Tensor("x", "float32"), scalar, "input 'x' has shape []; [n] was expected")


def test_the_given_array_is_not_changed() -> None:
    array = GRID.copy()
    rows(X, array)
    np.testing.assert_array_equal(array, GRID)


# -- lists of arrays ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool"])
def test_arrays_in_lists_arrive_as_one_array(dtype: str) -> None:
    array = (np.arange(24).reshape(3, 2, 4) % 2).astype(dtype)
    nested = [[row.copy() for row in rows_] for rows_ in array]
    for brought in (
        list(array),
        tuple(array),
        nested,
        list(array.astype(f">{array.dtype.str[1:]}")),
    ):
        found = rows(Tensor("x", dtype, (2, 4)), brought)
        assert (found.dtype, found.dtype.isnative) == (np.dtype(dtype), True)
        np.testing.assert_array_equal(found, array)
    scalars = rows(Tensor("x", dtype), list(array[0, 0]))
    assert (scalars.dtype, scalars.tolist()) == (np.dtype(dtype), array[0, 0].tolist())
    assert rows(Tensor("x", dtype), [np.array(1, dtype)]).tolist() == [1]


def test_the_values_of_listed_arrays_are_not_looked_at_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def boxed(*_: Any) -> Any:
        raise AssertionError("the values of arrays were made Python numbers")

    monkeypatch.setattr("batchpool.core.tensors.arrays.from_numbers", boxed)
    monkeypatch.setattr("batchpool.core.tensors.numbers.from_numbers", boxed)
    assert as_rows(X, list(GRID)).tolist() == GRID.tolist()
    assert as_rows(X, list(GRID.astype(np.int16))).tolist() == GRID.tolist()


@pytest.mark.parametrize(
    ("dtype", "array", "text"),
    [
        ("uint8", np.array([255, 256]), "the value 256 does not fit uint8"),
        ("int8", np.array([0, 200], np.uint8), "the value 200 does not fit int8"),
        ("int64", np.array([2**63], np.uint64), f"the value {2**63} does not fit int64"),
        ("uint64", np.array([0, -1]), "the value -1 does not fit uint64"),
        ("int32", np.array([1.0]), "the value 1.0 does not fit int32"),
        ("int32", np.array([True]), "the value True does not fit int32"),
        ("float32", np.array([True]), "the value True does not fit float32"),
        ("float32", np.array([0, 1e39]), "the value 1e+39 does not fit float32"),
        ("float16", np.array([65520]), "the value 65520 does not fit float16"),
        ("bool", np.array([0, 2]), "the value 2 does not fit bool"),
        ("bool", np.array([1.0]), "the value 1.0 does not fit bool"),
    ],
)
def test_listed_arrays_of_another_dtype_are_taken_where_their_values_fit(
    dtype: str, array: Any, text: str
) -> None:
    tensor = Tensor("x", dtype, (len(array),))
    refused(tensor, [array], f"input 'x': {text}")
    refused(tensor, [array.tolist()], f"input 'x': {text}")  # as the numbers themselves


def test_listed_arrays_of_another_dtype_keep_their_values() -> None:
    big = np.array([2**63 - 1, -(2**63)])
    assert rows(Tensor("x", "int64", (2,)), [big, big]).tolist() == [big.tolist()] * 2
    odd = np.array([np.inf, np.nan, -0.0])
    found = rows(Tensor("x", "float32", (3,)), [odd])
    np.testing.assert_array_equal(found, odd[np.newaxis].astype(np.float32))
    assert np.signbit(found[0, 2])


def test_listed_arrays_of_several_dtypes_or_among_numbers() -> None:
    assert rows(X, [GRID[0], GRID[1].astype(np.int64)]).tolist() == GRID[:2].tolist()
    assert rows(X, [GRID[0], [4, 5, 6, 7]]).tolist() == GRID[:2].tolist()
    refused(X, [GRID[0], GRID[0, :3]], "input 'x'")


# -- bfloat16 of ml_dtypes ------------------------------------------------------------------


def test_the_bfloat16_of_ml_dtypes_travels_as_its_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = Tensor("x", "bfloat16", (4,))
    values = np.array([[1.0, -2.0, 0.01, np.inf]], dtype=ml_dtypes.bfloat16)
    bits = [[0x3F80, 0xC000, 0x3C24, 0x7F80]]
    assert rows(tensor, values).tolist() == bits
    assert rows(tensor, values).dtype == np.uint16
    assert rows(tensor, np.repeat(values, 2, axis=1)[:, ::2]).tolist() == bits
    assert rows(tensor, [values[0], values[0]]).tolist() == bits * 2
    assert rows(Tensor("x", "bfloat16"), [values[0, 0], values[0, 1]]).tolist() == bits[0][:2]
    refused(X, values, "input 'x' has dtype bfloat16; float32 was expected")
    refused(Tensor("x", "uint16", (4,)), values, "has dtype bfloat16; uint16 was expected")


def test_numbers_for_a_bfloat16_are_rounded_to_it() -> None:
    """C54: 0.01 is 0x3C24, not the 0x3C23 that cutting bits would give."""
    tensor = Tensor("x", "bfloat16")
    assert rows(tensor, [1, -2.0, 0.01]).tolist() == [0x3F80, 0xC000, 0x3C24]
    assert rows(tensor, [float("nan"), float("-inf")]).tolist() == [0x7FC0, 0xFF80]
    refused(tensor, [3.4e38], "does not fit bfloat16")
    refused(tensor, [1e39], "does not fit float32")


# -- torch tensors --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


def test_torch_tensors_of_any_layout(torch: Any) -> None:
    """C64: not contiguous, expanded, with gradients."""
    plain = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    complexes = torch.complex(plain, plain + 100)
    brought = {
        "plain": plain,
        "not contiguous": plain.T.contiguous().T,
        "requires_grad": plain.clone().requires_grad_(),
        "result of autograd": plain.clone().requires_grad_() * 1,
        "strided": plain.repeat_interleave(2, dim=1)[:, ::2],
        "expanded": plain[:, None, :].expand(3, 1, 4)[:, 0],
    }
    for how, tensor in brought.items():
        assert rows(X, tensor).tolist() == GRID.tolist(), how
    # A negative bit: the values are negated when they are read.
    assert rows(X, complexes.conj().imag).tolist() == (-(GRID + 100)).tolist()
    refused(X, complexes, "input 'x' has dtype complex64; float32 was expected")
    refused(X, plain.double(), "input 'x' has dtype float64; float32 was expected")


def test_torch_tensors_in_lists(torch: Any) -> None:
    plain = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert rows(X, list(plain)).tolist() == GRID.tolist()
    assert rows(X, [plain[0], GRID[1]]).tolist() == GRID[:2].tolist()
    halves = list(plain.to(torch.bfloat16))
    tensor = Tensor("x", "bfloat16", (4,))
    assert rows(tensor, halves).tolist() == rows(tensor, plain.to(torch.bfloat16)).tolist()


def test_torch_bfloat16_travels_as_its_bits(torch: Any) -> None:
    tensor = Tensor("x", "bfloat16", (4,))
    values = torch.tensor([[1.0, -2.0, 0.01, float("inf")]], dtype=torch.bfloat16)
    found = rows(tensor, values)
    assert (found.dtype, found.tolist()) == (np.dtype("uint16"), [[0x3F80, 0xC000, 0x3C24, 0x7F80]])
    turned = torch.cat([values, values * 2]).T.contiguous().T.requires_grad_()
    assert rows(tensor, turned).tolist() == [
        [0x3F80, 0xC000, 0x3C24, 0x7F80],
        [0x4000, 0xC080, 0x3CA4, 0x7F80],
    ]
    refused(X, values, "input 'x' has dtype bfloat16; float32 was expected")
    refused(Tensor("x", "uint16", (4,)), values, "has dtype bfloat16; uint16 was expected")
    refused(tensor, values.float(), "input 'x' has dtype float32; bfloat16 was expected")


def test_every_torch_bfloat16_keeps_its_bits(torch: Any) -> None:
    bits = np.arange(2**16, dtype=np.uint16).reshape(-1, 4)
    values = torch.from_numpy(bits).view(torch.bfloat16)
    rows = as_rows(Tensor("x", "bfloat16", (4,)), values)
    assert rows.dtype == np.uint16
    assert np.array_equal(rows, bits)


def test_torch_tensors_that_numpy_cannot_hold(torch: Any) -> None:
    plain = torch.zeros((1, 4))
    for odd in (plain.to_sparse(), plain.to(torch.float8_e4m3fn)):
        refused(X, odd, "; a dense one of float32 was expected")


def test_as_rows_is_the_check_of_one_input() -> None:
    assert as_rows(X, GRID) is GRID
