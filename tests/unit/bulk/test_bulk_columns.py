"""Columns that a bulk run writes: those that are kept, half floats, and formats without pyarrow."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from batchpool.arrow import types
from tests.unit.bulk.files import Run, lines, texts, write


def test_kept_columns_keep_their_values(run: Run) -> None:
    kept: list[Any] = [1, 2, None, 4, "five", 6.5, [7], True, 9, 10]
    write("in.jsonl", "".join(json.dumps({"text": "t", "k": k}) + "\n" for k in kept))
    for out in ("out.jsonl", "out.parquet"):
        assert run("echo", "in.jsonl", "-o", out, "--keep", "k", "--chunk-rows", "4")[0] == 0
    assert [row["k"] for row in lines("out.jsonl")] == kept
    assert pq.read_table("out.parquet")["k"].to_pylist() == [
        "1", "2", None, "4", "five", "6.5", "[7]", "true", "9", "10",
    ]  # fmt: skip
    for values, expected in (
        ([2**63, -1], ["9223372036854775808", "-1"]),
        ([None, None], [None, None]),
    ):
        write("in.jsonl", "".join(json.dumps({"text": "t", "k": k}) + "\n" for k in values))
        assert run("echo", "in.jsonl", "-o", "out.parquet", "--keep", "k", "--restart")[0] == 0
        assert pq.read_table("out.parquet")["k"].to_pylist() == expected
    write("in.jsonl", "".join(json.dumps({"text": "t", "k": k}) + "\n" for k in (1, 2, 3, 4, 0.5)))
    flags = ("--keep", "k", "--chunk-rows", "4", "--restart")
    assert run("echo", "in.jsonl", "-o", "out.parquet", *flags)[0] == 0
    assert pq.read_table("out.parquet")["k"].to_pylist() == [1, 2, 3, 4, 0.5]


def test_half_floats_are_written_as_floats(run: Run) -> None:
    write("in.jsonl", '{"a": 1.5}\n{"a": -2}\n')
    for out in ("out.npy", "out.jsonl", "out.parquet"):
        assert run("half", "in.jsonl", "-o", out)[0] == 0
    assert np.load("out.npy").tolist() == [1.5, -2]
    assert [row["h"] for row in lines("out.jsonl")] == [1.5, -2]
    assert pq.read_table("out.parquet")["h"].to_pylist() == [1.5, -2]


def test_without_pyarrow_a_run_of_parquet_says_how_to_install_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("in.jsonl", texts(3))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    types.arrow.cache_clear()
    try:
        status, said = run("echo", "in.jsonl", "-o", "out.parquet")
        assert (status, "pip install 'batchpool[bulk]'" in said) == (1, True)
        assert run("echo", "in.jsonl", "-o", "out.jsonl")[0] == 0
    finally:
        types.arrow.cache_clear()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ("echo", "in.jsonl", "--keep", "id,idd"),
            "--keep: there is no column 'idd'; the first 2 rows have 'text', 'id'",
        ),
        (
            ("next", "in.jsonl"),
            "no column for the input 'ids' of model 'next': the first 2 rows have 'text', 'id';"
            " say which with --map ids=COLUMN, or --map ids=A+B+C for columns of one element each",
        ),
        (
            ("echo", "one.jsonl", "--map", "text=txt"),
            "--map text=txt: there is no column 'txt'; the first row has 'text'",
        ),
        (("add", "in.jsonl", "--map", "a=id,b=c"), "--map b=c: there is no column 'c'"),
    ],
)
def test_a_column_that_no_first_row_has_is_a_wrong_name(
    run: Run, words: tuple[str, ...], text: str
) -> None:
    write("in.jsonl", '{"text": "a"}\n{"id": 7}\n')
    write("one.jsonl", '{"text": "a"}\n')
    status, said = run(*words, "-o", "out.jsonl")
    assert (status, text in said) == (2, True), said


def test_a_column_that_some_row_has_is_kept(run: Run) -> None:
    write("in.jsonl", '{"text": "a"}\n{"text": "b", "id": null}\n')
    assert run("echo", "in.jsonl", "-o", "out.jsonl", "--keep", "id")[0] == 0
    assert [row["id"] for row in lines("out.jsonl")] == [None, None]
    write("in.jsonl", '{"a": 1}\n')
    assert run("add", "in.jsonl", "-o", "sum.jsonl")[0] == 0  # an input with a default


def test_files_of_many_rows_are_not_taken_for_a_row(run: Run) -> None:
    write("rows.gz", "a")
    status, said = run("echo", "rows.gz", "-o", "out.jsonl")
    assert (status, "--format jsonl <(zcat rows.gz)" in said) == (2, True), said
    os.mkdir("docs")
    for name in ("day.parquet", "rows.csv", "x.NPZ"):
        write(f"docs/{name}", "a")
        status, said = run("echo", "docs", "-o", "out.jsonl")
        pattern = f"docs/*{os.path.splitext(name)[1]};"
        assert (status, f"docs/{name} is packed or" in said, pattern in said) == (2, True, True)
        assert run("echo", "docs", "--format", "files", "-o", f"{name}.jsonl")[0] == 0
        os.remove(f"docs/{name}")
    assert run("echo", "rows.gz", "--format", "files", "-o", "out.jsonl")[0] == 0
    assert lines("out.jsonl") == [{"text": "a", "length": 1}]


@pytest.mark.parametrize("names", ["body,id", "id,body", "id,other,body"])
def test_the_only_input_takes_the_column_body_of_any_table(run: Run, names: str) -> None:
    cells = ",".join("abc" if name == "body" else "x" for name in names.split(","))
    write("in.csv", f"{names}\n{cells}\n")
    assert run("echo", "in.csv", "-o", "out.jsonl")[0] == 0
    assert lines("out.jsonl") == [{"text": "abc", "length": 3}]
