"""Columns of texts that become bytes a window at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from batchpool.bulk.text_column import text_column

TEXTS = ["", "a", "é€", "a\0", "ten bytes!"]
BYTES = [text.encode() for text in TEXTS]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("cuts", [[5], [2, 3], [0, 1, 4]])
def test_slices_are_the_bytes_of_their_rows(kind: Any, cuts: list[int]) -> None:
    rows = iter(TEXTS)
    chunks = [pa.array([next(rows) for _ in range(n)], pa.string()).cast(kind) for n in cuts]
    column = text_column(pa.chunked_array(chunks), 10)
    assert column is not None
    assert len(column) == 5
    for start in range(6):
        for stop in range(start, 9):
            assert column[start:stop].tolist() == BYTES[start:stop]


def test_a_slice_of_a_column_has_its_own_rows() -> None:
    table = pa.table({"text": TEXTS * 3}).slice(4, 7)
    column = text_column(table["text"], 10)
    assert column is not None
    assert column[1:4].tolist() == (BYTES * 3)[5:8]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None]),
        pa.array(["short", "longer than ten"]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array([1, 2]),
        pa.array([["a"], ["b"]]),
    ],
)
def test_what_needs_a_look_at_each_row_is_none(column: Any) -> None:
    assert text_column(pa.chunked_array([column]), 10) is None


def test_no_rows_are_a_column_too() -> None:
    column = text_column(pa.chunked_array([], pa.string()), 10)
    assert column is not None
    assert (len(column), column[0:5].tolist()) == (0, [])
