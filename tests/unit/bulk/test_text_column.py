"""Columns of texts that become bytes a window at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchpool.bulk.text_column import TextColumn, is_text

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
TEXTS = ["", "a", "é€", "a\0", "ten bytes!"]
BYTES = [text.encode() for text in TEXTS]


def chunked(values: list[Any], kind: Any, cuts: list[int]) -> Any:
    rows = iter(values)
    parts = [pa.array([next(rows) for _ in range(n)], pa.string()).cast(kind) for n in cuts]
    return pa.chunked_array(parts, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[5], [2, 3], [0, 1, 4]])
def test_slices_are_the_bytes_of_their_rows(kind: Any, cuts: list[int]) -> None:
    column = TextColumn(chunked(TEXTS, kind, cuts))
    assert (len(column), column.missing) == (5, [])
    for start in range(6):
        for stop in range(start, 9):
            assert column[start:stop].tolist() == BYTES[start:stop]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[5], [2, 3]])
def test_nulls_are_told_and_empty(kind: Any, cuts: list[int]) -> None:
    column = TextColumn(chunked(["a", None, "c", None, "e"], kind, cuts))
    assert column.missing == [1, 3]
    assert column[0:5].tolist() == [b"a", b"", b"c", b"", b"e"]


def test_a_slice_of_a_table_has_its_own_rows() -> None:
    table = pa.table({"text": [*TEXTS, None, *TEXTS, None]}).slice(4, 7)
    column = TextColumn(table["text"])
    assert column.missing == [1]
    assert column[0:4].tolist() == [BYTES[4], b"", *BYTES[:2]]


def test_no_rows_are_a_column_too() -> None:
    column = TextColumn(pa.chunked_array([], pa.string()))
    assert (len(column), column[0:5].tolist()) == (0, [])


@pytest.mark.parametrize("kind", KINDS)
def test_texts_and_bytes_are_texts(kind: Any) -> None:
    assert is_text(kind)


@pytest.mark.parametrize(
    "kind",
    [pa.int64(), pa.list_(pa.string()), pa.dictionary(pa.int32(), pa.string()), pa.binary(3)],
)
def test_other_columns_are_none(kind: Any) -> None:
    assert not is_text(kind)
