"""Columns of rows that have names of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from batchpool.bulk.inputs import InputColumns, check_first_rows, mapped_columns
from batchpool.bulk.lines import CsvReader, LineReader
from batchpool.bulk.row_columns import RowColumns
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec, Tensor

SPEC = ModelSpec("m", "numpy", (Tensor("x", "int64"),), (Tensor("y", "int64"),))


def test_a_column_has_an_entry_for_each_row() -> None:
    columns = RowColumns([{"a": 1}, None, {"b": 2, "a": None}, {}])
    assert dict(columns) == {"a": [1, None, None, None], "b": [None, None, 2, None]}
    assert (len(columns), "b" in columns, "c" in columns) == (2, True, False)
    assert columns.get("c") is None
    assert [columns.row(at) for at in range(4)] == [{"a": 1}, {}, {"b": 2, "a": None}, {}]
    with pytest.raises(KeyError):
        columns["c"]


def test_columns_that_nobody_asks_for_are_not_made(tmp_path: Path) -> None:
    """1,000 rows with a key of their own each would have a million entries, and ten thousand a
    hundred million."""
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"x": i, f"k{i}": 1}) + "\n" for i in range(1000)))
    (chunk,) = LineReader([str(path)]).chunks(1000, 0)
    assert len(chunk.columns) == 1001
    check_first_rows(SPEC, {"x": "x"}, ("k7",), chunk)
    values, why = InputColumns(SPEC, {"x": "x"}).read(chunk)
    assert (len(values["x"]), why) == (1000, {})
    assert chunk.row(7) == {"x": 7, "k7": 1}, "and none of the others' columns"
    assert isinstance(chunk.columns, RowColumns)
    assert set(chunk.columns._made) == {"x"}


def test_a_message_names_some_of_many_columns(tmp_path: Path) -> None:
    names = [f"c{i}" for i in range(100_000)] + ["n" * 10_000]
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(dict.fromkeys(reversed(names), 1)))
    (chunk,) = LineReader([str(path)]).chunks(1, 0)
    with pytest.raises(ConfigError, match="and 99,981 more") as refused:
        check_first_rows(SPEC, {"x": "nope"}, (), chunk)
    assert len(str(refused.value)) < 1000
    wide = tmp_path / "in.csv"
    wide.write_text(",".join(names) + "\n")
    with pytest.raises(ConfigError, match="and 99,981 more") as refused:
        mapped_columns(SPEC, CsvReader([str(wide)]).names, {})
    assert len(str(refused.value)) < 1000
