"""Outputs that a model may return, and the errors that name the others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.core.tensors.stages import Stage, stage_spec
from batchpool.worker.backends.backend import IN_PLACE
from batchpool.worker.outputs import CheckedOutputs, check_outputs

X = Tensor("x", "float32")
TOKENS = Dim(6, "tokens")
FIXED = Tensor("y", "float32", (2, 3))
DYNAMIC = Tensor("y", "int64", (Dim(4), 2))
NAMED = Tensor("y", "int64", (TOKENS,))
TEXT = Tensor("y", "bytes", (), max_bytes=4)
TEXTS = Tensor("y", "bytes", (Dim(2),), max_bytes=4)
PAIR = Tensor("y", "bytes", (2,), max_bytes=4)


def spec(*outputs: Tensor) -> ModelSpec:
    return ModelSpec("m", "numpy", (X, Tensor("ids", "int64", (TOKENS,))), outputs)


def check(
    tensor: Tensor, value: Any, n: int = 2, tokens: list[int] | None = None
) -> CheckedOutputs:
    sizes = {"x": None, "ids": np.array(tokens or [6] * n)[:, np.newaxis]}
    return check_outputs(spec(tensor), {"y": value}, n, sizes)


def listed(answers: CheckedOutputs) -> list[Any]:
    rows = answers.outputs["y"]
    return [row.tolist() for row in rows] if isinstance(rows, list) else rows.tolist()


# -- the whole return value -----------------------------------------------------------------


@pytest.mark.parametrize("found", [None, [1], np.zeros(2), "y", 3, object()])
def test_no_mapping(found: Any) -> None:
    kind = type(found).__name__
    text = f"model 'm' returned a {kind}; a dict of its outputs was expected"
    with pytest.raises(ModelError, match=re.escape(text)):
        check_outputs(spec(FIXED), found, 2, {})


def test_a_coroutine_is_told_to_be_a_plain_function() -> None:
    async def infer() -> None: ...

    found = infer()
    with pytest.raises(ModelError, match=r"a coroutine; .* was expected: .* without async"):
        check_outputs(spec(FIXED), found, 2, {})
    found.close()


def test_wrong_names() -> None:
    good = np.zeros((2, 2, 3), np.float32)
    with pytest.raises(ModelError, match="undeclared output 'z'; it declares 'y'"):
        check_outputs(spec(FIXED), {"y": good, "z": good}, 2, {})
    with pytest.raises(ModelError, match="model 'm' returned no output 'y'"):
        check_outputs(spec(FIXED), {}, 2, {})
    with pytest.raises(ModelError, match="returned an undeclared output 3"):
        check_outputs(spec(FIXED), {3: good}, 2, {})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "a dict of its features was expected"),
        ({"y": 0, "z": 0}, "returned an undeclared feature 'z'"),
        ({}, "returned no feature 'y'"),
        ({"y": "a"}, "^feature 'y' is a str;"),
        ({"y": [[1, 2], ["a"]]}, "feature 'y'"),
        ({"y": [[1], [1.5]]}, "feature 'y'"),
    ],
)
def test_what_preprocess_makes_is_called_a_feature(found: Any, text: str) -> None:
    staged = replace(spec(TEXT), features=(Tensor("y", "int64", (Dim(4),)),))
    with pytest.raises(ModelError, match=text) as caught:
        check_outputs(stage_spec(staged, Stage.PREPROCESS), found, 2, {})
    assert "output" not in caught.value.message


def test_several_outputs_in_any_order() -> None:
    two = spec(X, Tensor("z", "int8", (2,)))
    x, z = np.ones(3, np.float32), np.ones((3, 2), np.int8)
    answers = check_outputs(two, {"z": z, "x": x}, 3, {})
    assert answers.outputs["x"] is x
    assert answers.outputs["z"] is z
    assert answers.failed == {}


# -- fixed outputs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape", [(1, 2, 3), (3, 2, 3), (2, 3), (2, 3, 2), (2, 2, 3, 1), (2,), (), (0, 2, 3)]
)
def test_a_wrong_shape(shape: tuple[int, ...]) -> None:
    text = f"output 'y' has shape {list(shape)}; [2, 2, 3] was expected"
    with pytest.raises(ModelError, match=re.escape(text)):
        check(FIXED, np.zeros(shape, np.float32))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "bool", "complex64", "O", "U1"])
def test_a_wrong_dtype(dtype: str) -> None:
    text = f"output 'y' has dtype {np.dtype(dtype).name}; float32 was expected"
    with pytest.raises(ModelError, match=re.escape(text)):
        check(FIXED, np.zeros((2, 2, 3), dtype))


@pytest.mark.parametrize("value", [None, "y", object()])
def test_no_array(value: Any) -> None:
    kind = type(value).__name__
    text = f"output 'y' is a {kind}; an array or a list of numbers was expected"
    with pytest.raises(ModelError, match=re.escape(text)):
        check(FIXED, value)


@pytest.mark.parametrize("value", [1.0, np.float32(1), 3])
def test_a_number_is_no_array(value: Any) -> None:
    with pytest.raises(ModelError, match=re.escape("output 'y' has shape []")):
        check(FIXED, value)


def test_lists_of_numbers_are_taken_as_arrays_of_the_declared_dtype() -> None:
    nested = [[[1, 2.5, 3], [4, 5, 6]], [[0, 0, 0], [7, 8, np.float32(9)]]]
    answers = check(FIXED, nested)
    assert np.asarray(answers.outputs["y"]).dtype == np.float32
    assert listed(answers) == [[[1, 2.5, 3], [4, 5, 6]], [[0, 0, 0], [7, 8, 9]]]
    for rows in ([3, 4], (3, 4), [np.int64(3), 4], [np.array(3, np.int64), np.array(4, np.int64)]):
        answers = check(Tensor("y", "int64"), rows)
        assert listed(answers) == [3, 4]
        assert {np.asarray(row).dtype for row in answers.outputs["y"]} == {np.dtype(np.int64)}
    # With dynamic dimensions each row is a list or an array of its own size.
    assert listed(check(DYNAMIC, [[[1, 2]], [[3, 4], [5, 6]]])) == [[[1, 2]], [[3, 4], [5, 6]]]
    mixed = [np.array([[1, 2]]), [[3, 4], [5, 6]]]
    assert listed(check(DYNAMIC, mixed)) == [[[1, 2]], [[3, 4], [5, 6]]]
    assert listed(check(Tensor("y", "bfloat16"), [1, -2.5])) == [0x3F80, 0xC020]


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("uint8", 256, "the value 256 does not fit uint8"),
        ("uint8", -1, "the value -1 does not fit uint8"),
        ("int64", 1.5, "the value 1.5 does not fit int64"),
        ("int64", True, "the value True does not fit int64"),
        ("float32", 1e39, "the value 1e+39 does not fit float32"),
        ("bfloat16", 3.4e38 * 1.0, "the value"),
        ("float32", "1", "the value '1' does not fit float32"),
        ("float32", None, "the value None does not fit float32"),
    ],
)
def test_a_number_in_a_list_that_does_not_fit_the_dtype_is_named(
    dtype: str, value: Any, text: str
) -> None:
    for rows in ([value, 0], [0, value]):
        with pytest.raises(ModelError, match=re.escape(f"output 'y': {text}")):
            check(Tensor("y", dtype), rows)


def test_lists_of_the_wrong_shape_or_ragged() -> None:
    with pytest.raises(ModelError, match=re.escape("output 'y'")):
        check(FIXED, [[[1.0]], [[2.0]]])
    with pytest.raises(ModelError, match=re.escape("output 'y'")):
        check(FIXED, [[[1.0, 2, 3], [4, 5]], [[1.0, 2, 3], [4, 5, 6]]])


def test_the_bfloat16_of_ml_dtypes_is_bfloat16() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1, -2.5], dtype=ml_dtypes.bfloat16)
    assert listed(check(Tensor("y", "bfloat16"), values)) == [0x3F80, 0xC020]
    with pytest.raises(ModelError, match="has dtype bfloat16; uint16 was expected"):
        check(Tensor("y", "uint16"), values)


def test_arrays_of_any_layout_are_taken() -> None:
    """C64: from a model as well."""
    plain = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    for array in (
        plain,
        plain.astype(">f4"),
        np.asfortranarray(plain),
        np.repeat(plain, 2, axis=2)[:, :, ::2],
        np.broadcast_to(plain[:1], (2, 2, 3)),
    ):
        answers = check(FIXED, array)
        assert listed(answers) == array.tolist()
        assert answers.failed == {}


# -- dynamic outputs ------------------------------------------------------------------------


def test_one_array_of_a_size_that_fits() -> None:
    array = np.arange(12).reshape(2, 3, 2)
    answers = check(DYNAMIC, array)
    assert answers.outputs["y"] is array


def test_one_array_a_row() -> None:
    rows = [np.zeros((3, 2), np.int64), np.ones((0, 2), np.int64)]
    for value in (rows, tuple(rows)):
        answers = check(DYNAMIC, value)
        assert listed(answers) == [[[0, 0]] * 3, []]
        assert answers.failed == {}


def test_runs_of_numbers_are_stored_as_they_are() -> None:
    ids = Tensor("y", "int32", (Dim(3),))
    rows = [np.arange(3, dtype=np.int32), np.arange(0, dtype=np.int32)]
    stored = check(ids, rows).outputs["y"]
    assert isinstance(stored, list)
    assert stored[0] is rows[0]
    assert stored[1] is rows[1]
    answers = check(ids, [rows[0], np.arange(4, dtype=np.int32)])
    assert answers.failed == {1: "output 'y' of this row has shape [4]; at most [3] fits"}
    assert listed(answers) == [[0, 1, 2], []]
    swapped = np.array([7], np.dtype("int32").newbyteorder())
    assert listed(check(ids, [rows[0], swapped])) == [[0, 1, 2], [7]]
    with pytest.raises(ModelError, match="has dtype int64; int32 was expected"):
        check(ids, [rows[0], np.array([7])])


def test_a_row_that_does_not_fit_its_slot_fails_alone() -> None:
    """C22: with what came and what fits."""
    good = np.ones((4, 2), np.int64)
    for bad in (
        np.ones((5, 2), np.int64),
        np.ones((2, 3), np.int64),
        np.ones((2,), np.int64),
        np.int64([[[1]]]),
    ):
        answers = check(DYNAMIC, [good, bad])
        text = f"output 'y' of this row has shape {list(bad.shape)}; at most [4, 2] fits"
        assert answers.failed == {1: text}
        assert listed(answers)[0] == good.tolist()
        assert listed(answers)[1] == [], "nothing of it reaches the slot"


def test_rows_that_are_no_rows_fail_the_batch() -> None:
    cases: list[tuple[Any, str]] = [
        ([np.ones((1, 2), np.int64)], "output 'y' has 1 rows; 2 was expected"),
        ([np.ones((1, 2), np.int64)] * 3, "output 'y' has 3 rows; 2 was expected"),
        ([np.ones((1, 2), np.int64), None], "output 'y' is a NoneType; an array or a list"),
        ([np.ones((1, 2), np.int8)] * 2, "output 'y' has dtype int8; int64 was expected"),
        (np.ones((3, 1, 2), np.int64), "output 'y' has shape [3, 1, 2]; [2, *row shape] was"),
        (np.ones((2, 1), np.int64), "output 'y' has shape [2, 1]; [2, *row shape] was expected"),
        (np.ones((2, 1, 2), np.int8), "output 'y' has dtype int8; int64 was expected"),
    ]
    for value, text in cases:
        with pytest.raises(ModelError, match=re.escape(text)):
            check(DYNAMIC, value)


def test_an_array_too_large_for_any_slot_fails_every_row() -> None:
    answers = check(DYNAMIC, np.ones((2, 5, 2), np.int64))
    assert set(answers.failed) == {0, 1}


def test_a_dimension_named_like_an_inputs_is_cut_back_to_its_size() -> None:
    array = np.arange(12).reshape(2, 6)
    answers = check(NAMED, array, tokens=[2, 5])
    assert listed(answers) == [[0, 1], [6, 7, 8, 9, 10]]
    assert answers.failed == {}
    # A list is what the model decided itself.
    own = check(NAMED, [array[0, :4], array[1, :1]], tokens=[2, 5])
    assert listed(own) == [[0, 1, 2, 3], [6]]


# -- bytes outputs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        ["é", b"a\0"],
        ("é", b"a\0"),
        np.array(["é", b"a\0"], dtype=object),
        [np.str_("é"), np.bytes_(b"a\0")],
    ],
)
def test_texts_and_bytes(value: Any) -> None:
    """C22, C52: NUL bytes at the end stay."""
    answers = check(TEXT, value)
    assert listed(answers) == ["é".encode(), b"a\0"]
    assert answers.failed == {}


def test_numpy_text_arrays() -> None:
    """C22, C52: texts are taken, byte arrays that dropped NUL bytes are not."""
    assert listed(check(TEXT, np.array(["ab", "é"]))) == [b"ab", "é".encode()]
    text = "output 'y' has dtype bytes16; an object array or list of bytes was expected"
    with pytest.raises(ModelError, match=text):
        check(TEXT, np.array([b"a\0", b"b"]))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("ab", "output 'y' is a str; a list of bytes was expected"),
        (b"ab", "output 'y' is a bytes; a list of bytes was expected"),
        (None, "output 'y' is a NoneType; a list of bytes was expected"),
        (["a"], "output 'y' has 1 rows; 2 was expected"),
        (["a"] * 3, "output 'y' has 3 rows; 2 was expected"),
        (np.zeros(2), "output 'y' has dtype float64; an object array or list of bytes"),
        (np.array("ab", dtype=object), "output 'y' has shape []"),
    ],
)
def test_no_list_of_strings(value: Any, text: str) -> None:
    with pytest.raises(ModelError, match=re.escape(text)):
        check(TEXT, value)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("12345", "output 'y' of this row has 5 bytes; at most 4 fit"),
        ("€€", "output 'y' of this row has 6 bytes; at most 4 fit"),
        (3, "output 'y' of this row holds a int, not bytes"),
        (None, "output 'y' of this row holds a NoneType, not bytes"),
        ("\ud800", "output 'y' of this row has a lone surrogate, which is no text"),
        (["a", "b"], "output 'y' of this row has shape [2]"),
    ],
)
def test_one_bad_element_fails_its_row_alone(bad: Any, text: str) -> None:
    value = np.empty(2, dtype=object)
    value[0], value[1] = "1234", bad
    for brought in (value, list(value)):
        answers = check(TEXT, brought)
        assert answers.failed == {1: text}
        assert listed(answers) == [b"1234", b""]


def test_rows_of_several_strings() -> None:
    answers = check(TEXTS, [["a", b"b"], []])
    assert listed(answers) == [[b"a", b"b"], []]
    assert answers.failed == {}
    assert listed(check(TEXTS, np.array([["a"], ["b"]], dtype=object))) == [[b"a"], [b"b"]]
    many = check(TEXTS, [["a", "b", "c"], ["d"]])
    assert many.failed == {0: "output 'y' of this row has shape [3]"}
    assert listed(many) == [[], [b"d"]]
    pairs = check(PAIR, [["a", "b"], ["c", "d"]])
    assert listed(pairs) == [[b"a", b"b"], [b"c", b"d"]]
    short = check(PAIR, [["a", "b"], ["c"]])
    assert short.failed == {1: "output 'y' of this row has shape [1]"}
    assert listed(short) == [[b"a", b"b"], [b"", b""]]


# -- padding ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "real", "other"),
    [
        (FIXED, np.ones((2, 2, 3), np.float32), np.zeros((2, 2, 3), np.float32)),
        (DYNAMIC, np.ones((2, 3, 2), np.int64), np.zeros((2, 3, 2), np.int64)),
        (NAMED, np.ones((2, 6), np.int64), np.zeros((2, 6), np.int64)),
        (DYNAMIC, [np.ones((1, 2), np.int64)] * 2, [None, np.zeros((5, 2))]),
        (TEXT, ["ab", b"c"], ["abcde", 3]),
        (TEXTS, [["ab"], []], [["ab"] * 3, "ab"]),
        (PAIR, [["ab", "c"]] * 2, [[None], []]),
    ],
)
def test_only_the_real_rows_are_looked_at(tensor: Tensor, real: Any, other: Any) -> None:
    sizes = {"x": None, "ids": np.array([[3], [1], [9], [9]])}
    is_array = isinstance(real, np.ndarray)
    value = np.concatenate([real, other]) if is_array else [*real, *other]
    found = check_outputs(spec(tensor), {"y": value}, 4, sizes, 2)
    assert found.failed == {}
    assert listed(found) == listed(check(tensor, real, 2, [3, 1]))
    assert len(listed(found)) == 2


@pytest.mark.parametrize("tensor", [FIXED, DYNAMIC, NAMED, TEXT, TEXTS])
def test_the_padding_must_be_answered_as_well(tensor: Tensor) -> None:
    value: Any = np.zeros((2, *tensor.max_shape), tensor.np_dtype)
    if tensor.is_bytes:
        value = [b""] * 2
    with pytest.raises(ModelError, match=r"has (shape \[2|2 rows)"):
        check_outputs(spec(tensor), {"y": value}, 4, {"x": None, "ids": np.array([[6]] * 4)}, 2)


def test_an_output_that_the_device_has_stored_is_not_stored_again() -> None:
    found = check_outputs(spec(FIXED, Tensor("z", "float32")), {"y": IN_PLACE, "z": [1, 2]}, 2, {})
    assert list(found.outputs) == ["z"]
    with pytest.raises(ModelError, match="returned no output 'z'"):
        check_outputs(spec(FIXED, Tensor("z", "float32")), {"y": IN_PLACE}, 2, {})
