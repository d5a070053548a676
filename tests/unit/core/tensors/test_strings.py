"""Texts and bytes of a local program: taken exactly, or refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.core.errors import TooLarge
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Dim, Tensor
from tests.unit.core.tensors.test_rows import refused, rows
from tests.unit.specs import model

TEXT = Tensor("text", "bytes", (), max_bytes=8)
PAIR = Tensor("text", "bytes", (2,), max_bytes=8)


@pytest.mark.parametrize(
    "value",
    [
        ["", "a", "é€", b"\x00\xff\xfe", b"a\x00"],
        ("", "a", "é€", b"\x00\xff\xfe", b"a\x00"),
        np.array(["", "a", "é€", b"\x00\xff\xfe", b"a\x00"], dtype=object),
        ["", "a", "é€", bytearray(b"\x00\xff\xfe"), memoryview(b"a\x00")],
    ],
)
def test_texts_and_bytes_are_taken_exactly(value: Any) -> None:
    found = rows(TEXT, value)
    assert found.tolist() == [b"", b"a", "é€".encode(), b"\x00\xff\xfe", b"a\x00"]
    assert {type(element) for element in found.tolist()} == {bytes}


def test_buffers_are_elements_and_not_arrays() -> None:
    assert rows(TEXT, [bytearray(b"ab"), bytearray(b"cd")]).tolist() == [b"ab", b"cd"]
    assert rows(TEXT, [memoryview(b"ab")]).tolist() == [b"ab"]
    assert rows(PAIR, [[bytearray(b"ab"), memoryview(b"c")]]).tolist() == [[b"ab", b"c"]]


def test_string_arrays_of_numpy() -> None:
    assert rows(TEXT, np.array(["ab", "é"])).tolist() == [b"ab", "é".encode()]
    assert rows(PAIR, np.array([["a", "b"], ["c", "d"]], order="F")).tolist() == [
        [b"a", b"b"],
        [b"c", b"d"],
    ]


def test_byte_arrays_of_numpy_are_refused_since_they_drop_trailing_nuls() -> None:
    text = "input 'text' is a numpy array of dtype S2, which drops trailing NULs of its elements"
    cut = np.array([b"a\0", b"bc"])
    assert cut.tolist() == [b"a", b"bc"]
    refused(TEXT, cut, text)
    refused(TEXT, np.array([b"ab", b"c"]), text)
    refused(PAIR, [cut, cut], text)
    # One element has its own bytes.
    assert rows(TEXT, [np.bytes_(b"a\0"), b"bc"]).tolist() == [b"a\0", b"bc"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abc", "input 'text' is one str; a list of them, one per row, was expected"),
        (b"abc", "input 'text' is one bytes; a list of them, one per row, was expected"),
        (["a", 3], "input 'text': element 1 is a int; bytes or str was expected"),
        ([None], "input 'text': element 0 is a NoneType; bytes or str was expected"),
        ([["a"], ["b"]], "input 'text' has shape [2, 1]; [n] was expected"),
        (np.zeros(2), "input 'text' has dtype float64; bytes or str was expected"),
        ([], "input 'text' has 0 rows; at least 1 was expected"),
        (3, "input 'text' has shape []; [n] was expected"),
        (["ok", "a\ud800"], "input 'text': element 1 has a lone surrogate"),
    ],
)
def test_what_is_no_list_of_strings(value: Any, text: str) -> None:
    refused(TEXT, value, text)


def test_an_element_of_exactly_max_bytes_fits_and_one_more_does_not() -> None:
    assert rows(TEXT, ["12345678"]).tolist() == [b"12345678"]
    text = "input 'text': element 1 has 9 bytes; at most 8 fit (max_bytes in the model)"
    refused(TEXT, ["1", "123456789"], text, TooLarge)
    refused(TEXT, ["1", "€€€"], text, TooLarge)


@pytest.mark.parametrize("value", [[b"ab"] * 40, ["ab"] * 40, ["ab", b"ab"] * 20])
@pytest.mark.parametrize("make", [list, tuple, lambda value: np.array(value, dtype=object)])
def test_many_elements_are_checked_as_few_are(value: list[Any], make: Any) -> None:
    assert rows(TEXT, make(value)).tolist() == [b"ab"] * 40
    wrong = [*value[:20], None, *value[20:]]
    refused(TEXT, make(wrong), "input 'text': element 20 is a NoneType; bytes or str was expected")
    refused(TEXT, make([*value, "\ud800"]), "input 'text': element 40 has a lone surrogate")
    long = [*value[:30], type(value[30])(value[30]) * 5, *value[31:]]
    with pytest.raises(TooLarge, match="element 30 has 10 bytes; at most 8 fit"):
        rows(TEXT, make(long))


def test_rows_of_several_strings() -> None:
    many = Tensor("text", "bytes", (Dim(3),), max_bytes=8)
    assert rows(many, [["a", "b"], ["c", "d"]]).tolist() == [[b"a", b"b"], [b"c", b"d"]]
    assert rows(many, np.empty((2, 0), dtype=object)).shape == (2, 0)
    refused(many, [["a"] * 4], "has shape [1, 4], larger than a slot holds: [n, 0..3]", TooLarge)
    found = check_rows(model(many), {"text": [["a", "b"], ["c"]]})
    assert found.tensors["text"].tolist() == [[b"a", b"b"], [b"c", b""]]
    assert found.sizes["text"].tolist() == [[2], [1]]
