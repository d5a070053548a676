"""Columns of data frames and other iterables stand in the place of arrays and lists."""

from __future__ import annotations

import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from batchpool.client.call import named_inputs
from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.lazy import library

pd = library("pandas")

SCALAR = Tensor("x", "float32")
PAIR = Tensor("x", "float32", (2,))
WHOLE = Tensor("x", "int16")
TEXT = Tensor("x", "bytes", (), max_bytes=8)
WORDS = Tensor("x", "int64", (Dim(4),))


def series(*values: Any, **options: Any) -> Callable[[], Any]:
    """A column of pandas, which is imported when the test makes it."""
    return lambda: pd.Series(*values, **options)


def taken(tensor: Tensor, value: Any) -> Any:
    """The rows that a model of this one input gets, and their sizes where they differ."""
    value = value() if callable(value) else value
    spec = ModelSpec("m", "numpy", (tensor,), (Tensor("y", "float32"),))
    rows = check_rows(spec, {"x": value})
    assert rows.tensors["x"].dtype == tensor.np_dtype
    sizes = rows.sizes.get("x")
    found = rows.tensors["x"].tolist()
    return found if sizes is None else (found, sizes.tolist())


class Rows:
    """Neither a list nor an iterator."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("tensor", "value", "expected"),
    [
        (SCALAR, series([1, 2]), [1, 2]),
        (SCALAR, series([1.5, None]), [1.5, pytest.approx(np.nan, nan_ok=True)]),
        (SCALAR, series([1, 2], dtype="Int64"), [1, 2]),
        (PAIR, lambda: pd.DataFrame({"a": [1, 2], "b": [0.5, 1]}), [[1, 0.5], [2, 1]]),
        (WHOLE, series([1, -2]), [1, -2]),
        (WHOLE, series([4.0, 1, -3]), [4, 1, -3]),
        (WHOLE, series([4, 1], dtype="Int64"), [4, 1]),
        (Tensor("x", "bool"), series([True, False]), [True, False]),
        (TEXT, series(["a", "süß"]), [b"a", "süß".encode()]),
        (TEXT, series([b"\x00", b""], dtype=object), [b"\x00", b""]),
        (WORDS, series([[1], [2, 3]]), ([[1, 0], [2, 3]], [[1], [2]])),
        (PAIR, Rows(), [[1, 2], [3, 4]]),
        (PAIR, deque([(1, 2)]), [[1, 2]]),
        (SCALAR, range(3), [0, 1, 2]),
        (SCALAR, np.ma.masked_array(np.float32([1, 2])), [1, 2]),
        (TEXT, (word for word in ("a", "b")), [b"a", b"b"]),
    ],
)
def test_columns_and_iterables_are_rows(tensor: Tensor, value: Any, expected: Any) -> None:
    assert taken(tensor, value) == expected


@pytest.mark.parametrize(
    ("tensor", "value", "message"),
    [
        (WHOLE, series([1, 70_000]), "the value 70000 does not fit int16"),
        (WHOLE, series([1.5]), "the value 1.5 does not fit int16"),
        (SCALAR, series(["a"]), "the value 'a' does not fit float32"),
        (TEXT, series(["a", None]), "input 'x': row 1 is missing in this column"),
        (TEXT, series(["a", None], dtype=object), "row 1 is missing in this column"),
        (TEXT, series(["a", float("nan")], dtype=object), "row 1 is missing in this column"),
        (WHOLE, series([4, 1, None]), "input 'x': row 2 is missing in this column"),
        (WHOLE, series([4, None], dtype="Int64"), "row 1 is missing in this column"),
        (Tensor("x", "int64"), series([2.0**53]), "the value 9007199254740992.0 does not fit"),
        (TEXT, series([1]), "input 'x' has dtype int64; bytes or str was expected"),
        (SCALAR, np.ma.masked_array(np.float32([1, 2]), [0, 1]), "with 1 masked elements"),
        (SCALAR, {1, 2}, "input 'x' is a set; an array"),
        (SCALAR, {"a": 1}, "input 'x' is a dict; an array"),
        (SCALAR, object(), "input 'x' is a object"),
        (SCALAR, np.array([1, 2]), "has dtype int64; float32 was expected"),
    ],
)
def test_what_does_not_fit_is_named(tensor: Tensor, value: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        taken(tensor, value)


def test_a_frame_has_an_input_in_each_column() -> None:
    frame = pd.DataFrame({"x": [1, 2], "y": ["a", "b"]})
    inputs = named_inputs(frame, {"z": 3})
    assert list(inputs) == ["x", "y", "z"]
    assert inputs["y"].tolist() == ["a", "b"]
    with pytest.raises(InvalidRequest, match=r"the inputs are a list; a dict of them by name, a"):
        named_inputs([1], {})


def test_rows_without_masks_do_not_import_the_module_of_masked_arrays() -> None:
    """It takes longer than all else that a short program does here."""
    code = (
        "import sys, numpy as np\n"
        "from batchpool.core.tensors.rows import check_rows\n"
        "from batchpool.core.tensors.spec import ModelSpec, Tensor\n"
        "inputs = (Tensor('x', 'float32', (2,)), Tensor('t', 'bytes', max_bytes=4))\n"
        "spec = ModelSpec('m', 'numpy', inputs, (Tensor('y', 'float32'),))\n"
        "check_rows(spec, {'x': [[1, 2]], 't': ['a']})\n"
        "print('numpy.ma' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
