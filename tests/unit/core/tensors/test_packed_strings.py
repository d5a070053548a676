"""Columns of texts of Arrow are rows as they stand, without a copy where they are one array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.client.call import named_inputs
from batchpool.client.refused_rows import check_each
from batchpool.core.errors import InvalidRequest, TooLarge
from batchpool.core.tensors.packed_strings import PackedStrings, strings_of_arrow
from batchpool.core.tensors.rows import check_rows
from batchpool.core.tensors.spec import Tensor
from tests.lazy import library
from tests.unit.specs import model

pa = library("pyarrow")

KINDS = ["string", "large_string", "binary", "large_binary"]
TEXTS = ["", "a", "é€", "a\0", "ten bytes!"]
BYTES = [text.encode() for text in TEXTS]
SPEC = model(Tensor("x", "bytes", (), max_bytes=10))


def chunked(values: list[Any], kind: str, cuts: list[int]) -> Any:
    rows = iter(values)
    parts = [pa.array([next(rows) for _ in range(n)], "string").cast(kind) for n in cuts]
    return pa.chunked_array(parts, kind)


def strings_of(column: Any) -> PackedStrings:
    found = strings_of_arrow("x", column)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[5], [2, 3], [0, 1, 4]])
def test_slices_are_the_bytes_of_their_rows(kind: str, cuts: list[int]) -> None:
    strings = strings_of(chunked(TEXTS, kind, cuts))
    assert (len(strings), strings.shape, strings.lengths.tolist()) == (5, (5,), [0, 1, 5, 2, 10])
    for start in range(7):
        for stop in range(9):
            part = strings[start:stop]
            assert part.tolist() == list(part) == np.asarray(part).tolist() == BYTES[start:stop]
            assert part[1:].tolist() == BYTES[start:stop][1:]
    assert [strings[at] for at in range(-5, 5)] == BYTES * 2
    assert strings.take([4, 0]).tolist() == [b"ten bytes!", b""]
    for at in (5, -6):
        with pytest.raises(IndexError):
            strings[at]
    with pytest.raises(IndexError):
        strings[::2]


@pytest.mark.parametrize("kind", KINDS)
def test_one_array_is_not_copied(kind: str) -> None:
    array = pa.array(TEXTS, "string").cast(kind)
    strings = strings_of(pa.chunked_array([array]))
    assert strings.content.ctypes.data == array.buffers()[2].address


@pytest.mark.parametrize("kind", KINDS)
def test_a_slice_of_a_table_has_its_own_rows(kind: str) -> None:
    table = pa.table({"x": pa.array([*TEXTS, *TEXTS], "string").cast(kind)}).slice(4, 4)
    assert strings_of(table["x"]).tolist() == [BYTES[4], *BYTES[:3]]
    joined = pa.concat_tables([table, table.slice(1, 2)])
    assert strings_of(joined["x"]).tolist() == [BYTES[4], *BYTES[:3], *BYTES[:2]]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_and_rows_of_nothing(kind: str) -> None:
    assert strings_of(pa.chunked_array([], kind)).tolist() == []
    assert strings_of(pa.array([], kind)).tolist() == []
    assert strings_of(pa.array(["", ""], "string").cast(kind)).tolist() == [b"", b""]


@pytest.mark.parametrize("kind", ["int64", "list<item: string>", "dictionary", "fixed"])
def test_other_columns_are_none_of_these(kind: str) -> None:
    columns = {
        "int64": lambda: pa.array([1]),
        "list<item: string>": lambda: pa.array([["a"]]),
        "dictionary": lambda: pa.array(["a"]).dictionary_encode(),
        "fixed": lambda: pa.array([b"abc"], pa.binary(3)),
    }
    assert strings_of_arrow("x", columns[kind]()) is None


@pytest.mark.parametrize("kind", ["int32", "int64"])
@pytest.mark.parametrize("offsets", [[0, 5, 3, 8], [0, 4, 8, 9], [-1, 4, 5, 8], [0, 9, 9, 8]])
def test_damaged_offsets_are_refused(kind: str, offsets: list[int]) -> None:
    places = np.zeros(4, kind)
    text = pa.string() if kind == "int32" else pa.large_string()
    buffers = [None, pa.py_buffer(places), pa.py_buffer(b"12345678")]
    column = pa.Array.from_buffers(text, 3, buffers)
    places[:] = offsets  # as a file has them, of which Arrow checks little
    for damaged in (column, pa.chunked_array([column, column])):
        with pytest.raises(InvalidRequest, match="'x' is a damaged column"):
            strings_of_arrow("x", damaged)


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_has_them_as_its_rows(kind: str) -> None:
    rows = check_rows(SPEC, {"x": chunked(TEXTS, kind, [2, 3])})
    assert (rows.n, type(rows.tensors["x"])) == (5, PackedStrings)
    assert rows.tensors["x"].tolist() == BYTES
    again = check_rows(SPEC, {"x": rows.tensors["x"]})
    assert again.tensors["x"] is rows.tensors["x"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_told_by_its_row(kind: str) -> None:
    with pytest.raises(TooLarge, match="'x': element 2 has 11 bytes; at most 10 fit"):
        check_rows(SPEC, {"x": chunked(["a", "", "ten bytes!!", "b"], kind, [1, 3])})
    with pytest.raises(InvalidRequest, match="'x': row 2 is missing in this column"):
        check_rows(SPEC, {"x": chunked(["a", "", None, "b", None], kind, [1, 4])})
    with pytest.raises(InvalidRequest, match="'x' has 0 rows"):
        check_rows(SPEC, {"x": pa.array([], kind)})
    vectors = model(Tensor("x", "bytes", (2,), max_bytes=10))
    with pytest.raises(InvalidRequest, match=r"'x' has shape \[5\]"):
        check_rows(vectors, {"x": chunked(TEXTS, kind, [5])})


@pytest.mark.parametrize("kind", KINDS)
def test_bad_rows_are_told_apart(kind: str) -> None:
    column = chunked(["a", None, "ten bytes!!", "b", "é"], kind, [2, 3])
    rows, refused = check_each(SPEC, {"x": column}, None)
    assert (rows.tensors["x"].tolist(), sorted(refused)) == ([b"a", b"b", "é".encode()], [1, 2])
    strings = strings_of(column)
    rows, refused = check_each(SPEC, {"x": strings}, None)
    assert (rows.tensors["x"].tolist(), sorted(refused)) == ([b"a", b"", b"b", "é".encode()], [2])


def test_a_table_is_its_columns_by_name() -> None:
    table = pa.table({"x": TEXTS, "n": range(5)})
    found = named_inputs(table, {})
    assert list(found) == ["x", "n"]
    assert check_rows(SPEC, {"x": found["x"]}).tensors["x"].tolist() == BYTES
    numbers = model(Tensor("n", "int64"))
    assert check_rows(numbers, {"n": found["n"]}).tensors["n"].tolist() == [0, 1, 2, 3, 4]
