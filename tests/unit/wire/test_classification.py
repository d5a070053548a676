"""Classification: the order, the text and the number of classes, and the requests for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from jsonschema import Draft202012Validator

from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire import classification
from batchpool.wire.classification import Classifier
from batchpool.wire.codec import Codec
from batchpool.wire.schemas import model_schemas
from tests.unit.wire.calls import ask, body_of, refused, split, text_bytes

X = Tensor("x", "float32")
SCORES = Tensor("score", "float32", (4,), labels=("cat", "dog", "a:b", "Kühe"))
CLASSES = ModelSpec(
    "classes",
    "numpy",
    (X,),
    (
        SCORES,
        Tensor("count", "int64", (2, 3)),
        Tensor("half", "float16", (2,)),
        Tensor("word", "bytes", (), max_bytes=4),
        Tensor("ragged", "float32", (Dim(3),)),
    ),
)
ROWS = np.array([[0.1, 0.5, 0.5, -2], [1e-9, 3, 16777216, np.nan]], "f4")
COUNTS = np.array([[[1, 2, 3], [6, 5, 4]], [[0, 0, 0], [0, 0, -(2**63)]]])


def wanting(*outputs: dict[str, Any], **parameters: Any) -> dict[str, Any]:
    """A request of two rows for these outputs."""
    tensor = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    return {"inputs": [tensor], "outputs": list(outputs), "parameters": parameters}


def wish(name: str, classification: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "parameters": {"classification": classification, **more}}


def answered(*outputs: dict[str, Any], **parameters: Any) -> tuple[dict[str, Any], bytes]:
    codec = Codec(CLASSES)
    request = codec.parse(*body_of(wanting(*outputs, **parameters)))
    head, tail = split(*codec.encode(request, {"score": ROWS, "count": COUNTS}))
    assert [*Draft202012Validator(model_schemas(CLASSES)["Response"]).iter_errors(head)] == []
    return head, tail


# -- the classes themselves -----------------------------------------------------------------


def test_the_highest_come_first_and_of_equal_ones_the_first() -> None:
    assert Classifier(SCORES).highest(ROWS, 3).tolist() == [
        [b"0.5:1:dog", b"0.5:2:a:b", b"0.1:0:cat"],
        [b"1.6777216e+07:2:a:b", b"3.0:1:dog", b"1e-09:0:cat"],
    ]


def test_more_classes_than_there_are_elements_are_all_of_them() -> None:
    found = Classifier(SCORES).highest(ROWS, 10**30)
    assert found.shape == (2, 4)
    assert found[1, 3] == "nan:3:Kühe".encode(), "not a number comes last"


def test_elements_are_numbered_over_all_dimensions() -> None:
    found = Classifier(CLASSES.outputs[1]).highest(COUNTS, 2)
    assert found.tolist() == [[b"6:3", b"5:4"], [b"0:0", b"0:1"]]


def test_a_row_may_be_one_number_or_none() -> None:
    one = Tensor("y", "uint8")
    assert Classifier(one).highest(np.array([7, 9], "u1"), 5).tolist() == [[b"7:0"], [b"9:0"]]
    none = Tensor("y", "uint8", (0,))
    assert Classifier(none).highest(np.empty((3, 0), "u1"), 5).shape == (3, 0)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        ("bool", np.array([[False, True]]), [b"1:1", b"0:0"]),
        ("uint64", np.array([[2**64 - 1, 5]], "u8"), [b"18446744073709551615:0", b"5:1"]),
        ("int8", np.array([[-128, 127]], "i1"), [b"127:1", b"-128:0"]),
        ("float16", np.array([[0.1, 65504]], "f2"), [b"6.55e+04:1", b"0.1:0"]),
        ("float64", np.array([[0.1, np.inf]]), [b"inf:1", b"0.1:0"]),
        (
            "bfloat16",
            np.array([[-1.5, 2.5]], ml_dtypes.bfloat16).view(np.uint16),
            [b"2.5:1", b"-1.5:0"],
        ),
    ],
)
def test_values_of_every_kind(dtype: str, values: Array, expected: list[bytes]) -> None:
    assert Classifier(Tensor("y", dtype, (2,))).highest(values, 2).tolist() == [expected]


@settings(deadline=None)
@given(arrays("f4", st.tuples(st.integers(1, 9), st.just(6))), st.integers(1, 9))
def test_rows_are_classified_one_by_one(values: Array, k: int) -> None:
    classifier = Classifier(Tensor("y", "float32", (6,)))
    found = classifier.highest(values, k)
    for row, classes in zip(values.tolist(), found.tolist(), strict=True):
        order = sorted(range(6), key=lambda i: (row[i] != row[i], -row[i], i))
        indices = [int(each.decode().split(":")[1]) for each in classes]
        assert indices == order[: min(k, 6)]
        for each, index in zip(classes, indices, strict=True):
            text = float(each.decode().split(":")[0])
            assert np.float32(text) == np.float32(row[index]) or row[index] != row[index]


def test_nan_comes_behind_the_lowest_number() -> None:
    values = np.array([[np.nan, -np.inf, 1, np.inf, np.nan]], np.float32)
    found = Classifier(Tensor("y", "float32", (5,))).highest(values, 5).tolist()
    assert found == [[b"inf:3", b"1.0:2", b"-inf:1", b"nan:0", b"nan:4"]]


def test_many_rows_are_sorted_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(70, dtype="f4").reshape(10, 7)
    classifier = Classifier(Tensor("y", "float32", (7,)))
    at_once = classifier.highest(values, 2).tolist()
    monkeypatch.setattr(classification, "_VALUES_AT_ONCE", 21)
    assert classifier.highest(values, 2).tolist() == at_once


# -- requests for them ----------------------------------------------------------------------


def test_classes_as_json_and_as_bytes_beside_another_output() -> None:
    head, tail = answered(wish("score", 1, binary_data=True), wish("count", 2))
    classes = text_bytes(b"0.5:1:dog", b"1.6777216e+07:2:a:b")
    assert tail == classes
    assert head["outputs"] == [
        {
            "name": "score", "datatype": "BYTES", "shape": [2, 1],
            "parameters": {"binary_data_size": len(classes)},
        },
        {
            "name": "count", "datatype": "BYTES", "shape": [2, 2],
            "data": ["6:3", "5:4", "0:0", "0:1"],
        },
    ]  # fmt: skip


def test_classes_follow_the_requests_own_encoding() -> None:
    head, tail = answered(wish("score", 4), binary_data_output=True)
    assert head["outputs"][0]["shape"] == [2, 4]
    assert len(tail) == head["outputs"][0]["parameters"]["binary_data_size"]


@pytest.mark.parametrize("classes", [0, None, False])
def test_no_classes_are_the_output_itself(classes: Any) -> None:
    head, _ = answered(wish("count", classes))
    assert head["outputs"][0]["datatype"] == "INT64"


def test_what_json_cannot_carry_can_be_classified() -> None:
    refused(CLASSES, wanting({"name": "half"}))
    (choice,) = ask(CLASSES, wanting(wish("half", 2))).outputs
    assert (choice.binary, choice.classes) == (False, 2)


def test_no_more_classes_are_counted_than_there_are() -> None:
    (choice,) = ask(CLASSES, wanting(wish("count", 10**400))).outputs
    assert choice.classes == 6


@pytest.mark.parametrize("classes", [-1, 1.5, True, "3", [3], {}])
def test_a_number_of_classes_that_is_none(classes: Any) -> None:
    message = refused(CLASSES, wanting(wish("score", classes)))
    assert "output 'score': parameter 'classification' is" in message
    assert "a whole number was expected" in message


@pytest.mark.parametrize("name", ["word", "ragged", "ragged.sizes"])
def test_outputs_that_cannot_be_classified(name: str) -> None:
    message = refused(CLASSES, wanting(wish(name, 1)))
    assert f"output '{name}' cannot be classified" in message


def test_an_output_is_classified_once_and_must_be_there() -> None:
    assert "asked for twice" in refused(CLASSES, wanting(wish("score", 1), {"name": "score"}))
    assert "no output 'other'" in refused(CLASSES, wanting(wish("other", 1)))
