"""Tensors in OIP requests: numbers that fit, shapes that fit their values, text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.unit.wire.calls import (
    AFFINE,
    MIXED,
    ask,
    echo,
    one,
    refused,
    text_bytes,
)

# -- numbers ---------------------------------------------------------------------------------

INTEGERS = {
    "UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 2**16 - 1),
    "INT16": (-(2**15), 2**15 - 1), "UINT32": (0, 2**32 - 1), "INT32": (-(2**31), 2**31 - 1),
    "UINT64": (0, 2**64 - 1), "INT64": (-(2**63), 2**63 - 1),
}  # fmt: skip


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_survive_exactly_or_are_refused(datatype: str) -> None:
    """C03: the ends of each range arrive, all beyond or between them is refused."""
    spec = echo(datatype.lower())
    low, high = INTEGERS[datatype]
    values = [low, high, 1]
    rows = ask(spec, one([3], values, datatype)).rows
    assert rows.tensors["x"].tolist() == values
    assert rows.tensors["x"].dtype == np.dtype(datatype.lower())
    for wrong in (low - 1, high + 1, 1.5, 1e3, True, "1", None, 10**30, {}, [1]):
        message = refused(spec, one([2], [1, wrong], datatype))
        assert "'x'" in message


def test_int64_beyond_a_doubles_precision_is_exact() -> None:
    """C03: it is never a double on its way."""
    rows = ask(echo("int64"), one([1], [2**53 + 1], "INT64")).rows
    assert rows.tensors["x"].tolist() == [2**53 + 1]


def test_bool_takes_true_false_one_and_zero_only() -> None:
    """C03: nothing else is taken for one of the two."""
    rows = ask(echo("bool"), one([4], [True, False, 1, 0], "BOOL")).rows
    assert rows.tensors["x"].tolist() == [True, False, True, False]
    for wrong in (2, -1, "true", 0.0, None):
        refused(echo("bool"), one([1], [wrong], "BOOL"))


@pytest.mark.parametrize("body", [b"[NaN]", b"[Infinity]", b"[-Infinity]", b"[1e999]", b"[1e39]"])
def test_what_is_not_a_finite_fp32_is_refused(body: bytes) -> None:
    """C03, C53: no quiet infinity, and NaN in a request's JSON is refused as documented."""
    head = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":%s}]}' % body
    refused(echo("float32"), head)


def test_binary_floats_keep_every_bit() -> None:
    bits = np.array([0x7FC00001, 0x7F800000, 0xFF800000, 0x80000000, 1], "<u4")
    rows = ask(echo("float32"), one([5], bits.tobytes()), bits.tobytes()).rows
    assert rows.tensors["x"].view("<u4").tolist() == bits.tolist()


def test_binary_bool_bytes_are_zero_or_one() -> None:
    rows = ask(echo("bool"), one([3], b"\0\1\0", "BOOL"), b"\0\1\0").rows
    assert rows.tensors["x"].tolist() == [False, True, False]
    assert "0 or 1" in refused(echo("bool"), one([3], b"\0\1\2", "BOOL"), b"\0\1\2")


@pytest.mark.parametrize(("dtype", "datatype"), [("float16", "FP16"), ("bfloat16", "BF16")])
def test_half_precision_is_binary_only_in_both_directions(dtype: str, datatype: str) -> None:
    """C03, C54: every bit pattern of both; JSON is refused with what to ask for."""
    spec = echo(dtype)
    every = np.arange(2**16, dtype="<u2").tobytes()
    binary_out = {"parameters": {"binary_data_output": True}}
    rows = ask(spec, one([2**16], every, datatype) | binary_out, every).rows
    assert rows.tensors["x"].view("<u2").tobytes() == every
    assert "binary_data_size" in refused(spec, one([1], [1.0], datatype) | binary_out)
    two = b"\0\0"
    assert "binary_data_output" in refused(spec, one([1], two, datatype), two)
    by_name = {"outputs": [{"name": "x", "parameters": {"binary_data": False}}]}
    assert "binary_data" in refused(spec, one([1], two, datatype) | by_name | binary_out, two)


# -- shapes against data ---------------------------------------------------------------------

WRONG_SHAPES: list[tuple[list[Any], Any]] = [
    ([1, 4], [1, 2, 3]),
    ([1, 4], [1, 2, 3, 4, 5]),
    ([-1, 4], [1, 2, 3, 4]),
    ([-1, -4], [1, 2, 3, 4]),
    ([0.5, 4], [1, 2]),
    (["1", 4], [1, 2, 3, 4]),
    ([True, 4], [1, 2, 3, 4]),
    ([2**62, 4], [1, 2, 3, 4]),
    ([2**62 + 1, 4], [1, 2, 3, 4]),  # 4 in 64-bit arithmetic
    ([2**64, 4], [1, 2, 3, 4]),
    ([10**4299, 4], [1, 2, 3, 4]),
    ([1] * 100 + [4], [1, 2, 3, 4]),
    ([4], [1, 2, 3, 4]),
    ([], [1]),
    ([1, 2, 2], [1, 2, 3, 4]),
    ([1, 5], [1, 2, 3, 4, 5]),
    ([0, 4], []),
    ([1, 0], []),
    ([1, 4], "abcd"),
    ([1, 4], None),
    ([1, 4], 1),
    ([1, 4], {"0": 1}),
    ([1, 4], [[1, 2], [3]]),
    ([2, 4], [[1, 2, 3, 4], [5, 6, 7]]),
    ([1, 4], [1, 2, [3], 4]),
    ([1, 4], [[1, 2, 3, 4], 5]),
    ([1, 4], [1, 2, 3, "4"]),
    ([1, 4], [1, 2, 3, None]),
]


@pytest.mark.parametrize(("shape", "data"), WRONG_SHAPES)
def test_a_shape_that_does_not_fit_is_named(shape: list[Any], data: Any) -> None:
    """C01: sizes that are none, and values that do not fill them, are refused by name."""
    message = refused(AFFINE, one(shape, data))
    assert "input 'x'" in message


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ([1, 4], 12),
        ([1, 4], 20),
        ([-1, 4], 16),
        ([2**62, 4], 16),
        ([2**62 + 1, 4], 16),
        ([2**64, 4], 16),
        ([0, 4], 0),
        ([2, 4], 16),
    ],
)
def test_the_same_in_binary(shape: list[int], size: int) -> None:
    """C01: bytes that do not fill the shape are refused with the input's name."""
    assert "input 'x'" in refused(AFFINE, one(shape, bytes(size)), bytes(size))


@pytest.mark.parametrize(
    "inputs",
    [None, [], {}, "x", 1, [None], [[]], [{}], [{"name": "x"}], [{"name": 1, "shape": [1]}]],
)
def test_inputs_that_are_no_inputs(inputs: Any) -> None:
    """C01: `inputs` that are missing, empty or no list are a refusal."""
    refused(AFFINE, {"inputs": inputs})


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"{}", b"\xff", b'{"inputs":[]', b"{} x", b"\xef\xbb\xbf{}"]
)
def test_bodies_that_are_no_json_object(body: bytes) -> None:
    refused(AFFINE, body)


def test_nesting_without_end_is_refused() -> None:
    """C01, C65: 100,000 levels are a refusal and no recursion."""
    for deep in (b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000):
        refused(AFFINE, deep)
        refused(
            AFFINE, b'{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":%s}]}' % deep
        )


def test_dynamic_dimensions_up_to_their_maximum_and_down_to_zero() -> None:
    """C05: rows of nothing are rows; no rows are refused."""
    spec = echo("float32", (Dim(3), 2))
    rows = ask(spec, one([2, 3, 2], list(range(12)))).rows
    assert rows.tensors["x"].tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]
    for source, tails in (([], ()), ([[], []], ()), (b"", (b"",))):
        rows = ask(spec, one([2, 0, 2], source), *tails).rows
        assert (rows.n, rows.tensors["x"].shape) == (2, (2, 0, 2))
    refused(spec, one([1, 4, 2], [0] * 8), kind=TooLarge)
    refused(spec, one([1, -1, 2], []))
    refused(spec, one([0, 1, 2], []))
    refused(spec, one([0, 0, 2], []))


def test_rows_of_no_bytes_do_not_come_in_any_number() -> None:
    """C05: a size of zero does not make the others boundless."""
    spec = echo("float32", (Dim(3), 2))
    assert ask(spec, one([2**20, 0, 2], b""), b"").rows.n == 2**20
    for rows in (2**20 + 1, 2**40, 2**62):
        refused(spec, one([rows, 0, 2], b""), b"", kind=TooLarge)
        refused(spec, one([rows, 0, 2], []), kind=TooLarge)


def test_dimensions_of_one_name_have_one_size() -> None:
    length = Dim(8, "length")
    tensors = (Tensor("ids", "int64", (length,)), Tensor("mask", "bool", (length,)))
    spec = ModelSpec("m", "numpy", tensors, AFFINE.outputs)

    def head(ids: int, mask: int) -> dict[str, Any]:
        first = one([1, ids], [0] * ids, "INT64", "ids")["inputs"]
        return {"inputs": first + one([1, mask], [True] * mask, "BOOL", "mask")["inputs"]}

    assert ask(spec, head(5, 5)).rows.n == 1
    assert "has 4 along 'length'" in refused(spec, head(5, 4))


def test_inputs_must_agree_on_the_number_of_rows() -> None:
    head = {
        "inputs": [
            {"name": "ids", "shape": [2, 1], "datatype": "INT64", "data": [1, 2]},
            {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]},
        ]
    }
    message = refused(MIXED, head | {"outputs": [{"name": "score"}]})
    assert message == "input 'text' has 1 rows, but input 'ids' has 2"


# -- text ------------------------------------------------------------------------------------

TEXT = echo("bytes", (), 1 << 20)


def test_text_in_json_and_in_binary() -> None:
    elements = [b"", b"a", "😀é".encode(), b"\0 ", b"m" * (1 << 20)]
    rows = ask(TEXT, one([5], [e.decode() for e in elements], "BYTES")).rows
    assert rows.tensors["x"].tolist() == elements
    elements.append(b"\x00\xff\xfe")
    packed = text_bytes(*elements)
    rows = ask(TEXT, one([6], packed, "BYTES"), packed).rows
    assert rows.tensors["x"].tolist() == elements
    assert all(type(element) is bytes for element in rows.tensors["x"])


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"\1",
        b"\1\0\0\0",
        b"\2\0\0\0a",
        b"\1\0\0\0ab",
        b"\xff\xff\xff\xff" + b"a" * 100,
        text_bytes(b"a", b"b"),
    ],
)
def test_malformed_lengths_of_text(packed: bytes) -> None:
    """C52: each is refused with the input's name."""
    assert "input 'x'" in refused(TEXT, one([1], packed, "BYTES"), packed)


def test_a_count_of_elements_that_cannot_be() -> None:
    assert "'x'" in refused(TEXT, one([2**40], text_bytes(b"a"), "BYTES"), text_bytes(b"a"))


@pytest.mark.parametrize("wrong", [1, None, True, 1.5, {}, ["a", "b"]])
def test_text_that_is_none(wrong: Any) -> None:
    assert "'x'" in refused(TEXT, one([2], ["a", wrong], "BYTES"))


def test_lone_surrogates_are_no_text() -> None:
    head = b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\\ud800"]}]}'
    refused(TEXT, head)


def test_text_longer_than_a_slot() -> None:
    spec = echo("bytes", (), 3)
    assert ask(spec, one([1], ["abc"], "BYTES")).rows.n == 1
    assert "at most 3" in refused(spec, one([1], ["abcd"], "BYTES"), kind=TooLarge)
    packed = text_bytes(b"abcd")
    refused(spec, one([1], packed, "BYTES"), packed, kind=TooLarge)
    # Counted in bytes, not in characters.
    refused(spec, one([1], ["éé"], "BYTES"), kind=TooLarge)
