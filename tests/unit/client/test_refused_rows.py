"""A row that cannot be sent has its error in its place, and costs no other row its answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client.refused_rows import check_each, with_refused
from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from tests.lazy import library
from tests.unit.specs import model

pd = library("pandas")

SPEC = model(
    Tensor("text", "bytes", (), max_bytes=4),
    Tensor("ids", "int64", (Dim(2),)),
    outputs=(Tensor("y", "float32"),),
)
WORDS = model(Tensor("text", "bytes", (), max_bytes=4), outputs=(Tensor("y", "float32"),))


def test_rows_that_fit_are_sent_and_the_others_are_told_apart() -> None:
    texts = ["a", "too long", "b", 5, "c"]
    ids = [[1], [2], [3, 4], [5], [1, 2, 3]]
    rows, refused = check_each(SPEC, {"text": texts, "ids": ids}, None)
    assert rows.tensors["text"].tolist() == [b"a", b"b"]
    assert (rows.tensors["ids"].tolist(), rows.sizes["ids"].tolist()) == (
        [[1, 0], [3, 4]], [[1], [2]],
    )  # fmt: skip
    assert {i: (type(error), error.row) for i, error in refused.items()} == {
        1: (TooLarge, 1), 3: (InvalidRequest, 3), 4: (TooLarge, 4),
    }  # fmt: skip
    assert refused[1].message.startswith("row 1: input 'text': element 0 has 8 bytes")
    found = with_refused({"y": [10, 20]}, refused)
    assert found == {"y": [10, refused[1], 20, refused[3], refused[4]]}


@pytest.mark.parametrize(
    "texts",
    [
        ["a", "too long", "b"],
        ("a", "too long", "b"),
        np.array(["a", "too long", "b"], object),
        lambda: pd.Series(["a", "too long", "b"], index=[7, 8, 9]),
        lambda: pd.Series(["a", None, "b"]),  # pandas is imported when it is called
    ],
)
def test_whatever_holds_the_rows(texts: Any) -> None:
    texts = texts() if callable(texts) else texts
    rows, refused = check_each(WORDS, {"text": texts}, None)
    assert rows.tensors["text"].tolist() == [b"a", b"b"]
    assert list(refused) == [1]


def test_rows_that_all_fit_are_checked_once() -> None:
    rows, refused = check_each(WORDS, {"text": ["a", "b"]}, None)
    assert (rows.n, refused) == (2, {})
    outputs = {"y": [1, 2]}
    assert with_refused(outputs, refused) is outputs


@pytest.mark.parametrize(
    ("spec", "tensors", "parameters", "message"),
    [
        (WORDS, {"text": ["too long", "no less"]}, None, "^input 'text': element 0"),
        (WORDS, {"text": ["too long"]}, None, "^input 'text': element 0"),
        (WORDS, {"text": "too long"}, None, "one str"),
        (WORDS, {"text": 5}, None, "text"),
        (WORDS, {"text": ["a"], "more": ["b"]}, None, "no input 'more'"),
        (WORDS, {"text": ["a", "b"]}, {"k": 1}, "no parameter 'k'"),
        (SPEC, {"text": ["a", "b"], "ids": [[1]]}, None, "rows"),
    ],
)
def test_what_concerns_the_whole_call_is_raised(
    spec: ModelSpec, tensors: dict[str, Any], parameters: Any, message: str
) -> None:
    with pytest.raises((InvalidRequest, TooLarge), match=message):
        check_each(spec, tensors, parameters)
