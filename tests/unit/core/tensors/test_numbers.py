"""Python numbers into declared dtypes: exact where they fit, refused where they do not."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.core.tensors.dtypes import DTYPES
from batchpool.core.tensors.numbers import as_row_value, bfloat16_bits, from_numbers
from batchpool.core.tensors.rows import check_parameters
from batchpool.core.tensors.spec import Tensor
from tests.unit.generator_worker import STORY
from tests.unit.specs import X, model

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]


def convert(dtype: str, *values: Any) -> Any:
    return from_numbers("x", DTYPES[dtype], list(values), (len(values),))


@pytest.mark.parametrize("dtype", INTEGERS)
def test_whole_numbers_to_the_ends_of_the_range(dtype: str) -> None:
    limits = np.iinfo(dtype)
    least, most = int(limits.min), int(limits.max)
    found = convert(dtype, least, most, 0, 1)
    assert found.dtype == np.dtype(dtype)
    assert found.tolist() == [least, most, 0, 1]
    for beyond in (least - 1, most + 1, 2**64, -(2**63) - 1, 10**400):
        with pytest.raises(InvalidRequest, match=f"'x'.*does not fit {dtype}"):
            convert(dtype, 0, beyond)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", 2**53 + 1), ("int64", -(2**63)), ("uint64", 2**64 - 1), ("uint64", 2**63 + 1)],
)
def test_integers_that_no_float_holds_survive_exactly(dtype: str, value: int) -> None:
    assert convert(dtype, value).tolist() == [value]
    assert convert(dtype, value, 0).tolist() == [value, 0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", 256),
        ("uint8", -1),
        ("int8", 128),
        ("int32", 2**31),
        ("uint64", 2**64),
        ("int32", 1.5),
        ("int32", 1e3),  # a float is no integer, not even a whole one
        ("int32", True),
        ("int32", "1"),
        ("int32", None),
        ("bool", 2),
        ("bool", -1),
        ("bool", 1.0),
        ("bool", "true"),
        ("float32", 1e39),
        ("float32", -1e39),
        ("float32", 10**39),
        ("float16", 70000),
        ("float16", 65520),
        ("float16", 65520.0),
        ("float32", True),
        ("float32", "1"),
        ("float32", None),
        ("float32", 1j),
        ("float64", {}),
    ],
)
def test_what_does_not_fit_is_named(dtype: str, value: Any) -> None:
    for values in ([value], [0, value], [value, 1]):
        # A bool among other numbers: the first of them that does not fit is named.
        text = re.escape(f"input 'x': the value {value!r} does not fit {dtype}")
        with pytest.raises(InvalidRequest, match=text):
            from_numbers("x", DTYPES[dtype], values, (len(values),))


@pytest.mark.parametrize("value", [10**400, -(10**400)])
def test_an_integer_larger_than_any_float(value: int) -> None:
    for dtype in ("float16", "float32", "float64"):
        with pytest.raises(InvalidRequest, match="'x'"):
            convert(dtype, value)


def test_infinity_and_nan_are_taken_but_never_made() -> None:
    given_values = [math.inf, -math.inf, math.nan, 1.0]
    np.testing.assert_array_equal(convert("float32", *given_values), np.float32(given_values))
    # A value that overflows is found behind one that is infinite already.
    for first in (math.nan, math.inf):
        with pytest.raises(InvalidRequest, match=re.escape("value 1e+39 does not fit float32")):
            convert("float32", first, 1e39)


def test_floats_are_rounded_to_the_dtype() -> None:
    assert convert("float32", 0.1).tolist() == [float(np.float32(0.1))]
    assert convert("float16", 65519.0).tolist() == [65504.0]
    assert convert("float32", 1e-60).tolist() == [0.0]
    assert convert("float64", 0.1).tolist() == [0.1]
    assert convert("float32", 3, 16777216).tolist() == [3.0, 16777216.0]


def test_bools() -> None:
    assert convert("bool", True, False, 1, 0).tolist() == [True, False, True, False]
    assert convert("bool", True, False).dtype == np.dtype(bool)


def test_numpy_numbers_count_as_numbers() -> None:
    assert convert("int32", np.int64(7), np.uint8(3), 1).tolist() == [7, 3, 1]
    assert convert("float32", np.float32(0.5), np.float64(1.5), np.int8(2)).tolist() == [
        0.5,
        1.5,
        2.0,
    ]
    assert convert("bool", np.bool_(True)).tolist() == [True]
    for dtype, value in (("int32", np.float32(1)), ("uint8", np.int64(256)), ("int8", np.True_)):
        with pytest.raises(InvalidRequest, match="does not fit"):
            convert(dtype, value)


def test_flat_or_nested_and_the_right_count() -> None:
    tensor = Tensor("x", "int8", (2,))
    for values in ([1, 2, 3, 4], [[1, 2], [3, 4]], (1, 2, 3, 4)):
        found = from_numbers(tensor.name, tensor.element, values, (2, 2))
        assert found.tolist() == [[1, 2], [3, 4]]
    text = "input 'x' has 3 values; shape [2, 2] needs 4"
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        from_numbers(tensor.name, tensor.element, [1, 2, 3], (2, 2))
    assert from_numbers(tensor.name, tensor.element, [], (0, 2)).shape == (0, 2)


def test_ragged_lists_are_refused() -> None:
    for ragged in ([[1, 2], [3]], [[1], 2], [[[1, 2]], [[3], [4]]]):
        with pytest.raises(InvalidRequest, match="'x'"):
            from_numbers("x", DTYPES["int8"], ragged, (2,))


def test_bfloat16_is_not_given_as_numbers() -> None:
    with pytest.raises(InvalidRequest, match=r"'x' is bfloat16, .*; send it binary"):
        convert("bfloat16", 1.0)


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        convert("float32", "a" * 10_000)
    assert len(caught.value.message) < 150


@settings(deadline=None)
@given(st.floats(width=32))
def test_bfloat16_bits_are_those_of_torch(value: float) -> None:
    """C54: to nearest, ties to even."""
    torch = pytest.importorskip("torch")
    want = torch.tensor([value]).to(torch.bfloat16)
    bits = torch.tensor([bfloat16_bits(value)], dtype=torch.int32).to(torch.int16)
    found = bits.view(torch.bfloat16)
    assert torch.equal(found, want) or (torch.isnan(found).all() and torch.isnan(want).all())


HALF = Tensor("temperature", "bfloat16")


@settings(deadline=None)
@given(st.one_of(st.floats(width=32), st.integers(-(10**40), 10**40), st.floats()))
def test_a_bfloat16_parameter_is_given_as_a_number(value: float) -> None:
    torch = pytest.importorskip("torch")
    if math.isnan(value):
        assert as_row_value(HALF.name, HALF.element, value) == 0x7FC0
        return
    want = torch.tensor([float(value)], dtype=torch.float32).to(torch.bfloat16)
    if math.isfinite(value) and not torch.isfinite(want).all():
        with pytest.raises(InvalidRequest, match=r"parameter 'temperature': .* fit bfloat16"):
            as_row_value(HALF.name, HALF.element, value)
        return
    bits = torch.tensor([as_row_value(HALF.name, HALF.element, value)], dtype=torch.int32).to(
        torch.int16
    )
    assert torch.equal(bits.view(torch.bfloat16), want)


@pytest.mark.parametrize("value", [True, "1", None, [1.0], 1e39, -(10**400), np.bool_(True)])
def test_what_is_no_bfloat16_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match="parameter 'temperature'"):
        as_row_value(HALF.name, HALF.element, value)
    assert (
        as_row_value(HALF.name, HALF.element, np.float64(1.5))
        == as_row_value(HALF.name, HALF.element, 1.5)
        == 0x3FC0
    )


K = model(
    X,
    parameters=(
        Tensor("top_k", "int64", (), default=5),
        Tensor("scale", "float32"),
        Tensor("flag", "bool", default=False),
    ),
)


def test_parameters_given_and_default() -> None:
    assert check_parameters(K, {"scale": 1}) == {"top_k": 5, "scale": 1.0, "flag": False}
    found = check_parameters(K, {"scale": 0.1, "top_k": 2**53 + 1, "flag": True})
    assert found == {"top_k": 2**53 + 1, "scale": float(np.float32(0.1)), "flag": True}
    assert check_parameters(K, {"scale": np.float32(2), "top_k": np.int32(3)})["top_k"] == 3


@pytest.mark.parametrize(
    ("given_parameters", "text"),
    [
        ({}, "parameter 'scale' of model 'm' is missing and has no default"),
        ({"scale": None}, "parameter 'scale' is None; one float32 was expected"),
        (
            {"scale": 1, "top_k": None},
            "parameter 'top_k' is None; one int64, or no such parameter, was expected",
        ),
        ({"scale": 1, "top_k": 2**63}, "parameter 'top_k': the value 9223372036854775808"),
        ({"scale": 1, "top_k": 1.5}, "parameter 'top_k': the value 1.5 does not fit int64"),
        ({"scale": 1, "top_k": "5"}, "parameter 'top_k': the value '5' does not fit int64"),
        ({"scale": 1, "top_k": [5]}, "parameter 'top_k' is a list; one int64 was expected"),
        ({"scale": 1e39}, "parameter 'scale': the value 1e+39 does not fit float32"),
        ({"scale": 1, "flag": 2}, "parameter 'flag': the value 2 does not fit bool"),
        (
            {"scale": 1, "beam": 3},
            "model 'm' has no parameter 'beam'; it declares 'top_k', 'scale', 'flag'",
        ),
    ],
)
def test_parameters_that_are_wrong(given_parameters: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        check_parameters(K, given_parameters)


@pytest.mark.parametrize("wanted", [0, -1, -(2**63), 41, 2**63 - 1])
def test_a_generator_is_asked_for_as_many_tokens_as_it_makes(wanted: int) -> None:
    text = f"parameter 'max_tokens' is {wanted}; model 'story' makes 1 to 40 tokens"
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        check_parameters(STORY, {"max_tokens": wanted})
    for whole in ({"max_tokens": 1}, {"max_tokens": 40}, {"max_tokens": np.int16(40)}):
        assert check_parameters(STORY, whole) == whole
    assert check_parameters(STORY, {}) == {"max_tokens": 40}
    other = model(X, parameters=(Tensor("max_tokens", "int64"),))
    assert check_parameters(other, {"max_tokens": wanted}) == {"max_tokens": wanted}


def test_a_model_without_parameters_takes_none() -> None:
    with pytest.raises(InvalidRequest, match="has no parameter 'a'; it declares none"):
        check_parameters(model(X), {"a": 1})


def test_one_value_of_a_parameter() -> None:
    value = as_row_value("k", DTYPES["uint8"], 255)
    assert (value, type(value)) == (255, int)


LANGUAGE = model(X, parameters=(Tensor("language", "bytes", max_bytes=4, default="en"),))


@pytest.mark.parametrize("value", ["déu", "déu".encode(), bytearray(b"d\xc3\xa9u")])
def test_a_text_parameter_is_stored_as_its_bytes(value: Any) -> None:
    assert check_parameters(LANGUAGE, {"language": value}) == {"language": "déu".encode()}
    assert check_parameters(LANGUAGE, {}) == {"language": b"en"}
    assert check_parameters(LANGUAGE, {"language": ""}) == {"language": b""}


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (3, InvalidRequest, "parameter 'language' is a int; one bytes or str was expected"),
        (["en"], InvalidRequest, "parameter 'language' is a list; one bytes or str was expected"),
        (None, InvalidRequest, "parameter 'language' is None; one bytes, or no such parameter"),
        ("a\ud800", InvalidRequest, "parameter 'language' has a lone surrogate"),
        ("Latin", TooLarge, "parameter 'language' has 5 bytes; at most 4 fit"),
    ],
)
def test_what_is_no_text_parameter(value: Any, kind: type[PoolError], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        check_parameters(LANGUAGE, {"language": value})


def test_a_value_among_others_is_told_with_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        from_numbers("x", DTYPES["float32"], [[1, 2], [3, 4], [5, None]], (3, 2))
    assert caught.value.message == "input 'x': the value None does not fit float32, at [2, 1]"
    with pytest.raises(InvalidRequest) as caught:
        from_numbers("x", DTYPES["uint8"], [256], (1,))
    assert caught.value.message == "input 'x': the value 256 does not fit uint8"
