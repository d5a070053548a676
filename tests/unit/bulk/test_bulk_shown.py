"""The rows in the file of bad rows: JSON that another program can read and send again."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from batchpool.bulk.shown import shown_row, shown_text
from tests.unit.bulk.files import Run, lines, texts, write


def inputs(path: str) -> list[Any]:
    return [row["input"] for row in lines(path)]


def test_a_bad_row_is_there_as_it_came(run: Run) -> None:
    rows = [{"x": [1, "é"], "id": None}, {"x": {"a": True}, "id": 7}, {"x": [1, 2], "id": 8}]
    write("in.jsonl", "".join(json.dumps(row) + "\n" for row in rows) + "[1]\n")
    assert run("double", "in.jsonl", "-o", "out.jsonl")[0] == 3
    assert inputs("out.jsonl.errors.jsonl") == [rows[0], rows[1], "[1]"]
    assert not any("input_cut" in row for row in lines("out.jsonl.errors.jsonl"))


def test_rows_of_tables_arrays_and_files(run: Run) -> None:
    table = pa.table({"text": pa.array([b"bad", b"\xff"]), "id": [1, 2]})
    pq.write_table(table, "in.parquet")
    assert run("echo", "in.parquet", "-o", "out.parquet", "--keep", "id")[0] == 3
    assert inputs("out.parquet.errors.jsonl") == [{"text": {"b64": "YmFk"}, "id": 1}]
    np.save("in.npy", np.array([[1, 2, 3]], np.float64))
    assert run("double", "in.npy", "-o", "array.jsonl", "--chunk-rows", "1")[0] == 3
    assert inputs("array.jsonl.errors.jsonl") == [{"array": [1, 2, 3]}]
    os.mkdir("docs")
    write("docs/a.txt", "bad")
    write("docs/b.txt", "good")
    assert run("echo", "docs", "-o", "files.jsonl")[0] == 3
    assert inputs("files.jsonl.errors.jsonl") == [{"body": {"b64": "YmFk"}, "path": "docs/a.txt"}]


def test_what_is_long_is_cut_and_marked(run: Run) -> None:
    long = "é" * 2_000
    write("in.jsonl", json.dumps({"text": long, "id": 1}) + "\n" + texts(1) + "x" * 9_000 + "\n")
    assert run("echo", "in.jsonl", "-o", "out.jsonl")[0] == 3
    first, last = lines("out.jsonl.errors.jsonl")
    assert first["input"] == {"text": "é" * 500, "id": 1}
    assert last["input"] == "x" * 500
    assert first["input_cut"] is last["input_cut"] is True


def test_values_of_any_kind_are_cut_where_they_are_long() -> None:
    found = shown_row({"a": b"\0" * 3_000_000, "b": list(range(9_000)), "c": np.float32("nan")})
    assert found.cut
    assert len(found.row["a"]["b64"]) == 668
    assert found.row["b"].startswith("[0,1,2,")
    assert len(found.row["b"]) == 500
    wide = shown_row({f"c{i}": "x" * 900 for i in range(100)})
    assert wide.cut
    assert len(wide.row) == 18
    assert not shown_row({"a": "x" * 500, "b": [1.5], "c": {"\udce9": "\udce9"}}).cut
    assert shown_row({"a": "\udce9"}).row == {"a": "\\udce9"}
    whole = shown_row({"a": b"\0" * 1_000, "b": "é" * 1_000})
    assert not whole.cut
    assert len(base64.b64decode(whole.row["a"]["b64"])) == 1_000
    assert not shown_text(b"x" * 500).cut
    assert shown_text(b"x" * 501).cut


def test_empty_lines_have_no_numbers_and_keep_their_places(run: Run) -> None:
    write("in.jsonl", texts(1) + "\n  \nnonsense\n")
    assert run("echo", "in.jsonl", "-o", "out.jsonl")[0] == 3
    (bad,) = lines("out.jsonl.errors.jsonl")
    assert (bad["row"], bad["source"]) == (1, "in.jsonl:4")


def test_bad_rows_of_a_run_to_stdout_are_on_stderr(run: Run) -> None:
    write("in.jsonl", texts(1) + '{"text": "bad"}\n')
    status, said = run("echo", "in.jsonl", "-o", "-")
    assert status == 3
    assert json.loads(said.splitlines()[0])["input"] == {"text": "bad"}
    status, said = run("echo", "in.jsonl", "-o", "-", "--errors", "why.jsonl")
    assert (status, '"row"' in said, inputs("why.jsonl")) == (3, False, [{"text": "bad"}])
